"""GPUs on which 4-bit MoE checkpoints are served: memory, compute capability, bandwidth, host.

Memory is what the vendor states, in decimal bytes; drivers and ECC leave a little less (a B200 of 180 GB reports 179).
Sources: NVIDIA's data sheets of the H100, H200 and GH200, and of the HGX boards for Blackwell: 8 B200 have 1.44 TB,
8 B300 have 2.3 TB.
"""

from __future__ import annotations

from dataclasses import dataclass

from truecast.errors import UsageError

_GB = 10**9


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as an engine sees it. ``memory`` in bytes, ``bandwidth`` in bytes a second."""

    name: str
    """As the command line spells it."""
    title: str
    memory: int
    capability: int
    """Compute capability, major and minor digit: 90 is Hopper, 100 and 103 are Blackwell."""
    bandwidth: int
    host: str
    """``x86_64`` or ``aarch64``: which wheels of an engine's kernels are installed."""


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("h100", "H100 SXM 80 GB", 80 * _GB, 90, 3350 * _GB, "x86_64"),
        Gpu("h200", "H200 SXM 141 GB", 141 * _GB, 90, 4800 * _GB, "x86_64"),
        Gpu("gh200", "GH200 96 GB HBM3", 96 * _GB, 90, 4000 * _GB, "aarch64"),
        Gpu("gh200-144", "GH200 144 GB HBM3e", 144 * _GB, 90, 4900 * _GB, "aarch64"),
        Gpu("b200", "B200 180 GB", 180 * _GB, 100, 8000 * _GB, "x86_64"),
        Gpu("b300", "B300 288 GB", 288 * _GB, 103, 8000 * _GB, "x86_64"),
    )
}
"""Every GPU by the name that the command line takes."""


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, in any case. Raises: UsageError naming those there are."""
    try:
        return GPUS[name.lower()]
    except KeyError:
        raise UsageError(f"no such GPU: {name}", fix=f"one of {', '.join(GPUS)}") from None
