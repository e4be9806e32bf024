"""Which GPU architectures a library of kernels was compiled for, read from the file: no GPU and no tool of CUDA's.

``nvcc`` puts its code into the ELF section ``.nv_fatbin``: containers one after another, each with entries that name an
architecture. Kernels that use Hopper's own instructions (all of CUTLASS's for sm_90) need ``sm_90a``; code for plain
``sm_90`` in its place traps at the first call.
"""

from __future__ import annotations

import importlib.util
import mmap
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from truecast.engines.sglang.situation import Situation

MAGIC = 0xBA55ED50
ELF, SPECIFIC = 2, 1 << 20
"""Kind of an entry that holds machine code, and the flag of one for a single architecture: the ``a`` of ``sm_90a``."""

MOST, GAP = 1_000_000, 1 << 20
"""Entries and containers of one library, and bytes between two containers: released ones have some hundred, and less than
a page. Beyond it is no library, and reading on could take hours."""

RECIPE = """\
get the source: git clone --depth 1 -b v{version} https://github.com/sgl-project/sglang
in python/sglang/kernels/aot/CMakeLists.txt (older: sgl-kernel/CMakeLists.txt) append to SGL_KERNEL_CUDA_FLAGS
    "-gencode=arch=compute_90a,code=sm_90a"
build only the target common_ops_sm90_build, on {machine}, with the CUDA and torch of this installation
copy its common_ops.abi3.so over {path}"""


def architectures(path: Path) -> frozenset[str]:
    """Such as ``sm_90`` and ``sm_90a``. Raises: ValueError if the file is no 64-bit ELF with CUDA code."""
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            start, end = _section(data, b".nv_fatbin")
            return frozenset(_entries(data, start, end))
        except (struct.error, IndexError) as error:
            raise ValueError(f"{path} is cut off: {error}") from error


def _section(data: mmap.mmap, wanted: bytes) -> tuple[int, int]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", data, table + index * size) for index in range(count)]
    for name, _, _, _, offset, length in sections:
        begin = sections[names][4] + name
        if data[begin : begin + len(wanted) + 1] == wanted + b"\0":
            return offset, offset + length
    raise ValueError(f"no section {wanted.decode()}")


def _entries(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
    steps, last = 0, start
    while start + 16 <= end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, start)
        if magic != MAGIC:  # containers are aligned
            start += 8
            if start - last > GAP:
                raise ValueError("its .nv_fatbin holds no containers of code")
            continue
        entry, start = start + header, start + header + size
        last, steps = start, steps + 1
        if steps > MOST:
            raise ValueError("its .nv_fatbin has no end")
        while entry < start:
            if (steps := steps + 1) > MOST:
                raise ValueError("its .nv_fatbin has no end")
            kind, _, header, size = struct.unpack_from("<HHIQ", data, entry)
            (architecture,) = struct.unpack_from("<I", data, entry + 28)
            (flags,) = struct.unpack_from("<Q", data, entry + 40)
            if kind == ELF:
                yield f"sm_{architecture}{'a' if flags & SPECIFIC else ''}"
            if header < 48 or entry + header + size > start:
                raise ValueError("an entry does not fit into its container")
            entry += header + size


@dataclass(frozen=True, slots=True)
class Finding:
    """One line or more for the table at start; ``wrong`` where something has to be done."""

    text: str
    wrong: bool


def kernels(situation: Situation) -> Finding | None:
    """Whether sgl_kernel's library for Hopper has Hopper's own code; None where this run does not ask for it."""
    if situation.capability != (9, 0) or situation.quantization is None:
        return None
    try:
        spec = importlib.util.find_spec("sgl_kernel")
    except (ValueError, ImportError):  # a stand-in without a spec
        return None
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in Path(root).glob("sm90/common_ops*.so"):
            return look(path, situation.version)
    return None


def look(path: Path, version: str, machine: str = "") -> Finding:
    """What is in one library. ``machine`` is this one's unless given."""
    try:
        found = architectures(path)
    except (OSError, ValueError) as error:
        return Finding(f"sm_90a kernels: {path} cannot be read: {error}", wrong=True)
    if "sm_90a" in found:
        return Finding(f"sm_90a kernels: present in {path.name}", wrong=False)
    recipe = RECIPE.format(version=version, machine=machine or platform.machine(), path=path)
    lines = "\n".join(f"  {line}" for line in recipe.splitlines())
    return Finding(
        f"sm_90a kernels: MISSING in {path} (it has {', '.join(sorted(found)) or 'none'}); W4AFP8 and CUTLASS FP8 trap"
        f' with "Arch conditional MMA instruction used without targeting". To rebuild:\n{lines}',
        wrong=True,
    )
