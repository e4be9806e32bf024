"""Decoding checkpoints without truecast: safetensors by hand, values by tables and numpy. What the tests compare with.

Every decoder gives float64, in which all these products are exact.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

_NUMPY = {
    "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F16": np.float16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "U8": np.uint8, "I8": np.int8, "I32": np.int32, "I64": np.int64, "F8_E8M0": np.uint8,
}  # fmt: skip
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in a file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def array(self) -> NDArray[Any]:
        """Its values, in its own dtype."""
        return np.frombuffer(self.data, dtype=_NUMPY[self.dtype]).reshape(self.shape)


def load(folder: Path) -> dict[str, Stored]:
    """Every tensor of every shard, in file order."""
    found: dict[str, Stored] = {}
    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__", None)
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            assert name not in found
            found[name] = Stored(path.name, entry["dtype"], tuple(entry["shape"]), content[start:end])
    return found


def nibbles(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """``[N, n]`` bytes -> ``[N, 2n]`` four-bit numbers, low nibble first."""
    return np.stack([data & 15, data >> 4], axis=-1).reshape(data.shape[0], -1)


def mxfp4(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> F64:
    """``[N, K/2]`` and ``[N, K/32]`` bytes -> ``[N, K]``."""
    return np.asarray(E2M1[nibbles(codes)] * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=1))


def mxfp4_sources(tensors: dict[str, Stored]) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Every MXFP4 matrix of a source in whatever layout: module -> codes ``[N, K/2]`` and scales ``[N, K/32]``."""
    found: dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = {}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "weight_packed" and tensor.dtype == "U8":
            found[module] = tensor.array, tensors[module + ".weight_scale"].array
        elif leaf == "weight" and tensor.dtype == "I8" and module + ".scale" in tensors:
            found[module] = tensor.array.view(np.uint8), tensors[module + ".scale"].array
        elif leaf.endswith("_blocks"):
            blocks, scales = tensor.array, tensors[name.replace("_blocks", "_scales")].array
            for expert in range(len(blocks)):
                codes = blocks[expert].reshape(blocks.shape[1], -1)
                if leaf.startswith("gate_up"):
                    found[f"{module}.{expert}.gate_proj"] = codes[0::2], scales[expert, 0::2]
                    found[f"{module}.{expert}.up_proj"] = codes[1::2], scales[expert, 1::2]
                else:
                    found[f"{module}.{expert}.down_proj"] = codes, scales[expert]
    return found


def int4_codes(tensors: dict[str, Stored], module: str) -> NDArray[np.int64]:
    """INT4 codes of a module in either W4AFP8 dialect. Shape: ``[N, K]``, -8..7."""
    if module + ".weight_packed" in tensors:
        words = tensors[module + ".weight_packed"].array.view(np.uint32)
        four = words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
        return four.reshape(words.shape[0], -1).astype(np.int64) - 8
    four = nibbles(tensors[module + ".weight"].array.view(np.uint8)).astype(np.int64)
    return np.where(four > 7, four - 16, four)


def int4(tensors: dict[str, Stored], module: str) -> F64:
    """Values of a module in either W4AFP8 dialect. Shape: ``[N, K]``."""
    suffix = ".weight_scale" if module + ".weight_packed" in tensors else ".weight_scale_inv"
    scales = tensors[module + suffix].array.astype(np.float64)
    return np.asarray(int4_codes(tensors, module) * np.repeat(scales, 128, axis=1))


def fp8(tensors: dict[str, Stored], module: str) -> F64:
    """Values of an FP8 module, scaled by 128 x 128 blocks or by row. Shape: ``[N, K]``."""
    codes = tensors[module + ".weight"].array.astype(np.float64)
    if (blocks := tensors.get(module + ".weight_scale_inv")) is None:
        return np.asarray(codes * tensors[module + ".weight_scale"].array.astype(np.float64))
    spread = np.repeat(np.repeat(blocks.array.astype(np.float64), 128, axis=0), 128, axis=1)
    return np.asarray(codes * spread[: codes.shape[0], : codes.shape[1]])


def to_bf16(values: F64) -> F64:
    """The nearest BF16 numbers, ties to even, for values in its normal range or zero."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(mantissa * 256), exponent - 8))
