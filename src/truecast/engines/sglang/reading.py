"""A :class:`~.situation.Situation` from SGLang's ``ModelRunner``, just before it loads its model.

The arguments lie in namespaces that move from release to release (0.5.17 keeps them as plain fields with a namespace as
an annotation, 0.5.20 and 0.5.23 in classes of their own). The one thing that all three have is ``runtime_context`` with
what was decided, published when the process started.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from truecast.engines.sglang.situation import Situation


def version() -> str:
    """The installed SGLang's version; ``unknown`` where it does not tell."""
    try:
        if found := metadata.version("sglang"):
            return found
    except (metadata.PackageNotFoundError, KeyError):
        pass  # not installed by pip, or by half
    try:
        from sglang.version import __version__
    except ImportError:
        return "unknown"
    return str(__version__)


def situation(runner: Any) -> Situation:
    """What ``runner`` is about to load. Raises: AttributeError, ImportError, ValueError where SGLang has changed."""
    from sglang.srt.layers.moe.utils import get_moe_runner_backend
    from sglang.srt.layers.quantization.fp4_utils import get_fp4_gemm_runner_backend
    from sglang.srt.runtime_context import get_exec, get_model, get_parallel, get_schedule

    model = runner.model_config
    moe, kernel = get_exec().moe, get_exec().kernel
    parallel = get_parallel()
    return Situation(
        version=version(),
        model=str(model.model_path),
        quantization=model.quantization,
        config=_mapping(model.hf_text_config),
        quantization_config=_quantization(model),
        moe_backend=_name(get_moe_runner_backend()),
        linear_backend=_name(get_fp4_gemm_runner_backend()),
        prefill_attention=kernel.prefill_attention_backend or kernel.attention_backend or "",
        decode_attention=kernel.decode_attention_backend or kernel.attention_backend or "",
        kv_cache_dtype=get_model().kv_cache_dtype,
        page_size=get_schedule().page_size or 1,
        capability=_capability(runner),
        tp_rank=parallel.tp_rank,
        tp_size=parallel.tp_size,
        ep_rank=parallel.moe_ep_rank,
        ep_size=parallel.moe_ep_size,
        expert_places_fixed=not moe.enable_eplb
        and not moe.ep_num_redundant_experts
        and moe.init_expert_location == "trivial",
        is_draft=bool(runner.is_draft_worker),
    )


def _mapping(config: Any) -> Mapping[str, Any]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return config
    return dict(config.to_dict())


def _quantization(model: Any) -> Mapping[str, Any]:
    """What SGLang reads, in its order: config.json alone where it has a block, even an empty one.

    The one exception is ``modelopt_mixed``: where config.json lacks its list of layers or what the KV cache is,
    ``hf_quant_config.json`` is read instead, and the block in config.json not at all.
    """
    config = model.hf_config
    for holder, name in (
        (config, "quantization_config"),
        (getattr(config, "text_config", None), "quantization_config"),
        (config, "compression_config"),
    ):
        found = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
        if found is not None:
            block = _mapping(found)
            if model.quantization != "modelopt_mixed" or _is_complete(block):
                return block
            break
    beside = Path(model.model_path) / "hf_quant_config.json"
    if beside.is_file():
        block = json.loads(beside.read_text())
        return block if isinstance(block, dict) else {}
    return {}


def _is_complete(block: Mapping[str, Any]) -> bool:
    return "quantized_layers" in block and ("kv_cache_quant_algo" in block or "kv_cache_scheme" in block)


def _name(backend: Any) -> str:
    return str(getattr(backend, "value", backend))


def _capability(runner: Any) -> tuple[int, int] | None:
    if runner.device != "cuda":
        return None
    import torch

    major, minor = torch.cuda.get_device_capability(runner.gpu_id)
    return major, minor
