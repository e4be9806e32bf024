"""What a W4AFP8 checkpoint says of itself. SGLang's ``W4AFp8Config`` reads nothing of it but its own name.

With the hooks on: the ignore list is honoured (see :mod:`..ignore_list`); ``moe_activation_scheme`` may be ``dynamic``,
and then each layer's activations are scaled by their largest magnitude at run time; a block or group size that the
kernels do not have is refused. When a layer is loaded, an expert tensor that the checkpoint did not fill is an error that
names it, an activation scale that static ones need too. A layer's static scale is the largest of **all** its experts',
whatever the number of ranks, which each rank has read anyway (see :mod:`..loaded_experts`).

``activation_scheme`` alone says nothing of the experts: configs made from FP8 ones say ``dynamic`` of the linear layers
there, next to static experts.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.ignore_list import KEYS, IgnoreList, listed
from truecast.engines.sglang.loaded_experts import LoadedExperts, some_of
from truecast.engines.sglang.situation import Situation

CONFIG = "sglang.srt.layers.quantization.w4afp8.W4AFp8Config"
METHOD = "sglang.srt.layers.quantization.w4afp8.W4AFp8MoEMethod"
AMAX = "sglang.kernels.ops.quantization.per_tensor_quant_fp8.per_tensor_absmax_fp8"
LEAST_SCALE = 1e-10 / 448
"""What 0.5.23 begins with; before it, a batch of zeros was divided by a scale of zero."""
FROM_FILES = frozenset(
    ("auto", "safetensors", "pt", "npcache", "mistral", "fastsafetensors", "runai_streamer", "instanttensor")
)
"""Values of ``--load-format`` that hand every tensor of the checkpoint to the layers' own loaders."""
_SCHEMES = ("static", "dynamic")

logger = logging.getLogger(__name__)


def need(situation: Situation) -> Need | None:
    """Every W4AFP8 checkpoint; required by those that SGLang would read as something else."""
    if situation.quantization != "w4afp8":
        return None
    config = situation.quantization_config
    if _beside(situation) or any(config.get(key) for key in KEYS):
        return Need(
            "the checkpoint has linear layers that are not FP8, and SGLang drops the list of them", required=True
        )
    if config.get("moe_activation_scheme", "static") != "static":
        return Need("the checkpoint's experts have no static activation scales, and SGLang takes 1.0", required=True)
    return Need("missing expert tensors are noticed, and static scales do not depend on the number of ranks", False)


def _beside(situation: Situation) -> bool:
    """Is there a list in ``hf_quant_config.json`` alone? SGLang takes W4AFP8 from it, by its name, and no list."""
    inner = situation.quantization_config.get("quantization")
    return isinstance(inner, Mapping) and any(inner.get(key) for key in KEYS)


