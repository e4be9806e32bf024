"""Findings about ``quantization_config``: where it stands, whether its copies agree, whether it fits the tensors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from truecast.checkpoint.source import CONFIG, Checkpoint
from truecast.layouts import LAYOUTS
from truecast.layouts.base import group_size
from truecast.verify.check.findings import Collector, Place

HF_QUANT = "hf_quant_config.json"

_METHODS = {
    "nvfp4-modelopt": ("modelopt", "modelopt_fp4", "modelopt_mixed", "fp8"),
    "nvfp4-modelopt-stacked": ("modelopt", "modelopt_fp4", "modelopt_mixed"),
    "nvfp4-compressed-tensors": ("compressed-tensors",),
    "mxfp4-compressed-tensors": ("compressed-tensors",),
    "mxfp4-gpt-oss": ("mxfp4",),
    "w4afp8-sglang": ("w4afp8",),
    "w4afp8-compressed-tensors": ("compressed-tensors",),
    "fp8-deepseek": ("fp8", "w4afp8", "modelopt_mixed"),
    "fp8-compressed-tensors": ("compressed-tensors",),
    "mxfp4-deepseek": ("fp8", "mxfp4", "deepseek_v4_fp8"),
}
"""Layout -> values of ``quant_method`` whose loaders read it."""


_PACKINGS = {"w4afp8": "pack-quantized", "fp8": "float-quantized"}
"""``format`` of compressed-tensors where it is not the name of ours and ``-pack-quantized``."""

_BLOCK = [128, 128]
IGNORE_METHODS = ("w4afp8", "fp8")
"""Values of ``quant_method`` whose readers take a list of names under ``ignored_layers``."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The places where a checkpoint may describe its quantization; each None where absent."""

    top: dict[str, Any] | None
    nested: dict[str, Any] | None
    hf_quant: dict[str, Any] | None
    """``quantization`` of hf_quant_config.json."""

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The one that engines read."""
        return next((b for b in (self.top, self.nested, self.hf_quant) if b is not None), None)

    @property
    def file(self) -> str:
        """The file that holds it."""
        return HF_QUANT if self.top is None and self.nested is None and self.hf_quant is not None else CONFIG


def find_blocks(found: Collector, checkpoint: Checkpoint) -> Blocks:
    """Read all three places; a hf_quant_config.json that is no JSON object of objects is a finding."""
    config = checkpoint.config
    top = _object(config.get("quantization_config")) or _object(config.get("compression_config"))
    inner = [_object(value.get("quantization_config")) for value in config.values() if isinstance(value, dict)]
    nested = next((block for block in inner if block), None)
    hf_quant = None
    if HF_QUANT in checkpoint.auxiliary:
        try:
            document = json.loads(checkpoint.read_small(HF_QUANT))
            hf_quant = _object(document.get("quantization")) if isinstance(document, dict) else None
        except (ValueError, RecursionError):
            pass
        if hf_quant is None:
            found.add("config-contradiction", Place(file=HF_QUANT), "holds no `quantization` object")
    return Blocks(top, nested, hf_quant)


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) and value else None


def exclude_lists(block: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The lists that SGLang and vLLM read from a block.

    A flat block (with ``quant_method`` or a top-level ``quant_algo`` and ``ignore``) by ``ignore`` first, that of
    hf_quant_config.json by ``exclude_modules``.
    """
    ignore, exclude = _strings(block.get("ignore")), _strings(block.get("exclude_modules"))
    return (ignore if "ignore" in block else exclude), (ignore or exclude)


def ignored_lists(block: Mapping[str, Any]) -> list[list[str]]:
    """The lists of ignored modules that a block has, the one that engines prefer first."""
    return [_strings(block[key]) for key in ("ignored_layers", "modules_to_not_convert") if block.get(key) is not None]


