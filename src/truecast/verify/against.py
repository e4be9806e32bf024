"""Re-proving a certificate: one checkpoint, either side, all of it or a few tensors by range reads."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truecast.checkpoint.files import ByteFile, LocalFile
from truecast.checkpoint.header import TensorInfo
from truecast.errors import InputError
from truecast.layouts import LAYOUTS
from truecast.layouts.base import View
from truecast.layouts.recognise import recognise
from truecast.verify.certificate import SCHEMA, bias_sha256, canonical_form, stored_sha256
from truecast.verify.reader import CHUNK_BYTES, open_files
from truecast.verify.report import Failures, Report
from truecast.verify.scaled import FORMATS, Scaled, load_scaled
from truecast.verify.stored import Packed, PlainRows, Read, Stored, load_bias, load_packed, odd_bias, open_bf16
from truecast.verify.tree import open_suspect

MAX_BYTES = 4 << 30
"""No certificate is larger: a sparse file of any size must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate's entries by name."""

    matrices: dict[str, dict[str, Any]]
    tensors: dict[str, dict[str, Any]]


def read_certificate(path: Path) -> Certificate:
    """Read a certificate. Raises: InputError if it is none."""
    try:
        document = json.loads(_read(path))
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema is {document['schema']!r}, not {SCHEMA}")
        matrices = _by_name(document["matrices"], _check_matrix_entry)
        tensors = _by_name(document["tensors"], _check_tensor_entry)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise InputError(f"is no certificate: {error!r}", where=str(path)) from None
    return Certificate(matrices, tensors)


def _read(path: Path) -> bytes:
    file = LocalFile(path)
    try:
        if file.size > MAX_BYTES:
            raise InputError(f"has {file.size} bytes, more than any certificate ({MAX_BYTES})", where=str(path))
        return file.read(0, file.size)
    finally:
        file.close()


def _by_name(entries: Any, check: Callable[[dict[str, Any]], None]) -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {}
    for entry in _typed(entries, list):
        check(_typed(entry, dict))
        name = _typed(entry["name"], str)
        if name in known:
            raise ValueError(f"two entries are named {name!r}")
        known[name] = entry
    return known


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} is no {kind.__name__}")
    return value


def _number(value: Any, least: int) -> None:
    if _typed(value, int) < least:
        raise ValueError(f"{value} is less than {least}")


def _check_tensor_entry(entry: dict[str, Any]) -> None:
    for key in ("sha256", "dtype"):
        _typed(entry[key], str)
    for size in _typed(entry["shape"], list):
        _number(size, 0)


def _check_matrix_entry(entry: dict[str, Any]) -> None:
    source, out = _typed(entry["source"], dict), _typed(entry["out"], dict)
    for side in (source, out):
        _typed(side["sha256"], str)
        if _typed(side["layout"], str) not in LAYOUTS:
            raise ValueError(f"layout {side['layout']!r} is unknown")
    for form in (entry["canonical"], out.get("canonical", entry["canonical"])):
        _typed(_typed(form, dict)["dtype"], str), _typed(form["sha256"], str)
    _number(entry["rows"], 1)
    _number(entry["cols"], 1)
    for owner, key in ((entry, "bias"), (out, "name"), (out, "tensor"), (out, "bias_tensor")):
        _typed(owner.get(key, ""), str)
    for key, least in (("entry", 0), ("row_start", 0), ("row_step", 1)):
        _number(out.get(key, least), least)
    _typed(out.get("transposed", False), bool)
    _typed(source.get("tensor", ""), str)
    for side in (source, out):
        if ("tensor" in side) != (LAYOUTS[side["layout"]].FORMAT == "bf16"):
            raise ValueError(f"layout {side['layout']} does not go with the place that is given")


def verify_against(
    location: str | os.PathLike[str], certificate: str | os.PathLike[str], tensors: Sequence[str] | None = None
) -> Report:
    """Prove that this checkpoint is a side of the certified pair, or say where not.

    ``tensors``: names of tensors, or of matrices (modules), to look at; only their bytes are read then (and the
    headers). ``None``: everything, and nothing may be there that the certificate does not know.

    Raises: InputError if there is nothing at ``location``, for a certificate that is none, or a name that neither the
    certificate nor the checkpoint knows.
    """
    known = read_certificate(Path(certificate))
    report = Report()
    failures = report.failures
    checkpoint = open_suspect(location, failures)
    contents = recognise(checkpoint.tensors, lambda e: failures.add("shape", e.problem, tensor=e.where))
    sides = {name: Stored.of(m) for name, m in contents.matrices.items()}
    here = {name: _find(entry, sides, checkpoint.tensors) for name, entry in known.matrices.items()}
    owners = _owners(here)
    wanted = _wanted(tensors, known, owners, os.fspath(location))
    report.counts.out_tensors = len(checkpoint.tensors)
    interleaved = any(stored is not None and stored.main.row_step != 1 for stored in here.values())
    with open_files(checkpoint.opener, interleaved) as (read, files):
        for name in sorted(wanted & known.matrices.keys()):
            _check_matrix(known.matrices[name], here[name], read, report)
        for name in sorted(wanted & known.tensors.keys()):
            _check_tensor(known.tensors[name], checkpoint.tensors.get(name), read, report)
        report.counts.bytes_read = sum(f.bytes_read for f in files.values())
    if tensors is None:
        for name in sorted(checkpoint.tensors.keys() - owners.keys() - known.tensors.keys()):
            failures.add("extra", "the certificate does not know it", file=checkpoint.tensors[name].file, tensor=name)
    return report