def faulty(sources: Sources) -> bool:
    """Does ``from_config`` still read nothing but ``quant_method``? Raises: LookupError where there is no such class."""
    module = CONFIG.rpartition(".")[0]
    classes = {node.name: node for node in ast.parse(sources(module)).body if isinstance(node, ast.ClassDef)}
    methods: dict[str, dict[str, ast.FunctionDef]] = {
        name: {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
        for name, owner in classes.items()
    }
    wanted = {
        "W4AFp8Config": ("__init__", "from_config", "get_quant_method"),
        "W4AFp8MoEMethod": ("create_weights", "process_weights_after_loading"),
    }
    for owner, names in wanted.items():
        for name in names:
            if name not in methods.get(owner, {}):
                raise LookupError(f"{module} has no {owner}.{name}")
    made = {argument.arg for argument in methods["W4AFp8Config"]["__init__"].args.args}
    if missing := {"ignored_layers", "moe_activation_scheme", "group_size", "weight_block_size"} - made:
        raise LookupError(f"{CONFIG} takes no {', '.join(sorted(missing))}")
    loaders = _methods_of(sources("sglang.srt.layers.moe.fused_moe_triton.layer"), "FusedMoE")
    if missing := {"weight_loader", "_weight_loader_impl"} - loaders:
        raise LookupError(f"FusedMoE has no {', '.join(sorted(missing))}")
    texts = {
        node.value for node in ast.walk(methods["W4AFp8Config"]["from_config"])
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }  # fmt: skip
    return not (set(KEYS) & texts and "moe_activation_scheme" in texts)


def _methods_of(source: str, owner: str) -> set[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            return {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
    return set()


def hooks(situation: Situation) -> Sequence[Hook]:
    """All of them wrap: SGLang's class stays the one that other modules compare with.

    Raises: LookupError where SGLang never gets to see the list.
    """
    if _beside(situation):
        raise LookupError(
            "the list of modules that are not quantized stands in hf_quant_config.json, which SGLang does not read for"
            " W4AFP8: write it into quantization_config of config.json"
        )
    dynamic = situation.quantization_config.get("moe_activation_scheme") == "dynamic"
    return [
        *([Hook(AMAX, _never_zero)] if dynamic else []),
        Hook(f"{CONFIG}.from_config", _from_config),
        Hook(f"{CONFIG}.get_quant_method", _get_quant_method),
        Hook(f"{CONFIG}.apply_weight_name_mapper", _apply_weight_name_mapper),
        Hook(f"{METHOD}.create_weights", _create_weights),
        Hook(f"{METHOD}.process_weights_after_loading", _process_weights_after_loading),
    ]


def _from_config(original: Callable[..., Any], cls: Any, config: Mapping[str, Any]) -> Any:
    made = original(cls, config)
    scheme = config.get("moe_activation_scheme", "static")
    if scheme not in _SCHEMES:
        raise ValueError(f"quantization_config.moe_activation_scheme is {scheme!r}; it must be static or dynamic")
    kernels = {"group_size": 128, "weight_block_size": [128, 128], "linear_activation_scheme": "dynamic"}
    for key, only in kernels.items():
        if (given := config.get(key, only)) is not None and given != only:
            raise ValueError(f"quantization_config.{key} is {given!r}; SGLang's W4AFP8 kernels have {only!r} alone")
    made.moe_activation_scheme = scheme
    made.packed_modules_mapping = dict(config.get("packed_modules_mapping") or {})
    _set_ignored(made, listed(config))
    return made


def _set_ignored(config: Any, entries: list[str]) -> None:
    config.ignored_layers = entries
    config.truecast_ignored = IgnoreList(entries, getattr(config, "packed_modules_mapping", None) or {})


def _apply_weight_name_mapper(original: Callable[..., Any], self: Any, hf_to_sglang_mapper: Any) -> Any:
    """Called with the model's renaming of tensors: entries are kept in the checkpoint's names and added in SGLang's."""
    result = original(self, hf_to_sglang_mapper)
    renamed = hf_to_sglang_mapper.apply_list(list(self.ignored_layers)) if self.ignored_layers else []
    _set_ignored(self, list(dict.fromkeys([*self.ignored_layers, *renamed])))
    return result


def _get_quant_method(original: Callable[..., Any], self: Any, layer: Any, prefix: str) -> Any:
    from sglang.srt.layers.linear import LinearBase
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    if not hasattr(self, "truecast_ignored"):  # made without a quantization_config
        _set_ignored(self, list(self.ignored_layers))
    if isinstance(layer, LinearBase):
        if self.truecast_ignored.names(prefix):
            return UnquantizedLinearMethod()
        return _checked_linear(_of_all_others(original, self, layer, prefix), prefix)
    if isinstance(layer, FusedMoE) and self.truecast_ignored.names_experts(prefix):
        return None  # which is how SGLang says unquantized here
    method = _of_all_others(original, self, layer, prefix)
    if method is not None:
        method.truecast_bank = prefix
    return method


def _of_all_others(original: Callable[..., Any], self: Any, layer: Any, prefix: str) -> Any:
    """The method of a layer that is not ignored: SGLang's own reading of the list must not be asked."""
    entries, self.ignored_layers = self.ignored_layers, []
    try:
        return original(self, layer, prefix)
    finally:
        self.ignored_layers = entries


def _checked_linear(method: Any, prefix: str) -> Any:
    """The FP8 method of one linear layer, which refuses block scales that still hold what SGLang began with."""
    finish = method.process_weights_after_loading

    def process_weights_after_loading(layer: Any) -> Any:
        import torch

        scale = getattr(layer, "weight_scale_inv", None)
        if scale is not None and scale.is_floating_point() and bool((scale == torch.finfo(torch.float32).min).any()):
            raise ValueError(
                f"{prefix}.weight_scale_inv: the checkpoint has none, or not all of it, and its quantization_config"
                " does not say that this layer is unquantized. If it is, list it in ignored_layers of config.json"
            )
        return finish(layer)

    method.process_weights_after_loading = process_weights_after_loading
    return method


def _create_weights(original: Callable[..., Any], self: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    bank = getattr(self, "truecast_bank", "") or "experts"
    if self.quant_config.moe_activation_scheme == "dynamic" and not get_moe_a2a_backend().is_none():
        raise ValueError(
            f"{bank}: SGLang's DeepEP paths need static activation scales, and this checkpoint's are dynamic; start"
            " without --moe-a2a-backend, or convert with calibrated scales"
        )
    loader = kwargs.get("weight_loader")
    if getattr(loader, "__name__", "") == "weight_loader":  # not the one for banks stored as one tensor
        first = None
        if hasattr(layer, "_expert_storage_rank") and not _moved_experts():
            first = layer._expert_storage_rank * layer._num_local_routed
        rows = kwargs.get("num_experts", args[0] if args else layer.num_local_experts)
        self.truecast_loaded = LoadedExperts(bank, rows, first)
        kwargs["weight_loader"] = self.truecast_loaded.watch(loader)
        layer._weight_loader_impl = self.truecast_loaded.fill(layer._weight_loader_impl)
    return original(self, layer, *args, **kwargs)


def _never_zero(original: Callable[..., Any], input: Any, output_s: Any) -> None:
    original(input, output_s)
    output_s.clamp_(min=LEAST_SCALE)


def _moved_experts() -> bool:
    """Does SGLang place experts otherwise than in the checkpoint's order?"""
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    return get_global_expert_location_metadata() is not None


def _process_weights_after_loading(original: Callable[..., Any], self: Any, layer: Any) -> Any:
    loaded: LoadedExperts | None = self.__dict__.pop("truecast_loaded", None)
    static = self.quant_config.moe_activation_scheme == "static"
    if loaded is not None:
        layer.__dict__.pop("_weight_loader_impl", None)
        if loaded.touched or _reads_files():
            _refuse_unfilled(loaded, static)
    result = original(self, layer)
    if not static:
        layer.w13_input_scale = layer.w2_input_scale = None
    elif loaded is not None:
        for side in ("w13", "w2"):
            if (scale := loaded.largest_scale(side)) is not None:
                getattr(layer, f"{side}_input_scale").data.fill_(scale)
            if 0 < (seen := loaded.handed_over(side)) < (all_of_them := layer.num_experts):
                logger.warning(
                    "%s: this rank was handed the activation scales of %d experts of %d, so its logits depend on the"
                    " number of ranks",
                    loaded.bank,
                    seen,
                    all_of_them,
                )
    return result


def _reads_files() -> bool:
    from sglang.srt.runtime_context import get_server_args

    form = getattr(get_server_args(), "load_format", "auto")
    return str(getattr(form, "value", form)) in FROM_FILES


def _refuse_unfilled(loaded: LoadedExperts, static: bool) -> None:
    missing = list(loaded.unfilled(static))
    if not missing:
        return
    scales = [name for name in missing if name.endswith(".input_scale")]
    if len(scales) == len(missing):
        remedy = (
            "SGLang would take 1.0 and clip everything beyond 448. If none were meant to be there, set"
            ' "moe_activation_scheme": "dynamic" in quantization_config of config.json'
        )
    else:
        remedy = (
            "SGLang would compute with whatever the memory held; the checkpoint is incomplete, or names them otherwise"
        )
    raise ValueError(f"the checkpoint did not fill {some_of(missing)}. {remedy}")


def selftest(situation: Situation) -> None:
    """The config made from this checkpoint's block has its ignore list and its scheme. Raises: AssertionError."""
    from importlib import import_module

    module, _, name = CONFIG.rpartition(".")
    block = {**situation.quantization_config, "quant_method": "w4afp8"}
    made = getattr(import_module(module), name).from_config(block)
    assert made.ignored_layers == listed(block), "from_config dropped entries of the ignore list"
    assert made.moe_activation_scheme == block.get("moe_activation_scheme", "static"), "from_config dropped the scheme"
    for entry in made.ignored_layers[:100]:
        if not entry.startswith("re:") and not any(letter in entry for letter in "*?["):
            assert made.truecast_ignored.names(entry), f"{entry} is in the ignore list and not ignored"


FIX = Fix(
    name="w4afp8-config",
    summary="W4AFP8 reads its ignore list and activation scheme, and notices expert tensors that were not loaded",
    versions=("0.5.17", "0.5.24"),
    need=need,
    faulty=faulty,
    hooks=hooks,
    selftest=selftest,
    settings={},
)
