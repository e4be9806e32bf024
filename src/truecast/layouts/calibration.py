"""``calibration.safetensors``: what a run of the model over documents says of the inputs of each quantized matrix.

For a module ``M`` with ``in`` input channels, over the tokens ``x`` that reached it:

* ``M.input_amax`` F32 ``[]``: the largest magnitude of any input.
* ``M.input_second_moment`` F32 ``[in]``: the mean of ``x^2``, channel by channel.
* ``M.input_hessian`` F32 ``[in, in]``, where it was asked for: the mean of ``x x^T``.

``input_tokens`` I64 ``[modules]``: how many tokens reached each, in the order of the ``input_amax`` in the file. 0 for an
expert that was never routed to: its tensors then hold the values of its layer, taken over all tokens that reached any
expert of the bank. One tensor, not one a module: with those, Kimi-K3's header would exceed the format's 100 MB.

Metadata, all of it text: ``schema``; ``source`` and ``weights``, fingerprint and ``weights_sha256`` of the checkpoint that
was run; ``documents``, a JSON object id -> :func:`document_sha256`, by which an audit refuses documents that were
calibrated on; ``tokens``, how many were run; ``never_routed``, a JSON list of the modules with 0 tokens.

An engine scales activations by ``amax / 448`` (E4M3's largest number): ``x = input_scale * x_fp8``. SGLang 0.5.20 rounds the
stored scales to BF16, and uses the largest of the experts that lie on one GPU, for w1 and w3 together and for w2.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.files import LocalFile, stream
from truecast.checkpoint.header import TensorInfo, encode_header, read_header
from truecast.checkpoint.source import stamp
from truecast.checkpoint.writer import FileWriter
from truecast.errors import InputError, RefusedError

F32 = NDArray[np.float32]

SCHEMA = "truecast.calibration/1"
AMAX, MOMENT, HESSIAN = ".input_amax", ".input_second_moment", ".input_hessian"
TOKENS = "input_tokens"
_SHA256 = re.compile(r"[0-9a-f]{64}")
LARGEST_E4M3 = np.float32(448)
LEAST_SCALE = np.float32(2.0**-24)
"""Inputs that are all (nearly) zero get this scale: division by it stays finite."""


@dataclass(frozen=True, slots=True)
class InputStatistics:
    """Statistics of one module's inputs, as in the module's docstring. Shapes: ``[in]``; hessian ``[in, in]`` or None."""

    amax: float
    second_moment: F32
    tokens: int
    hessian: F32 | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """An open file: its header and hash. Values are read, and checked, when they are asked for."""

    path: Path
    sha256: str
    source: str
    weights: str
    documents: Mapping[str, str]
    tokens: int
    never_routed: frozenset[str]
    tensors: Mapping[str, TensorInfo]
    stamp: list[int]
    """Size and mtime of the file when it was read whole."""

    def input_scale(self, module: str) -> np.float32:
        """``max(amax / 448, LEAST_SCALE)`` in float32. Raises: InputError for an amax that is none."""
        return np.float32(max(self.amax(module) / LARGEST_E4M3, LEAST_SCALE))

    def amax(self, module: str) -> np.float32:
        """Largest magnitude of an input. Raises: InputError where it is absent, negative or not finite."""
        return np.float32(self._values(module + AMAX, ())[()])

    def second_moment(self, module: str, cols: int) -> F32:
        """Mean square of each input channel. Shape: ``[cols]``. Raises: InputError where one is negative or not finite."""
        return self._values(module + MOMENT, (cols,))

    def hessian(self, module: str, cols: int) -> F32:
        """Mean of ``x x^T``. Shape: ``[cols, cols]``. Raises: InputError where it is not finite or not symmetric."""
        found = self._values(module + HESSIAN, (cols, cols), negative=True)
        scale = float(np.abs(found).max(initial=0))
        off = np.abs(found - found.T)
        if off.max(initial=0) > 1e-5 * scale:
            row, col = (int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
            raise self._wrong(
                module + HESSIAN, f"is not symmetric: {found[row, col]} at {row}, {col} and {found[col, row]}"
            )
        return found

    def has(self, module: str, part: str) -> bool:
        """Is this part (``AMAX``, ``MOMENT``, ``HESSIAN``) of a module stored?"""
        return module + part in self.tensors

    def holds(self, part: str) -> bool:
        """Is this part stored of any module?"""
        return any(name.endswith(part) for name in self.tensors)

    def require(self, module: str, part: str, shape: tuple[int, ...]) -> None:
        """Raises: InputError where a part is absent, or of another dtype or shape; no value is read."""
        self._info(module + part, shape)

    def _info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            other = next(iter(self.tensors), None)
            hint = f"; the file has for example {other}" if other else ""
            raise self._wrong(name, f"is not in the file{hint}")
        if info.dtype != "F32" or info.shape != shape:
            raise self._wrong(name, f"is {info.dtype} {list(info.shape)}, should be F32 {list(shape)}")
        return info

    def _values(self, name: str, shape: tuple[int, ...], *, negative: bool = False) -> F32:
        info = self._info(name, shape)
        if not self.path.exists() or stamp(self.path) != self.stamp:
            raise RefusedError("changed while it was read", where=str(self.path), fix="use a file at rest")
        file = LocalFile(self.path)
        try:
            found = np.frombuffer(file.read(info.start, info.end), "<f4").reshape(shape)
        finally:
            file.close()
        bad = ~np.isfinite(found) | ((found < 0) if not negative else False)
        if bad.any():
            place = np.argwhere(bad)[0]
            rule = "finite" if negative else "finite and not negative"
            at = f" at {', '.join(str(int(i)) for i in place)}" if place.size else ""
            raise self._wrong(name, f"is {found[tuple(place)]}{at}; it must be {rule}")
        return found

    def _wrong(self, name: str, why: str) -> InputError:
        return InputError(why, where=f"{name} in {self.path}", fix="calibrate again, on this checkpoint")


def open_calibration(path: Path) -> Calibration:
    """Read header and hash. Raises: InputError for a file that is none, or of another schema."""
    file = LocalFile(path)
    try:
        before = stamp(path)
        tensors, metadata = read_header(file.read, str(path), file.size)
        digest = hashlib.sha256()
        for data in stream(file, 0, file.size):
            digest.update(data)
    finally:
        file.close()
    try:
        if metadata.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {metadata.get('schema')!r}, not {SCHEMA!r}")
        documents, never = json.loads(metadata["documents"]), json.loads(metadata["never_routed"])
        if not isinstance(documents, dict) or not all(isinstance(v, str) for v in documents.values()):
            raise ValueError("documents is no map from id to sha256")
        if not isinstance(never, list) or not all(isinstance(name, str) for name in never):
            raise ValueError("never_routed is no list of names")
        source, weights, tokens = metadata["source"], metadata["weights"], int(metadata["tokens"])
        if not documents or not all(is_sha256(one) for one in documents.values()):
            raise ValueError("documents does not say by their sha256 what was run")
    except (ValueError, KeyError, RecursionError) as error:
        why = f"its metadata lacks {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"is no calibration: {why}", where=str(path), fix="make it with truecast calibrate") from None
    return Calibration(path, digest.hexdigest(), source, weights, documents, tokens, frozenset(never), tensors, before)


def write_calibration(
    path: Path,
    statistics: Mapping[str, InputStatistics],
    *,
    source: str,
    weights: str,
    documents: Mapping[str, str],
    tokens: int,
) -> str:
    """Write a file; modules, and ids of documents, in the order given. Returns its sha256.

    ``source`` and ``weights``: fingerprint and ``weights_sha256`` of the checkpoint that was run;
    ``documents``: id -> :func:`document_sha256`.
    Raises: RefusedError where the header would be longer than safetensors allows.
    """
    arrays: dict[str, NDArray[Any]] = {TOKENS: np.array([found.tokens for found in statistics.values()], "<i8")}
    for module, found in statistics.items():
        arrays[module + AMAX] = np.asarray(found.amax, "<f4")
        arrays[module + MOMENT] = np.asarray(found.second_moment, "<f4")
        if found.hessian is not None:
            arrays[module + HESSIAN] = np.asarray(found.hessian, "<f4")
    metadata = {
        "schema": SCHEMA,
        "source": source,
        "weights": weights,
        "documents": json.dumps(dict(documents), ensure_ascii=False),
        "tokens": str(tokens),
        "never_routed": json.dumps([module for module, found in statistics.items() if found.tokens == 0]),
    }
    kinds = {"f": "F32", "i": "I64"}
    try:
        header = encode_header(((n, kinds[a.dtype.kind], a.shape) for n, a in arrays.items()), metadata)
    except ValueError as error:
        raise RefusedError(f"cannot be one file: {error}", where=str(path)) from None
    writer = FileWriter(path)
    try:
        writer.write(header)
        for array in arrays.values():
            writer.write(np.ascontiguousarray(array).tobytes())
        return writer.commit()
    except BaseException:
        writer.abort()
        raise


def document_sha256(tokens: Iterable[int]) -> str:
    """What tells two documents apart: sha256 over their token ids as little-endian int64."""
    return hashlib.sha256(np.fromiter(tokens, "<i8").tobytes()).hexdigest()


def is_sha256(text: str) -> bool:
    """Is it one as :func:`document_sha256` writes it?"""
    return _SHA256.fullmatch(text) is not None
