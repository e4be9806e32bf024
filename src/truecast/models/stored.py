"""A checkpoint's tensors as weights: found by name, held against the shape they must have, brought to the device."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from truecast.checkpoint.files import ByteFile
from truecast.checkpoint.header import TensorInfo
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.layouts import LAYOUTS, format_of, w4afp8_compressed_tensors
from truecast.layouts.base import Matrix, View, read_view
from truecast.layouts.recognise import Contents
from truecast.models.linear import Dense, Linear
from truecast.models.packed import Packed

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
"""Dtypes of plain tensors, as safetensors and as PyTorch call them."""
_TILES = {"mxfp4": (1, 32), "nvfp4": (1, 16), "w4afp8": (1, 128)}
_FP8_TILES = {"deepseek": (128, 128), "compressed-tensors": (1, 0)}

Read = Callable[[str], ByteFile]


class Stored:
    """Weights of one part of a model (a layer, the head). Every method raises InputError naming tensor and file.

    Without ``read`` nothing is read: tensors come without contents (on PyTorch's meta device), and ``used`` tells what
    would have been read.
    """

    def __init__(
        self, checkpoint: Checkpoint, contents: Contents, device: torch.device, dtype: torch.dtype, read: Read | None
    ) -> None:
        self._checkpoint, self._contents = checkpoint, contents
        self.dtype = dtype
        """That of the model's activations."""
        self._device, self._read = device, read
        self.used: list[TensorInfo] = []

    @property
    def reads(self) -> bool:
        """Do tensors come with their contents?"""
        return self._read is not None

    def has(self, module: str) -> bool:
        """Is there such a matrix, quantized or plain?"""
        return module in self._contents.matrices or f"{module}.weight" in self._contents.plain

    def tensor(self, name: str, *shapes: tuple[int, ...]) -> Tensor:
        """A plain tensor of one of these shapes; in the model's dtype, or float32 where it is stored so."""
        info = self.info(name, *shapes)
        self.used.append(info)
        stored = DTYPES[info.dtype]
        if self._read is None:
            return torch.empty(info.shape, dtype=stored, device="meta")
        data = torch.empty(info.nbytes, dtype=torch.uint8)
        self._read(info.file).read_into(info.start, data.numpy().data)
        value = data.view(stored).reshape(info.shape).to(self._device)
        if value.numel() and not all(map(math.isfinite, torch.stack(torch.aminmax(value)).tolist())):
            raise InputError(
                "holds what is no finite number", where=info.where, fix="download it again, or do not trust it"
            )
        return value if info.dtype == "F32" else value.to(self.dtype)

    def info(self, name: str, *shapes: tuple[int, ...]) -> TensorInfo:
        """The header entry of a plain tensor, checked."""
        info = self._contents.plain.get(name)
        if info is None:
            raise InputError(f"has no tensor {name}", where=self._checkpoint.location, fix="is the download complete?")
        if shapes and info.shape not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise InputError(f"has shape {list(info.shape)}; config.json makes it {wanted}", where=info.where)
        if info.dtype not in DTYPES:
            raise InputError(
                f"is {info.dtype}, and no scales that belong to a known layout stand beside it", where=info.where
            )
        return info

    def where(self, name: str) -> str:
        """Tensor and file, for messages."""
        return self.info(name).where

    def linear(self, module: str, rows: int, cols: int) -> Linear:
        """The matrix of a module, quantized or plain. ``module`` is the name without ``.weight``."""
        matrix = self._contents.matrices.get(module)
        if matrix is None:
            return Dense(self.tensor(f"{module}.weight", (rows, cols)))
        if (matrix.rows, matrix.cols) != (rows, cols):
            raise InputError(
                f"holds a matrix of {matrix.rows} x {matrix.cols}; config.json makes it {rows} x {cols}",
                where=matrix.where,
            )
        if matrix.bias is not None:
            raise InputError("is a bias, and the model has none", where=matrix.bias.tensor.where)
        return self._packed(matrix)

    def _packed(self, matrix: Matrix) -> Packed:
        kind, layout = format_of(matrix), LAYOUTS[matrix.layout]
        self.used += [view.tensor for view in matrix.parts.values()]
        codes, scale, factor, input_scale = self._parts(matrix, kind)
        return Packed(
            matrix.name,
            kind,
            matrix.rows,
            matrix.cols,
            codes,
            scale,
            _FP8_TILES[layout.DIALECT] if kind == "fp8" else _TILES[kind],
            self.dtype,
            factor,
            layout.NAME == "nvfp4-compressed-tensors",
            input_scale,
        )

    def _parts(self, matrix: Matrix, kind: str) -> tuple[Tensor, Tensor, float | None, Tensor | None]:
        """Codes, scales, global scale and input scale, checked."""
        if self._read is None:
            nothing = torch.empty(0, device="meta")
            return nothing, nothing, None, None
        if matrix.shape is not None:
            w4afp8_compressed_tensors.check_stored_shape(matrix, self._read(matrix.shape.tensor.file))
        codes, scale = self._bytes(matrix.codes), self._bytes(matrix.scale)
        if matrix.layout == w4afp8_compressed_tensors.NAME:
            codes = codes ^ 0x88  # stored as value + 8
        if kind in ("w4afp8", "fp8"):
            scale = scale.view(DTYPES[matrix.scale.tensor.dtype])
        bad = {"mxfp4": scale == 255, "nvfp4": (scale & 0x7F) == 0x7F} if scale.dtype == torch.uint8 else {}
        if bool(bad.get(kind, ~torch.isfinite(scale)).any()):
            raise InputError("holds a scale that is no finite number", where=matrix.scale.tensor.where)
        if kind == "fp8" and bool(((codes & 0x7F) == 0x7F).any()):
            raise InputError("holds a NaN", where=matrix.where)
        factor = self._scalar(matrix.global_scale) if matrix.global_scale else None
        input_scale = None
        if matrix.input_scale:
            value = self._scalar(matrix.input_scale)
            divides = matrix.layout == "nvfp4-compressed-tensors"
            input_scale = torch.tensor(1 / value if divides else value, dtype=torch.float32, device=self._device)
        return codes.to(self._device), scale.to(self._device), factor, input_scale

    def _bytes(self, view: View) -> Tensor:
        """Stored bytes of a part, a row for each row."""
        assert self._read is not None
        tensor = view.tensor
        if view.entry is None and view.row_step == 1 and not view.transposed:
            data = torch.empty(tensor.nbytes, dtype=torch.uint8)
            self._read(tensor.file).read_into(tensor.start, data.numpy().data)
            return data.reshape(tensor.shape[0], -1)
        return torch.from_numpy(np.array(read_view(view, self._read(tensor.file))))

    def _scalar(self, view: View) -> float:
        """A scale of a whole tensor; positive and finite."""
        assert self._read is not None
        raw = self._read(view.tensor.file).read(view.tensor.start, view.tensor.end)
        value = float(torch.frombuffer(bytearray(raw), dtype=DTYPES[view.tensor.dtype])[0])
        if not 0 < value < float("inf"):
            raise InputError(f"is {value}; a scale is positive and finite", where=view.tensor.where)
        return value
