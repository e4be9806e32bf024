"""SGLang's own Kimi-K3, cut out of the released wheel: built and loaded on a CPU, never run.

Real, from the wheel's source: every linear layer and parameter class, the quantization methods, the expert bank, and
the model from the text model down to its projections, with their constructors and weight loaders. Stood in for: norms
and embeddings (a weight each), and everything that only a forward pass or a GPU needs, which becomes ``Absent``.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import CodeType, SimpleNamespace
from typing import Any

from tests.engines.conftest import text

ROOT = "sglang/srt/"
SOURCES = {
    "utils/common.py": {"set_weight_attrs", "add_prefix", "make_layers"},
    "distributed/utils.py": {"divide", "ensure_divisibility"},
    "layers/utils/common.py": {"get_layer_id", "pad_or_narrow_weight", "PPMissingLayer"},
    "layers/parameter.py": {
        "_dtype_rank", "copy_with_check", "BasevLLMParameter", "_ColumnvLLMParameter", "RowvLLMParameter",
        "ModelWeightParameter", "BlockQuantScaleParameter", "PerTensorScaleParameter",
    },
    "layers/linear.py": {
        "WEIGHT_LOADER_V2_SUPPORTED", "LinearBase", "ReplicatedLinear", "ColumnParallelLinear",
        "MergedColumnParallelLinear", "RowParallelLinear",
    },
    "layers/quantization/base_config.py": {
        "QuantizeMethodBase", "LinearMethodBase", "FusedMoEMethodBase", "QuantizationConfig",
    },
    "layers/quantization/utils.py": {"_module_path_match", "_FALLBACK_FUSED_SHARDS", "is_layer_skipped"},
    "layers/quantization/unquant.py": {"UnquantizedLinearMethod"},
    "layers/quantization/fp8.py": {"Fp8LinearMethod"},
    "layers/quantization/w4afp8.py": {
        "ACTIVATION_SCHEMES", "W4AFp8Config", "W4AFp8MoEMethod", "interleave_scales",
    },
    "layers/moe/fused_moe_triton/layer.py": {
        "FusedMoeWeightScaleSupported", "FusedMoE", "_maybe_copy_weight_view_before_h2d",
    },
    "layers/moe/ep_moe/layer.py": {"get_moe_impl_class"},
    "model_loader/weight_utils.py": {"default_weight_loader", "sharded_weight_loader", "maybe_remap_kv_scale_name"},
    "models/transformers.py": {"maybe_prefix"},
    "models/utils.py": {"WeightsMapper"},
    "models/deepseek_v2.py": {"MoEGate", "DeepseekV2AttentionMLA"},
    "configs/kimi_linear.py": {"KimiLinearConfig"},
    "models/kimi_k3.py": {
        "_cdiv", "_uses_modelopt_fp8_pb_wo", "_uses_split_gguf_kv_b", "_maybe_map_fp8_pb_scale_name",
        "_get_k3_dense_weight", "_merge_weights_as_views", "_o_proj_takes_output", "KimiK3MLP", "KimiK3MoE",
        "KimiK3DeltaAttention", "KimiK3MLAAttention", "KimiK3DecoderLayer", "KimiK3LinearModel",
        "KimiK3LinearForCausalLM", "KimiK3ForConditionalGeneration",
    },
}  # fmt: skip


LAYERS = {
    path: names for path, names in SOURCES.items() if path.startswith(("layers/", "utils/", "distributed/"))
}  # fmt: skip
"""Linear layers, expert banks and quantization alone, which are there under these names in 0.5.17 to 0.5.23."""


class Absent:
    """What is not there: falsy, and whatever is asked of it is not there either. Nothing is an instance of it."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, *args: object, **kwargs: object) -> Absent:
        return self

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __rmul__(self, other: object) -> Absent:
        return self

    def __instancecheck__(self, instance: object) -> bool:
        return False


class _Prepared(ast.NodeTransformer):
    """Drop the imports of SGLang's own modules, and base classes that are not there."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        own = (node.module or "").split(".")[0] == "sglang"
        return ast.copy_location(ast.Pass(), node) if own else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        names = {base: base.id for base in node.bases if isinstance(base, ast.Name)}
        node.bases = [b for b in node.bases if not isinstance(self.scope.get(names.get(b, "")), Absent)]
        self.generic_visit(node)
        return node


def _cut(wheel: zipfile.ZipFile, path: str, names: set[str]) -> list[ast.stmt]:
    """The definitions of these names at the top level of one source file, to be changed by the caller."""
    found: list[ast.stmt] = pickle.loads(_pickled(str(wheel.filename), path, frozenset(names)))
    return found


@cache
def _pickled(wheel: str, path: str, names: frozenset[str]) -> bytes:
    """Parsed once a process, for a test that wants a fresh copy: a copy takes a hundredth of the time."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(text(wheel, path)).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        name = target.id if isinstance(target, ast.Name) else getattr(node, "name", None)
        if name in names:
            found.setdefault(name, node)
    assert set(found) == names, f"{path} no longer defines {names - set(found)}"
    return pickle.dumps(list(found.values()))


def _imports(scope: dict[str, Any]) -> None:
    exec(
        "import logging, os, re, inspect, torch\n"
        "from abc import ABC, abstractmethod\n"
        "from contextlib import contextmanager\n"
        "from dataclasses import dataclass, field\n"
        "from enum import Enum\n"
        "from functools import cached_property\n"
        "from types import MappingProxyType, SimpleNamespace\n"
        "from typing import Any, Dict, List, Mapping, Optional, Tuple, Union\n"
        "from torch import nn\n"
        "from torch.nn import Module, Parameter\n"
        "from torch.nn.parameter import UninitializedParameter\n"
        "logger = logging.getLogger('sglang')\n",
        scope,
    )


