"""The small files: config.json, hf_quant_config.json and the index, derived from the shards as written."""

from __future__ import annotations

import copy
import json
from typing import Any

from truecast import __version__
from truecast.checkpoint.index import INDEX_FILE, encode_index
from truecast.checkpoint.source import CONFIG, Checkpoint
from truecast.convert.exclude import as_patterns, bank_of, exclude_globs, exclude_names, tied_heads, unquantized_modules
from truecast.convert.plan import Plan
from truecast.families.base import aliases
from truecast.layouts import fp8_deepseek, nvfp4_modelopt
from truecast.layouts.recognise import recognise

_WITHOUT_GLOBS = {("w4afp8", "sglang"), ("fp8", "deepseek")}  # readers of these compare whole names
_EXPERT_DTYPES = {"bf16": "bf16", "w4afp8": "int4", "fp8": "fp8"}
"""What DeepSeek-V4's config says of its experts instead of ``fp4``."""
HF_QUANT_CONFIG = "hf_quant_config.json"
GENERATED = {CONFIG, HF_QUANT_CONFIG, "README.md"}
"""Files of the source that are replaced, not copied."""


def small_files(plan: Plan, written: Checkpoint) -> dict[str, bytes]:
    """Name -> content of every generated file but the manifest and the model card."""
    files: dict[str, bytes] = {}
    if CONFIG in plan.source.auxiliary:
        config, block = _config(plan, written)
        files[CONFIG] = _json(config)
        if block and plan.layout.DIALECT == "modelopt":
            files[HF_QUANT_CONFIG] = _json(nvfp4_modelopt.hf_quant_config(block, __version__))
    if plan.source.index is not None or len(plan.shards) > 1:
        files[INDEX_FILE] = encode_index(written.tensors)
    return files


def _config(plan: Plan, written: Checkpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    config = copy.deepcopy(plan.source.config)
    before = config.pop("quantization_config", None) or {}
    for nested in config.values():
        if isinstance(nested, dict):
            before = nested.pop("quantization_config", None) or before
    block = _quantization_config(plan, written, before)
    if plan.layout.FORMAT in _EXPERT_DTYPES and config.get("expert_dtype") == "fp4":
        config["expert_dtype"] = _EXPERT_DTYPES[plan.layout.FORMAT]
    if block:
        config["quantization_config"] = block
    return config, block


def _quantization_config(plan: Plan, written: Checkpoint, before: dict[str, Any]) -> dict[str, Any]:
    contents = recognise(written.tensors)
    ours = {plan.layout.NAME, fp8_deepseek.NAME} if plan.layout.DIALECT == "sglang" else {plan.layout.NAME}
    cast = [m.name for m in contents.matrices.values() if m.layout in ours]
    kept = sorted({bank_of(m.name) for m in contents.matrices.values() if m.layout not in ours})
    whole_names = (plan.layout.FORMAT, plan.layout.DIALECT) in _WITHOUT_GLOBS
    # to these readers what is not named is FP8, so FP8 under scales of another name is not named either
    passed = [t for t in contents.plain.values() if not (whole_names and t.dtype == "F8_E4M3")]
    plain = unquantized_modules(passed)
    left = [*plain, *tied_heads([*plain, *contents.matrices]), *kept]
    if whole_names:
        return plan.layout.quantization_config(exclude_names(plan.family, left), plan.activations)
    globs = exclude_globs(plan.family, cast, left)
    if before.get("quant_method") == "fp8":  # FP8 modules stay what they are, so their description stays too
        if plan.layout.DIALECT != "modelopt":
            has_fp8 = any(t.dtype == "F8_E4M3" for t in written.tensors.values())
            keeps = plan.layout.DIALECT == "deepseek" or (plan.layout.DIALECT == "bf16" and has_fp8)
            return before if keeps else _plain_block(plan, globs)
        banks = sorted({alias for name in {bank_of(m) for m in cast} for alias in aliases(plan.family, name)[:1]})
        return nvfp4_modelopt.hybrid_config(before, banks, globs, plan.activations)
    return _plain_block(plan, globs)


def _plain_block(plan: Plan, globs: list[str]) -> dict[str, Any]:
    patterns = as_patterns(globs) if plan.layout.DIALECT == "compressed-tensors" else globs
    return plan.layout.quantization_config(patterns, plan.activations)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
