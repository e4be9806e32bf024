"""Where INT4 codes are computed."""

from __future__ import annotations

import importlib.util

from truecast.errors import UsageError

CHOICES = ("auto", "cpu", "cuda")


def devices(choice: str, target_format: str) -> list[str]:
    """Devices to share the shards out to, as torch names them. torch is asked only where a device could be of use.

    Raises: UsageError for ``cuda`` where torch or a CUDA device is missing.
    """
    if choice == "cpu" or target_format != "w4afp8":
        return ["cpu"]
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    count = 0
    if not missing:
        from truecast.casts.int4_cuda import device_count

        count = device_count()
    if count:
        return [f"cuda:{i}" for i in range(count)]
    if choice == "cuda":
        why = f"{' and '.join(missing)} not installed" if missing else "torch sees no CUDA device"
        raise UsageError(f"--device cuda: {why}", fix="install torch for CUDA, or leave --device out: same result")
    return ["cpu"]