def _stand_ins(scope: dict[str, Any]) -> None:
    torch, nn = scope["torch"], scope["nn"]

    class Weight(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, *shape: int, **_: object) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)

    class Norm(Weight):
        def __init__(self, size: int, **_: object) -> None:
            super().__init__(size)

    class Float32Norm(Weight):
        def __init__(self, size: int, **_: object) -> None:
            super().__init__(size)
            self.weight.data = self.weight.data.float()

    class Forward:
        def nothing(self) -> None:
            return None

        init_mha_forward = init_mla_forward = nothing
        init_mla_fused_rope_rocm_forward = init_mla_fused_rope_cpu_forward = nothing

    class Config:
        def __init__(self, **values: object) -> None:
            self.__dict__.update(values)

    scope |= {
        "RMSNorm": Norm,
        "FusedRMSNormGated": Float32Norm,
        "VocabParallelEmbedding": Weight,
        "ParallelLMHead": Weight,
        "DeepseekMHAForwardMixin": Forward,
        "PretrainedConfig": Config,
        "MoeRunnerConfig": SimpleNamespace,
        "create_kt_config_from_server_args": lambda *_: None,
        "get_global_expert_location_metadata": lambda: None,
        "get_offloader": lambda: SimpleNamespace(wrap_modules=list),
        "get_pp_indices": lambda layers, *_: (0, layers),
        "get_pp_group": lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True, rank_in_group=0, world_size=1),
        "create_moe_dispatcher": lambda *_, **__: SimpleNamespace(set_quant_config=lambda _: None),
        "get_embedding_tp_kwargs": dict,
        "get_bool_env_var": lambda *_: False,
    }


_COMPILED: dict[tuple[str, ...], tuple[set[str], list[CodeType]]] = {}
"""By wheel and source files: to parse them takes seconds."""


def _compiled(
    wheel: zipfile.ZipFile, sources: Mapping[str, set[str]], scope: Mapping[str, Any]
) -> tuple[set[str], list[CodeType]]:
    """(names that are not there, code of each source file)."""
    parts = {path: _cut(wheel, ROOT + path, names) for path, names in sources.items()}
    nodes = (n for part in parts.values() for node in part for n in ast.walk(node))
    mentioned = {node.id for node in nodes if isinstance(node, ast.Name)}
    absent = mentioned - {*scope, *dir(builtins), *(name for names in sources.values() for name in names)}
    code = []
    for path, part in parts.items():
        module = ast.Module([_Prepared({**scope, **dict.fromkeys(absent, Absent())}).visit(node) for node in part], [])
        flags = __future__.annotations.compiler_flag
        code.append(compile(ast.fix_missing_locations(module), path, "exec", flags=flags, dont_inherit=True))
    return absent, code


class Runtime:
    """The wheel's classes in one namespace, on one rank of ``gpus`` GPUs, of which every ``tp`` split an expert."""

    def __init__(self, wheel: zipfile.ZipFile, sources: Mapping[str, set[str]] = SOURCES) -> None:
        scope: dict[str, Any] = {"__name__": __name__}
        _imports(scope)
        _stand_ins(scope)
        key = (str(wheel.filename), *sources)
        if key not in _COMPILED:
            _COMPILED[key] = _compiled(wheel, sources, scope)
        absent, code = _COMPILED[key]
        scope |= {name: Absent() for name in absent}
        for part in code:
            exec(part, scope)
        if "KimiK3DeltaAttention" in scope:
            scope["KimiK3DeltaAttention"]._prepare_fused_decode = lambda _: None  # lays out buffers for a GPU's kernel
        self.scope = scope
        self.on_rank(0, gpus=1, tp=1)

    def __getattr__(self, name: str) -> Any:
        return self.scope[name]

    def on_rank(self, rank: int, gpus: int, tp: int) -> None:
        """From now on, what is built belongs to this rank."""
        sizes: dict[str, object] = dict.fromkeys(
            ("dcp_enabled", "enable_dense_mlp_attn_tp", "enable_shared_experts_attn_tp", "enable_dp_lm_head"), False
        )
        sizes |= {"tp_rank": rank, "tp_size": gpus, "attn_tp_rank": rank, "attn_tp_size": gpus}
        sizes |= {"moe_tp_rank": rank % tp, "moe_tp_size": tp, "moe_ep_rank": rank // tp, "moe_ep_size": gpus // tp}
        parallel = SimpleNamespace(**sizes, attn_tp_group=SimpleNamespace(world_size=gpus))
        self.scope["get_parallel"] = lambda: parallel

    def model(self, config: dict[str, Any], quantization: Any) -> Any:
        """The language model that SGLang builds for this ``config.json``, its parameters not yet loaded."""
        torch = self.scope["torch"]
        before, streams = torch.get_default_dtype(), torch.cuda.Stream
        torch.set_default_dtype(torch.bfloat16)
        torch.cuda.Stream = Absent()
        try:
            text = self.KimiLinearConfig(**config["text_config"])
            return self.KimiK3LinearForCausalLM(text, quantization, prefix="").requires_grad_(False)
        finally:
            torch.set_default_dtype(before)
            torch.cuda.Stream = streams

    def renamed(self, tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Checkpoint tensors under the names that the language model's loader is given; vision left out."""
        given: list[tuple[str, Any]] = []
        wrapper = SimpleNamespace(
            hf_to_sglang_mapper=self.KimiK3ForConditionalGeneration.hf_to_sglang_mapper,
            config=SimpleNamespace(language_only=True),
            language_model=SimpleNamespace(load_weights=given.extend),
        )
        self.KimiK3ForConditionalGeneration.load_weights(wrapper, tensors)
        return iter(given)
