"""The certificate: a document from which a third party re-proves any one tensor, of either side, by a range read.

Schema ``truecast.certificate/1``. Per matrix it holds the sha256 of the stored bytes on each side and of the canonical
form; per plain tensor the sha256 of its bytes, which are the same on both sides.

* *Stored bytes* of a quantized matrix: codes, then block scales, then the global scale, each row after row of the
  matrix ``[out, in]`` (where a layout stacks, interleaves or transposes, only this matrix's bytes, in that order). Of a
  BF16 matrix: its elements row-major, little-endian.
* *Canonical form*: all values row-major as little-endian BF16 bit patterns if BF16 holds every one of them exactly
  (``"dtype": "BF16"``), else as the nearest little-endian float64 (``"F64"``; exact, but where a global scale that is
  no power of two divides). Minus zero stays minus zero. ``canonical`` is that of the source; an output with
  changed values has its own under ``out``. An INT4 zero has the sign of its scale.
* *Bias*, where there is one: the sha256 of its bytes, the same on both sides.

One line a matrix or tensor, sorted by name, no time, no place: the same proof gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast import __version__
from truecast.checkpoint.files import LocalFile
from truecast.checkpoint.header import TensorInfo
from truecast.checkpoint.writer import write_file
from truecast.errors import InputError
from truecast.formats import packing
from truecast.verify.canonical import byte_pairs, expand_pairs
from truecast.verify.report import Counts
from truecast.verify.rounding import bf16_bits
from truecast.verify.scaled import Scaled
from truecast.verify.stored import Packed, PlainRows, Stored

SCHEMA = "truecast.certificate/1"
CERTIFICATE = "truecast.certificate.json"
"""Its name where it travels inside a checkpoint; any other file there that the manifest does not list is a failure."""

U16 = NDArray[np.uint16]
Entries = list[tuple[str, dict[str, Any]]]
Held = Packed | PlainRows | Scaled
"""A matrix of either side."""

_CHUNK_BYTES = 1 << 18


def tensor_entry(tensor: TensorInfo, sha256: str) -> dict[str, Any]:
    """Entry of a plain tensor."""
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "sha256": sha256}


def matrix_entry(source: Held, out: Stored, stored: Held, bias: bytes | None, changed: int) -> dict[str, Any]:
    """Entry of a matrix. ``stored``: the output's side; ``changed``: so many of its blocks or elements are inexact."""
    out_side: dict[str, Any] = {"layout": out.layout, "sha256": stored_sha256(stored)}
    out_side |= _place(out) if isinstance(stored, PlainRows) else {}
    if out.spelling != out.name:
        out_side["name"] = out.spelling
    if changed:
        out_side["canonical"] = canonical_form(stored)
    source_side: dict[str, Any] = {"layout": source.stored.layout, "sha256": stored_sha256(source)}
    source_side |= _place(source.stored) if isinstance(source, PlainRows) else {}
    entry: dict[str, Any] = {
        "name": out.name,
        "rows": out.rows,
        "cols": out.cols,
        "source": source_side,
        "out": out_side,
        "canonical": canonical_form(source),
    }
    if bias is not None:
        entry["bias"] = bias_sha256(bias)
    return entry


def _place(out: Stored) -> dict[str, Any]:
    """Where a BF16 matrix lies: nothing in the tensor itself tells that it was quantized once."""
    view = out.main
    place: dict[str, Any] = {"tensor": view.tensor.name}
    if "bias" in out.parts:
        place["bias_tensor"] = out.parts["bias"].tensor.name
    if view.entry is not None:
        rows = {"row_start": view.row_start, "row_step": view.row_step}
        place |= {"entry": view.entry, **rows, "transposed": view.transposed}
    return place


def bias_sha256(bias: bytes) -> str:
    """sha256 of a bias, element after element."""
    return hashlib.sha256(bias).hexdigest()


