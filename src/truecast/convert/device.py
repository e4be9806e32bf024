"""Where INT4 codes are computed."""

from __future__ import annotations

import importlib.util
import logging

import numpy as np

from truecast.errors import UsageError

log = logging.getLogger(__name__)

CHOICES = ("auto", "cpu", "cuda")


def devices(choice: str, target_format: str) -> list[str]:
    """Devices to share the shards out to, as torch names them. torch is asked only where a device could be of use.

    ``auto`` takes the CPU where there is no CUDA device, or where a first small matrix fails on it, which is told.
    Raises: UsageError for ``cuda`` then.
    """
    if choice == "cpu" or target_format != "w4afp8":
        return ["cpu"]
    found, why = _found()
    if why is None:
        return found
    if choice == "cuda":
        raise UsageError(f"--device cuda: {why}", fix="install torch for CUDA, or leave --device out: same result")
    if found:
        log.warning("INT4 codes are computed on the CPU: %s", why)
    return ["cpu"]


def _found() -> tuple[list[str], str | None]:
    """All CUDA devices, and why they are of no use, if so."""
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        return [], f"{' and '.join(missing)} not installed"
    try:
        from truecast.casts import int4_cuda

        found = [f"cuda:{i}" for i in range(int4_cuda.device_count())]
    except Exception as error:  # a broken installation of either
        return [], _first_line(error)
    if not found:
        return [], "torch sees no CUDA device"
    try:  # Triton compiles the kernel now: it wants a C compiler, a folder to write to, and a GPU that it knows
        _try(found[0])
    except Exception as error:
        return found, _first_line(error)
    return found, None


def _try(device: str) -> None:
    from truecast.casts import int4

    int4.quantize(np.zeros((1, 64), np.uint8), np.full((1, 4), 127, np.uint8), device=device)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason given'}"
