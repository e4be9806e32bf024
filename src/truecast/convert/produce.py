"""The bytes of one output tensor, in file order, one matrix at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from truecast.casts import to_bf16
from truecast.casts.mxfp4_to_nvfp4 import CodeChanges, NVFP4Report, cast
from truecast.checkpoint.files import ByteFile, stream
from truecast.convert.reading import Codes, check_scales, inverted, read_global_scale, read_scalar
from truecast.layouts.base import Matrix, OutTensor, read_view

U8 = NDArray[np.uint8]


@dataclass(slots=True)
class Tally:
    """What the casts of one shard did; counted once a matrix, however often its bytes are asked for."""

    half_blocks: int = 0
    renormalised: int = 0
    subnormal_scales: int = 0
    inexact: list[dict[str, object]] = field(default_factory=list)
    counted: set[str] = field(default_factory=set)

    def count(self, matrix: Matrix, report: NVFP4Report) -> None:
        """Add one matrix's report, the first time it comes."""
        if matrix.name in self.counted:
            return
        self.counted.add(matrix.name)
        self.half_blocks += report.half_blocks
        self.renormalised += report.renormalised
        self.subnormal_scales += report.subnormal_scales
        self.inexact += [
            {
                "matrix": matrix.name,
                "row": block.row,
                "column": block.column,
                "source_exponent": block.source_exponent,
                "squared_error": block.squared_error,
                "squared_sum": block.squared_sum,
            }
            for block in report.inexact
        ]


class Producer:
    """Produces tensors of one shard. ``read`` opens source files by name, ``m`` gives each cast matrix's exponent."""

    def __init__(self, read: Callable[[str], ByteFile], m: Mapping[str, int], target: str, dialect: str) -> None:
        self.read, self.m, self.target, self.dialect = read, m, target, dialect
        self.tally = Tally()
        self._recent: dict[str, tuple[U8, CodeChanges | None]] = {}

    def tensor(self, out: OutTensor) -> Iterator[bytes | memoryview]:
        """The bytes of one tensor, piece by piece. A piece is valid until the next one is asked for."""
        if out.source is not None:
            yield from stream(self.read(out.source.file), out.source.start, out.source.end)
            return
        scalar = out.shape in ((), (1,))  # shared by all matrices under it
        for piece in out.pieces[:1] if scalar else out.pieces:
            if out.role == "codes" and len(piece) == 1 and self._streamable(out, piece[0]):
                tensor = piece[0].codes.tensor
                yield from stream(self.read(tensor.file), tensor.start, tensor.end)
                continue
            rows = [self._part(out, matrix) for matrix in (piece[:1] if scalar else piece)]
            merged = rows[0] if len(rows) == 1 else np.stack(rows, axis=1).reshape(-1, rows[0].shape[1])
            if out.transposed:
                item = 2 if out.role == "weight" else 1
                merged = np.ascontiguousarray(merged.view(f"u{item}").T).view(np.uint8)
            yield merged.data.cast("B")

    def _streamable(self, out: OutTensor, matrix: Matrix) -> bool:
        """Do the codes stay, and lie as they will be written? Then they pass through without ever being held whole."""
        return Codes(matrix, self.read).stored_together and not out.transposed and self._cast(matrix)[1] is None

    def _part(self, out: OutTensor, matrix: Matrix) -> U8:
        """One part of one matrix: a row of bytes per row."""
        match out.role:
            case "codes":
                packed, changes = Codes(matrix, self.read).packed(), self._cast(matrix)[1]
                return packed if changes is None else changes.apply(packed)
            case "scale":
                return self._cast(matrix)[0]
            case "weight":
                return self._dequantize(matrix)
            case "bias":
                assert matrix.bias is not None
                return read_view(matrix.bias, self.read(matrix.bias.tensor.file))
            case "global_scale":
                return _scalar(self._global_scale(matrix))
            case "input_scale":
                return _scalar(self._input_scale(matrix))
        raise AssertionError(out.role)

    def _scale(self, matrix: Matrix) -> U8:
        scale = read_view(matrix.scale, self.read(matrix.scale.tensor.file))
        check_scales(matrix, scale)
        return scale

    def _cast(self, matrix: Matrix) -> tuple[U8, CodeChanges | None]:
        """Scale and changes to the codes. The last results are kept: scale follows codes in most layouts."""
        if matrix.name in self._recent:
            return self._recent[matrix.name]
        scale, changes = self._scale(matrix), None
        if self.target == "nvfp4" and matrix.layout.startswith("mxfp4"):
            scale, changes, report = cast(scale, self.m[matrix.name], Codes(matrix, self.read).blocks)
            self.tally.count(matrix, report)
        while len(self._recent) >= 2:
            del self._recent[next(iter(self._recent))]
        self._recent[matrix.name] = scale, changes
        return scale, changes

    def _dequantize(self, matrix: Matrix) -> U8:
        codes, scale = Codes(matrix, self.read).packed(), self._scale(matrix)
        if matrix.layout.startswith("mxfp4"):
            values, _ = to_bf16.from_mxfp4(codes, scale)
        else:
            divides = matrix.layout.endswith("compressed-tensors")
            values, _ = to_bf16.from_nvfp4(codes, scale, read_global_scale(matrix, self.read), divides)
        return values.view(np.uint8)

    def _global_scale(self, matrix: Matrix) -> np.float32:
        divides = self.dialect == "compressed-tensors"
        if matrix.layout.startswith("mxfp4"):
            m = self.m[matrix.name]
            return np.float32(np.ldexp(np.float32(1), -m if divides else m))
        assert matrix.global_scale is not None
        value = read_global_scale(matrix, self.read)
        same = divides == matrix.layout.endswith("compressed-tensors")
        return value if same else inverted(value, matrix.global_scale)

    def _input_scale(self, matrix: Matrix) -> np.float32:
        if matrix.input_scale is None:
            return np.float32(1)
        value = read_scalar(matrix.input_scale, self.read, "activation scale")
        same = (self.dialect == "compressed-tensors") == matrix.layout.endswith("compressed-tensors")
        return value if same else inverted(value, matrix.input_scale)


def _scalar(value: np.float32) -> U8:
    return np.array([[value]], dtype="<f4").view(np.uint8)
