"""Findings about files, headers and the index, and about parts of packed matrices that do not fit together."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from truecast.checkpoint.files import connect
from truecast.checkpoint.header import TensorInfo, alignment_of
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.layouts.base import Matrix
from truecast.verify.check.findings import Collector, Place

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


def header_finding(found: Collector, location: str, error: InputError) -> None:
    """Turn one fault that opening the checkpoint reported into a finding."""
    tensor, separator, file = error.where.partition(f" in {location}")
    if not separator:
        tensor, file = "", error.where.removeprefix(location)
    file = file.lstrip("/")
    place = Place(file=file, tensor=error.tensor or tensor or None)
    found.add(error.code or "header-invalid", place, error.problem, remedy=error.fix or None)


def check_shards(found: Collector, checkpoint: Checkpoint) -> None:
    """Metadata of each shard, alignment of each tensor, the index's total size, pickles beside the weights."""
    for name, metadata in checkpoint.shard_metadata.items():
        if metadata.get("format") != "pt":
            says = f"says format={metadata['format']!r}" if "format" in metadata else "does not say format=pt"
            found.add("format-metadata", Place(file=name), f"the header's __metadata__ {says}")
    for tensor in checkpoint.tensors.values():
        if tensor.start % alignment_of(tensor.dtype):
            found.add(
                "offset-unaligned",
                Place(file=tensor.file, tensor=tensor.name),
                f"{tensor.dtype} starts at byte {tensor.start}, no multiple of {alignment_of(tensor.dtype)}",
            )
    _check_total_size(found, checkpoint)
    for name in _neighbours(checkpoint):
        if name.endswith(_PICKLES):
            found.add("pickle-file", Place(file=name), "is a pickle by its name; it was not opened")
    if checkpoint.config.get("auto_map"):
        code = sorted(n for n in checkpoint.auxiliary if n.endswith(".py"))
        listed = ", ".join(code[:5]) + (f" and {len(code) - 5} more" if len(code) > 5 else "")
        found.add(
            "remote-code",
            Place(file="config.json"),
            f"auto_map points to Python code; in the folder: {listed or 'none'}",
        )


def _check_total_size(found: Collector, checkpoint: Checkpoint) -> None:
    if checkpoint.index is None or {*checkpoint.index["weight_map"].values()} - checkpoint.shards.keys():
        return  # with a shard missing or broken the true size is not known
    metadata = checkpoint.index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if size != checkpoint.total_bytes:
        says = "is absent" if size is None else f"is {size}"
        found.add(
            "index-total-size",
            Place(file="model.safetensors.index.json"),
            f"metadata.total_size {says}, the tensors take {checkpoint.total_bytes} bytes",
        )


def _neighbours(checkpoint: Checkpoint) -> list[str]:
    """Names of the files in the checkpoint's folder; none for a checkpoint that is a single file."""
    if checkpoint.local_path is not None:
        path = checkpoint.local_path
        return sorted(e.name for e in os.scandir(path) if e.is_file()) if path.is_dir() else []
    if checkpoint.location.endswith(".safetensors"):
        return []
    filesystem, root = connect(checkpoint.location)
    return sorted(str(e["name"]).rsplit("/", 1)[-1] for e in filesystem.ls(root, detail=True) if e["type"] == "file")


_CODES = (".weight_packed", ".weight", ".qweight", "_blocks", "")
_BLOCK_SCALES = (".weight_scale", ".scale", "_scales", "_weight_scale")
_GLOBAL_SCALES = (".weight_global_scale", ".weight_scale_2", "_weight_scale_2")
_FLOAT_SCALES = ("BF16", "F16", "F32")
_OTHER_SCALES = (".weight_scale_inv", ".scales", ".qzeros", ".absmax", ".weight_scale_inverse")


def part_finding(found: Collector, tensors: Mapping[str, TensorInfo], error: InputError) -> None:
    """Turn one fault that recognising the layouts reported into a finding."""
    name = error.where.rpartition(" in ")[0]
    tensor = tensors.get(name) or next(t for t in tensors.values() if t.where == error.where)
    place = Place(file=tensor.file, tensor=tensor.name)
    if error.code:
        found.add(error.code, place, error.problem)
    else:
        rule, message = _why_unmatched(tensor, tensors)
        found.add(rule, place, message or error.problem)


