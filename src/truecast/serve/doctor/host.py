"""The node itself: clock, limits, shared memory, the checkpoint's file system, room for compiled kernels, CPUs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.nodes import elsewhere, here

FILES = 65535
"""Open files to which SGLang raises its soft limit; it leaves it as it is where the hard limit is lower."""
RING = 10 * (10 << 20)
"""Bytes in shared memory of one message queue: ten pieces of 10 MiB (device_communicators/shm_broadcast.py)."""
SHARED = 1 << 30
"""What NCCL's documentation gives a container."""
COMPILED = 1 << 30
"""Bytes below which compiled kernels may find no room: those of one model and GPU are some hundred MB."""
SKEW = 1.0
"""Seconds of clock error from which logs of two nodes can no longer be laid beside each other."""
_SHM = Path("/dev/shm")
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_CACHES = ("SGLANG_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR")


def _clock(ground: Ground) -> Verdict:
    if why := elsewhere(ground):
        return skipped(why)
    machine = here(ground)
    clock = machine.clock()
    remedy = "run chrony, ntpd or systemd-timesyncd; skew only matters for logs, metrics and TLS, not for the ranks"
    if clock is None:
        return unknown("the kernel does not say whether the clock is kept in step (adjtimex)", remedy)
    if not clock.synchronised:
        return warned("the kernel says that nobody keeps the clock in step (adjtimex: STA_UNSYNC)", remedy)
    said = f"in step, at most {clock.error:.3f} s off (adjtimex)"
    return passed(said) if clock.error <= SKEW else warned(said, remedy)


def _files(ground: Ground) -> Verdict:
    if why := elsewhere(ground):
        return skipped(why)
    machine = here(ground)
    soft, hard = machine.limits().files
    said = f"open files: {_many(soft)}, at most {_many(hard)} (ulimit -n)"
    if hard is None or hard >= FILES or (soft is not None and soft >= FILES):
        return passed(f"{said}; SGLang raises it to {FILES:,}")
    return warned(
        f"{said}: SGLang cannot raise it to {FILES:,}, and leaves it",
        f"ulimit -Hn {FILES} or more; in Docker --ulimit nofile={FILES}:{FILES}",
    )


def _many(limit: int | None) -> str:
    return "unlimited" if limit is None else f"{limit:,}"


def _shared(ground: Ground) -> Verdict:
    if why := elsewhere(ground):
        return skipped(why)
    machine = here(ground)
    found = machine.file_system(_SHM)
    if found is None:
        return unknown(f"{_SHM} cannot be looked at", "give the container shared memory: --shm-size=16g")
    said = f"{_SHM}: {found.free / 1e6:,.0f} of {found.size / 1e6:,.0f} MB free ({found.kind})"
    remedy = "in Docker --shm-size=16g or --ipc=host, in Kubernetes an emptyDir of medium Memory there"
    if ground.number("--tp-size", 1) > 1 and found.free < RING:
        return failed(f"{said}, and a message queue between ranks takes {RING / 1e6:,.0f}", remedy)
    return passed(said) if found.free >= SHARED else warned(f"{said}, less than NCCL wants", remedy)


def _storage(ground: Ground) -> Verdict:
    if ground.model is None:
        return skipped("no checkpoint is given")
    if why := elsewhere(ground):
        return skipped(why)
    machine = here(ground)
    folder = Path(ground.model.location)
    if not folder.is_dir():
        return skipped(f"{ground.model.location} is no folder here")
    found, size, memory = machine.file_system(folder.resolve()), ground.model.weights.total, machine.memory()
    if found is None:
        return unknown(f"the file system of {folder} cannot be told", "compare df -T on each node")
    room = f", {memory / 1e9:,.0f} GB of memory" if memory is not None else ""
    held = machine.cached(sorted(folder.glob("*.safetensors")))
    room += "" if held is None else f", {held:.0%} of it in the page cache now"
    said = f"{size / 1e9:,.0f} GB on {found.kind}, mounted at {found.mount}{room}"
    if found.in_memory:
        return warned(
            f"{said}: it takes the memory that pinned buffers and the page cache want", "keep it on a local disk"
        )
    if found.kind == "overlay":
        return warned(
            f"{said}: within the container's own layers, gone with it", "mount the folder that holds the checkpoint"
        )
    if found.over_network:
        return warned(
            f"{said}: every node reads it over the network",
            "copy it to a local disk of each node, or let each rank read its own experts only (expert-load-filter)",
        )
    cold = " (it does not fit in the page cache: each start reads it from the disk)" if memory and size > memory else ""
    return passed(said + cold)


def _room(ground: Ground) -> Verdict:
    if why := elsewhere(ground):
        return skipped(why)
    machine = here(ground)
    named = [ground.environment[name] for name in _CACHES if ground.environment.get(name)]
    home = ground.environment.get("HOME")
    folders = [Path(name) for name in named if name.startswith("/")] + ([Path(home) / ".cache"] if home else [])
    if not folders:
        return skipped("neither HOME nor a folder for compiled kernels is set")
    known = [(f, s) for f in folders if (s := machine.file_system(f)) is not None]
    said = "; ".join(f"{folder}: {found.free / 1e9:,.1f} GB free" for folder, found in known)
    if not known:
        return unknown("the file systems of compiled kernels cannot be told", f"look at {', '.join(map(str, folders))}")
    if any(found.free < COMPILED for _, found in known):
        return failed(
            f"{said}: kernels compiled at start find no room", f"make room, or set {_CACHES[0]} to another disk"
        )
    return passed(said)


def _governor(ground: Ground) -> Verdict:
    if why := elsewhere(ground):
        return skipped(why)
    machine = here(ground)
    governors = machine.governors()
    if not governors:
        return skipped("frequencies of the CPUs are not set here (no cpufreq)")
    said = f"frequency governor of the CPUs: {', '.join(governors)}"
    if governors[0] == "performance" and len(governors) == 1:
        return passed(said)
    return warned(f"{said}; scheduler and tokenizer are bound by one core", "cpupower frequency-set -g performance")


CHECKS: Iterable[Check] = (
    Check("node.clock", "the clock is kept in step", _clock, ("adjtimex(2)",)),
    Check("node.files", "as many files may be open as SGLang wants", _files, ("SGLang, utils/common.py, set_ulimit",)),
    Check(
        "node.shared-memory",
        "shared memory holds what ranks of a node exchange",
        _shared,
        (_NCCL, "sglang/srt/distributed/device_communicators/shm_broadcast.py"),
    ),
    Check(
        "node.storage",
        "the checkpoint lies on a disk of this node",
        _storage,
        ("https://github.com/sgl-project/sglang/pull/39629",),
    ),
    Check("node.room", "compiled kernels find room on a disk", _room, ("sglang/srt/environ.py, SGLANG_CACHE_DIR",)),
    Check("node.governor", "CPUs run at full speed", _governor, ("https://github.com/ai-dynamo/aiperf/issues/1424",)),
)