def _find(entry: dict[str, Any], sides: dict[str, Stored], tensors: dict[str, TensorInfo]) -> Stored | None:
    """Where a certified matrix lies in this checkpoint, in whichever of the two layouts."""
    for name in (entry["name"], entry["out"].get("name")):
        if name in sides:
            return sides[name]
    where = entry["source" if "tensor" in entry["source"] else "out"]
    weight = tensors.get(where.get("tensor", ""))
    if weight is None or weight.dtype != "BF16":
        return None
    view = View(
        weight, where.get("entry"), where.get("row_start", 0), where.get("row_step", 1), where.get("transposed", False)
    )
    if _shape(view) != (entry["rows"], entry["cols"]):
        return None
    parts = {"weight": view}
    bias = tensors.get(where.get("bias_tensor", ""))
    if bias is not None and bias.shape == (*weight.shape[: view.entry is not None], entry["rows"] * view.row_step):
        parts["bias"] = View(bias, view.entry, view.row_start, view.row_step)
    return Stored(entry["name"], where["layout"], entry["rows"], entry["cols"], parts, entry["name"])


def _shape(view: View) -> tuple[int, ...]:
    """Rows and columns of the matrix that a view of a BF16 tensor gives; something else if it gives none."""
    shape = view.tensor.shape
    if view.entry is not None:
        if not shape or view.entry >= shape[0]:
            return ()
        shape = shape[1:]
    if len(shape) != 2:
        return ()
    rows, cols = reversed(shape) if view.transposed else shape
    return len(range(view.row_start, rows, view.row_step)), cols


def _owners(here: dict[str, Stored | None]) -> dict[str, list[str]]:
    """Stored tensor -> the matrices that it holds parts of."""
    owners: dict[str, list[str]] = {}
    for name, stored in here.items():
        if stored is not None:
            for view in stored.parts.values():
                owners.setdefault(view.tensor.name, []).append(name)
    return owners


def _wanted(tensors: Iterable[str] | None, known: Certificate, owners: dict[str, list[str]], location: str) -> set[str]:
    if tensors is None:
        return known.matrices.keys() | known.tensors.keys()
    wanted: set[str] = set()
    for name in tensors:
        if name in known.matrices or name in known.tensors:
            wanted.add(name)
        elif name in owners:
            wanted.update(owners[name])
        else:
            raise InputError(
                "neither the certificate nor the checkpoint knows this name",
                where=f"{name} in {location}",
                fix="name a tensor, or a module without its .weight",
            )
    return wanted


def _check_matrix(entry: dict[str, Any], stored: Stored | None, read: Read, report: Report) -> None:
    failures = report.failures
    if stored is None:
        failures.add("missing", f"matrix {entry['name']} of the certificate is not here", tensor=entry["name"])
        return
    tensor = stored.main.tensor

    def fail(what: str) -> None:
        failures.add("certificate", f"{entry['name']}: {what}", file=tensor.file, tensor=tensor.name)

    sides = [side for side in ("source", "out") if entry[side]["layout"] == stored.layout]
    if not sides or (stored.rows, stored.cols) != (entry["rows"], entry["cols"]):
        fail(f"is {stored.layout} {stored.rows} x {stored.cols}, which is neither side of the certificate")
        return
    matrix = _load(stored, read)
    report.counts.matrices += 1
    report.counts.elements += stored.rows * stored.cols
    if stored.format in ("mxfp4", "nvfp4"):
        report.counts.half_blocks += stored.rows * stored.cols // 16
    found = stored_sha256(matrix)
    sides = [side for side in sides if entry[side]["sha256"] == found]
    if not sides:
        fail("its stored bytes do not have the certified sha256")
    elif not isinstance(matrix, PlainRows) and not _usable(matrix):
        fail("its scales are no positive, finite numbers")
    elif canonical_form(matrix) not in [_canonical(entry, side) for side in sides]:
        fail("its values do not have the certified canonical sha256")
    if odd_bias(stored):
        fail("its bias is of a dtype whose elements are no whole bytes")
        return
    bias = load_bias(stored, read)
    if (bias_sha256(bias) if bias is not None else None) != entry.get("bias"):
        fail("its bias does not have the certified sha256")


def _load(stored: Stored, read: Read) -> Packed | PlainRows | Scaled:
    if stored.format == "bf16":
        return open_bf16(stored, read)
    return load_scaled(stored, read) if stored.format in FORMATS else load_packed(stored, read)


def _usable(matrix: Packed | Scaled) -> bool:
    if isinstance(matrix, Scaled):
        return matrix.legal
    g = matrix.global_scale
    return not matrix.nan_scales.any() and (g is None or bool(0 < g < float("inf")))


def _canonical(entry: dict[str, Any], side: str) -> Any:
    return entry[side].get("canonical", entry["canonical"]) if side == "out" else entry["canonical"]


def _check_tensor(entry: dict[str, Any], tensor: TensorInfo | None, read: Read, report: Report) -> None:
    failures: Failures = report.failures
    if tensor is None:
        failures.add("missing", "the certificate has this tensor, the checkpoint does not", tensor=entry["name"])
        return
    report.counts.copied_tensors += 1
    if (tensor.dtype, list(tensor.shape)) != (entry["dtype"], entry["shape"]):
        why = f"is {tensor.dtype} {list(tensor.shape)}, certified is {entry['dtype']} {entry['shape']}"
        failures.add("certificate", why, file=tensor.file, tensor=tensor.name)
    elif _sha256(read(tensor.file), tensor) != entry["sha256"]:
        failures.add("certificate", "its bytes do not have the certified sha256", file=tensor.file, tensor=tensor.name)


def _sha256(file: ByteFile, tensor: TensorInfo) -> str:
    digest = hashlib.sha256()
    for position in range(tensor.start, tensor.end, CHUNK_BYTES):
        digest.update(file.read(position, min(position + CHUNK_BYTES, tensor.end)))
    return digest.hexdigest()