def _why_unmatched(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> tuple[str, str]:
    """Which part of a packed tensor is absent or of the wrong shape: id and message (empty: the layouts' own words)."""
    suffix = next(s for s in _CODES if tensor.name.endswith(s))
    stem = tensor.name.removesuffix(suffix)
    inverse = tensors.get(stem + ".weight_scale_inv")
    if inverse is not None and inverse.dtype in _FLOAT_SCALES and tensor.dtype in ("I8", "F8_E4M3"):
        return "scale-shape", ""
    if tensor.dtype == "I32" and suffix == ".weight_packed":
        return ("packed-unknown" if stem + ".weight_scale" in tensors else "scale-missing"), ""
    if tensor.dtype not in ("U8", "I8") or any(stem + s in tensors for s in _OTHER_SCALES):
        return "packed-unknown", ""
    scale = next((tensors[stem + s] for s in _BLOCK_SCALES if stem + s in tensors), None)
    if scale is None:
        return "scale-missing", ""
    columns = tensor.shape[-1] * 2 if suffix != "_blocks" else tensor.shape[-1] * tensor.shape[-2] * 2
    group = 16 if scale.dtype == "F8_E4M3" else 32
    lead = tensor.shape[:2] if suffix == "_blocks" else tensor.shape[:-1]
    if scale.dtype not in ("F8_E4M3", "U8", "F8_E8M0"):
        return "packed-unknown", ""
    if scale.shape != (*lead, columns // group):
        wanted = [*lead, columns // group]
        return "scale-shape", (
            f"its {scale.dtype} scale {scale.name} has shape {list(scale.shape)}; codes {list(tensor.shape)} in blocks"
            f" of {group} want {wanted}"
        )
    if group == 16:
        present = next((tensors[stem + s] for s in _GLOBAL_SCALES if stem + s in tensors), None)
        if present is None:
            return "global-scale-missing", "NVFP4 codes and block scales, but no global scale (F32 scalar) beside them"
        if present.dtype != "F32" or present.shape not in ((), (1,)):
            return "scale-shape", f"its global scale is {present.dtype} {list(present.shape)}, not an F32 scalar"
    return "packed-unknown", ""


_EXPERT = re.compile(r"(.*\.experts)\.(\d{1,9})\.(.+)")  # a longer number is no expert's
_ABSENT_LISTED = 20


def check_banks(found: Collector, matrices: Iterable[Matrix], plain: Iterable[str]) -> None:
    """Every expert of a bank has the same matrices, numbered from 0 without a gap, and all of them are quantized."""
    banks: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for matrix in matrices:
        if match := _EXPERT.fullmatch(matrix.name):
            banks[match[1]][int(match[2])].add(match[3])
    half: dict[str, list[str]] = defaultdict(list)
    for module in plain:
        if (match := _EXPERT.fullmatch(module)) and match[1] in banks:
            half[match[1]].append(module)
    for bank, experts in banks.items():
        if bank in half:
            some = half[bank]
            found.add(
                "bank-incomplete",
                Place(module=bank),
                f"{len(some)} of its matrices are not quantized, such as {some[0]}",
            )
            continue
        leaves = set().union(*experts.values())
        size = max(experts) + 1
        absent = size * len(leaves) - sum(len(held) for held in experts.values())
        if absent:
            listed = list(islice(_absent(experts, leaves), _ABSENT_LISTED))
            more = f" and {absent - len(listed)} more" if absent > len(listed) else ""
            message = f"{absent} matrices of its {size} experts are absent: {', '.join(listed)}{more}"
            found.add("bank-incomplete", Place(module=bank), message)


def _absent(experts: Mapping[int, set[str]], leaves: set[str]) -> Iterator[str]:
    """The matrices that a bank lacks. Lazy: a single tensor may claim to be expert 999,999,999."""
    for expert in range(max(experts) + 1):
        held = experts.get(expert, set())
        if len(held) < len(leaves):
            yield from (f"{expert}.{leaf}" for leaf in sorted(leaves - held))