def _strings(value: Any) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def weight_groups(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The schemes in ``config_groups``, malformed ones left out."""
    groups = block.get("config_groups")
    return [g for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []


def declares_activations(block: Mapping[str, Any] | None) -> bool:
    """Does the block make engines quantize activations to NVFP4, with a scale from the files?

    vLLM 0.33 takes a ModelOpt block for weight-only where ``input_activations`` is null in every group; not so the
    hybrid of FP8 and NVFP4 experts, whose config (models/deepseek_v41/quant_config.py) never looks at the groups.
    """
    if block is None:
        return False
    if block.get("quant_method") == "fp8" and block.get("moe_quant_algo") is not None:
        return str(block["moe_quant_algo"]).upper() == "NVFP4"
    groups = weight_groups(block)
    if groups and all(group.get("input_activations") is None for group in groups):
        return False
    algo = str(block.get("quant_algo") or "").upper()
    return bool(groups) if not algo else algo in ("NVFP4", "NVFP4_AWQ")


def check_config(found: Collector, checkpoint: Checkpoint, blocks: Blocks, layouts: Iterable[str]) -> None:
    """Place, agreement and fit of the quantization blocks. ``layouts`` are those recognised in the tensors."""
    layouts = sorted(layouts)
    single_file = checkpoint.local_path is not None and checkpoint.local_path.is_file()
    if not checkpoint.config and not single_file:
        found.add("config-missing", Place(file=CONFIG), "the folder has no config.json")
    if layouts and (checkpoint.config or blocks.chosen):
        _check_place(found, blocks, layouts)
    _check_agreement(found, blocks)
    block = blocks.chosen
    if block is None:
        return
    place = Place(file=blocks.file)
    for layout in layouts:
        message = _method_fault(layout, block, from_hf_quant=blocks.file == HF_QUANT)
        if message:
            found.add("config-method", place, message)
    if not layouts and (claim := _claimed_format(block)):
        found.add("config-method", place, f"declares {claim}, but no tensor is packed so")
    for targets in (group.get("targets") for group in weight_groups(block)):
        if targets is not None and not (isinstance(targets, list) and all(isinstance(t, str) for t in targets)):
            found.add("config-method", place, f"the targets of a group are {targets!r}, no list of names")
    _check_group_size(found, place, block, layouts)
    _check_block_size(found, place, block, layouts)
    ignored = ignored_lists(block) if block.get("quant_method") in IGNORE_METHODS else []
    if len(ignored) == 2 and set(ignored[0]) != set(ignored[1]):
        message = f"ignored_layers and modules_to_not_convert differ: {_difference(*ignored)}"
        found.add("config-contradiction", place, message)


def _check_place(found: Collector, blocks: Blocks, layouts: list[str]) -> None:
    if blocks.top is not None:
        return
    modelopt = any(LAYOUTS[name].DIALECT == "modelopt" for name in layouts)
    if blocks.nested is not None:
        if modelopt:
            severity = "warning" if blocks.hf_quant else None  # SGLang falls back to the file
            found.add(
                "config-nested",
                Place(file=CONFIG),
                "quantization_config stands inside a nested config only",
                severity=severity,
            )
    elif blocks.hf_quant is not None:
        found.add("config-only-hf-quant", Place(file=HF_QUANT), "config.json has no quantization_config, this file has")
    else:
        named = ", ".join(layouts)
        found.add("config-quantization-missing", Place(file=CONFIG), f"the tensors are {named}; no config says so")


def _check_agreement(found: Collector, blocks: Blocks) -> None:
    config, hf_quant, place = blocks.top or blocks.nested, blocks.hf_quant, Place(file=CONFIG)
    if blocks.top and blocks.nested and blocks.top != blocks.nested:
        found.add("config-contradiction", place, "the nested quantization_config differs from the top-level one")
    if config is None:
        return
    ignore, exclude = config.get("ignore"), config.get("exclude_modules")
    if isinstance(ignore, list) and isinstance(exclude, list) and set(_strings(ignore)) != set(_strings(exclude)):
        found.add("config-contradiction", place, f"ignore and exclude_modules differ: {_difference(ignore, exclude)}")
    if hf_quant is None:
        return
    for key in ("quant_algo", "group_size", "kv_cache_quant_algo"):
        ours, theirs = config.get(key), hf_quant.get(key)
        if key in config and key in hf_quant and str(ours).upper() != str(theirs).upper():
            found.add("config-contradiction", place, f"{key} is {ours!r} here and {theirs!r} in {HF_QUANT}")
    ours_list, theirs_list = exclude_lists(config)[1], _strings(hf_quant.get("exclude_modules"))
    if set(ours_list) != set(theirs_list):
        message = f"the exclude list differs from that of {HF_QUANT}: {_difference(ours_list, theirs_list)}"
        found.add("config-contradiction", place, message)


def _difference(one: list[Any], other: list[Any]) -> str:
    first, second = set(_strings(one)), set(_strings(other))
    only = [f"only the first has {name}" for name in sorted(first - second)]
    only += [f"only the second has {name}" for name in sorted(second - first)]
    return "; ".join(only[:3]) + (f"; and {len(only) - 3} more" if len(only) > 3 else "")


def _method_fault(layout: str, block: Mapping[str, Any], *, from_hf_quant: bool) -> str | None:
    """Why a loader chosen by this block would not read this layout; None if it would."""
    method = block.get("quant_method")
    if method is None and from_hf_quant:
        method = "modelopt"
    if method not in _METHODS[layout]:
        return f"quant_method is {method!r}, the tensors are {layout} (wants {' or '.join(_METHODS[layout])})"
    if layout == "nvfp4-modelopt" and method == "fp8":
        if str(block.get("moe_quant_algo")).upper() != "NVFP4":
            return (
                f"quant_method fp8 with NVFP4 experts wants moe_quant_algo NVFP4, not {block.get('moe_quant_algo')!r}"
            )
    elif layout.startswith("nvfp4-modelopt"):
        algo = str(block.get("quant_algo")).upper()
        if "NVFP4" not in algo and algo != "MIXED_PRECISION":
            return f"quant_algo is {block.get('quant_algo')!r}, the tensors are NVFP4"
    elif method == "compressed-tensors":
        kind = LAYOUTS[layout].FORMAT
        wanted = _PACKINGS.get(kind, f"{kind}-pack-quantized")
        said = [block.get("format"), *(group.get("format") for group in weight_groups(block))]
        formats = {str(value) for value in said if value is not None}
        if (formats and wanted not in formats) or not all(isinstance(value, str | None) for value in said):
            return f"format is {', '.join(sorted(formats))}, the tensors are {wanted}"
        if kind in _PACKINGS and (schemes := weight_groups(block)) and not any(_fits(kind, g) for g in schemes):
            return f"no group describes weights as {'4-bit int' if kind == 'w4afp8' else '8-bit float'}, as {layout} is"
    return None


def _fits(kind: str, group: Mapping[str, Any]) -> bool:
    weights = group.get("weights")
    if not isinstance(weights, dict) or weights.get("symmetric") is False:
        return False
    return (weights.get("num_bits"), weights.get("type")) == ((4, "int") if kind == "w4afp8" else (8, "float"))


def _claimed_format(block: Mapping[str, Any]) -> str | None:
    algo, packing = str(block.get("quant_algo")).upper(), str(block.get("format"))
    if algo in ("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ") or str(block.get("moe_quant_algo")).upper() == "NVFP4":
        return "NVFP4"
    if block.get("quant_method") == "w4afp8":
        return "W4AFP8"
    return packing if packing in ("nvfp4-pack-quantized", "mxfp4-pack-quantized") else None


def _check_group_size(found: Collector, place: Place, block: Mapping[str, Any], layouts: list[str]) -> None:
    legal = {group_size(LAYOUTS[name].FORMAT) for name in layouts if LAYOUTS[name].FORMAT != "fp8"}
    if not legal or block.get("quant_method") in ("mxfp4", "deepseek_v4_fp8"):
        return
    said: list[tuple[str, Any]] = []
    if block.get("group_size") is not None:
        said.append(("group_size", block["group_size"]))
    for group in weight_groups(block):
        weights = group.get("weights")
        if isinstance(weights, dict) and weights.get("num_bits") == 4 and weights.get("group_size") is not None:
            said.append(("config_groups weights group_size", weights["group_size"]))
    for key, value in said:
        if not any(value == size for size in legal):  # it may be a list
            sizes = " or ".join(str(size) for size in sorted(legal))
            found.add(
                "config-group-size", place, f"{key} is {value!r}; the tensors have one scale for {sizes} elements"
            )


def _check_block_size(found: Collector, place: Place, block: Mapping[str, Any], layouts: list[str]) -> None:
    """FP8 by blocks: without a size engines take one scale for the whole tensor. W4AFP8 has it built in."""
    size = block.get("weight_block_size")
    if "fp8-deepseek" not in layouts or (size is None and block.get("quant_method") != "fp8"):
        return
    if size != _BLOCK:
        found.add(
            "config-group-size",
            place,
            f"weight_block_size is {size!r}; the tensors have one scale for 128 x 128 elements",
        )
