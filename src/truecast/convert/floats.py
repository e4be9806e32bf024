"""Stored floating-point numbers, whatever their dtype, as float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}


def widen(data: bytes | NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """Values of stored bytes, exact. Shapes: ``[..., n bytes]`` -> ``[..., n / width]`` float32."""
    raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
    return np.asarray(raw.view(_DTYPES[dtype]), dtype=np.float32)