def stored_sha256(matrix: Held) -> str:
    """sha256 of the stored bytes, as the head of this module defines them."""
    if isinstance(matrix, PlainRows):
        digest = hashlib.sha256()
        for row in range(0, matrix.stored.rows, 256):
            rows = matrix.rows(row, min(row + 256, matrix.stored.rows))
            digest.update(rows.astype("<u2", order="C", copy=False).data)
        return digest.hexdigest()
    digest = hashlib.sha256(matrix.codes.data)
    digest.update(matrix.scale.data)
    if isinstance(matrix, Packed) and matrix.global_scale is not None:
        digest.update(matrix.global_scale.astype("<f4").tobytes())
    return digest.hexdigest()


def canonical_form(matrix: Held) -> dict[str, str]:
    """dtype and sha256 of the canonical form, as the head of this module defines it."""
    if isinstance(matrix, PlainRows):
        return {"dtype": "BF16", "sha256": stored_sha256(matrix)}
    if isinstance(matrix, Scaled):
        return _scaled_form(matrix)
    bits, exact = matrix.table.to_bf16()
    digest = hashlib.sha256()
    rows = max(1, _CHUNK_BYTES // max(1, matrix.codes.shape[1]))
    pairs = byte_pairs(bits)
    inexact_pairs = byte_pairs((~exact).astype(np.uint16))
    risky = bool(np.asarray((~exact).any(axis=1))[matrix.scale].any())
    for row in range(0, len(matrix.codes), rows):
        codes, scale = matrix.codes[row : row + rows], matrix.scale[row : row + rows]
        if risky and expand_pairs(codes, scale, inexact_pairs).any():
            return {"dtype": "F64", "sha256": _float64_sha256(matrix)}
        digest.update(expand_pairs(codes, scale, pairs).astype("<u4", copy=False).data)
    return {"dtype": "BF16", "sha256": digest.hexdigest()}


def _scaled_form(matrix: Scaled) -> dict[str, str]:
    narrow, wide = hashlib.sha256(), hashlib.sha256()
    every = True
    for row in range(0, matrix.stored.rows, 64):
        values = matrix.values(row, min(row + 64, matrix.stored.rows))
        bits, exact = bf16_bits(values)
        every &= bool(exact.all())
        narrow.update(bits.astype("<u2", copy=False).data)
        wide.update(np.ascontiguousarray(values, dtype="<f8").data)
    digest = narrow if every else wide
    return {"dtype": "BF16" if every else "F64", "sha256": digest.hexdigest()}


def _float64_sha256(matrix: Packed) -> str:
    values = matrix.table.to_float64()
    digest = hashlib.sha256()
    for codes, scale in zip(matrix.codes, matrix.scale, strict=True):
        row = values[np.repeat(scale, 2 * codes.size // scale.size), packing.unpack_nibbles(codes)]
        digest.update(row.astype("<f8", copy=False).data)
    return digest.hexdigest()


def write_certificate(
    path: Path, fingerprint: str, counts: Counts, entries: Iterable[tuple[str, dict[str, Any]]]
) -> None:
    """Write the certificate of a proof that holds."""
    sections: dict[str, list[dict[str, Any]]] = {"matrices": [], "tensors": []}
    for section, entry in entries:
        sections[section].append(entry)
    head = {"schema": SCHEMA, "version": __version__, "source": {"fingerprint": fingerprint}, "counts": asdict(counts)}
    lines = [f'"{key}": {_line(value)}' for key, value in head.items()]
    for key, listed in sections.items():
        rows = ",\n".join(_line(entry) for entry in sorted(listed, key=lambda e: str(e["name"])))
        lines.append(f'"{key}": [\n{rows}\n]' if rows else f'"{key}": []')
    write_file(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def is_certificate(path: Path) -> bool:
    """Does this file begin as a certificate does?"""
    try:
        file = LocalFile(path)
    except InputError:
        return False
    try:
        start = file.read(0, min(file.size, 4096))
    finally:
        file.close()
    return re.match(rb'\s*\{\s*"schema"\s*:\s*"truecast\.certificate/', start) is not None


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
