"""The bytes of one output tensor, in file order, one matrix at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.files import stream
from truecast.convert import into_bf16, into_fp8, into_nvfp4, into_w4afp8
from truecast.convert.parts import Cast, Parts, Read, Tally
from truecast.convert.reading import Codes, read_scale
from truecast.layouts.base import Matrix, OutTensor, read_view

U8 = NDArray[np.uint8]


class Producer:
    """Produces tensors of one shard. ``read`` opens source files by name, ``m`` gives each matrix's global exponent."""

    def __init__(self, read: Read, m: Mapping[str, int], target: Cast) -> None:
        self.read, self.m, self.target = read, m, target
        self.tally = Tally()
        self._recent: dict[str, Parts] = {}
        self._scales: dict[str, U8] = {}
        """Made with codes that have been written; they wait for their own turn, which mostly comes next."""

    def tensor(self, out: OutTensor) -> Iterator[bytes | memoryview]:
        """The bytes of one tensor, piece by piece. A piece is valid until the next one is asked for."""
        if out.source is not None:
            yield from self._from_plain(out)
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

    def _from_plain(self, out: OutTensor) -> Iterator[bytes | memoryview]:
        """A plain tensor: as it is, or one of the two parts that it becomes as FP8."""
        assert out.source is not None
        if out.role == "copy":
            yield from stream(self.read(out.source.file), out.source.start, out.source.end)
            return
        if out.role == "fp8":
            codes, self._scales[out.source.name] = into_fp8.plain(out.source, self.read, self.tally)
            yield codes.data.cast("B")
        else:
            yield self._scales.pop(out.source.name).data.cast("B")

    def _streamable(self, out: OutTensor, matrix: Matrix) -> bool:
        """Do the codes stay, and lie as they will be written? Then they pass through without ever being held whole."""
        return Codes(matrix, self.read).stored_together and not out.transposed and self._parts(matrix).codes is None

    def _part(self, out: OutTensor, matrix: Matrix) -> U8:
        """One part of one matrix: a row of bytes per row."""
        match out.role:
            case "codes":
                changed = self._parts(matrix).codes
                return Codes(matrix, self.read).packed() if changed is None else changed()
            case "scale":
                made = self._scales.pop(matrix.name, None)
                return self._parts(matrix).scale if made is None else made
            case "weight":
                return into_bf16.weight(matrix, self.read)
            case "bias":
                assert matrix.bias is not None
                return read_view(matrix.bias, self.read(matrix.bias.tensor.file))
            case "global_scale":
                return _scalar(into_nvfp4.global_scale(matrix, self.read, self.m, self.target.dialect))
            case "input_scale":
                if self.target.format == "nvfp4":
                    return _scalar(into_nvfp4.input_scale(matrix, self.read, self.target.dialect))
                return _scalar(into_w4afp8.input_scale(matrix, self.read, self.target))
            case "shape":
                return np.array([[matrix.rows, matrix.cols]], dtype="<i8").view(np.uint8)
        raise AssertionError(out.role)

    def _parts(self, matrix: Matrix) -> Parts:
        """Codes and scale. The last results are kept, and all scales still to be written whose codes had to be made."""
        if matrix.name not in self._recent:
            while len(self._recent) >= 2:
                del self._recent[next(iter(self._recent))]
            self._recent[matrix.name] = parts = self._cast(matrix)
            if parts.codes is not None:
                self._scales[matrix.name] = parts.scale
        return self._recent[matrix.name]

    def _cast(self, matrix: Matrix) -> Parts:
        match self.target.format:
            case "nvfp4":
                return into_nvfp4.parts(matrix, self.read, self.m, self.tally)
            case "w4afp8":
                return into_w4afp8.parts(matrix, self.read, self.target, self.tally)
            case "fp8":
                return into_fp8.parts(matrix, self.read, self.target.dialect)
        return Parts(read_scale(matrix, self.read))  # another dialect of the same format


def _scalar(value: np.float32) -> U8:
    return np.array([[value]], dtype="<f4").view(np.uint8)
