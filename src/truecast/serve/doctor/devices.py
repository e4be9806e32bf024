"""GPUs of this machine, where there are any: are they those of the topology, free, healthy and at full power?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.nodes import elsewhere, here
from truecast.serve.machine import GpuState

IDLE = 1 << 30
"""Bytes that a GPU without work may show as used: the driver's own share is below."""
CUDA_13_DRIVER = 580
"""First branch of NVIDIA's driver for CUDA 13 (release notes of CUDA 13.0)."""
_SMI = "nvidia-smi --help-query-gpu"


def _each(judge: Callable[[Ground, Sequence[GpuState]], Verdict]) -> Callable[[Ground], Verdict]:
    def run(ground: Ground) -> Verdict:
        if why := elsewhere(ground):
            return skipped(why)
        machine = here(ground)
        gpus = machine.gpus()
        if gpus is None:
            return skipped("no GPU here: there is no nvidia-smi, or it does not answer")
        return judge(ground, gpus) if gpus else skipped("no GPU here: nvidia-smi lists none")

    return run


def _those(ground: Ground, gpus: Sequence[GpuState]) -> Verdict:
    names = sorted({f"{gpu.name} ({gpu.capability})" for gpu in gpus})
    said = f"{len(gpus)} of {', '.join(names)}"
    if len(names) > 1:
        return warned(f"{said}: not all of one kind", "take nodes with one kind of GPU: the slowest sets the pace")
    if (topology := ground.topology) is None:
        return passed(said)
    found = gpus[0].capability
    if found is not None and found != topology.gpu.capability:
        return failed(
            f"{said}, and the topology says {topology.gpu.title} ({topology.gpu.capability})",
            "give the topology of the machines that serve, or run the doctor on one of them",
        )
    if len(gpus) < topology.per_node:
        return failed(
            f"{said}, and {topology} has {topology.per_node} a node", "look for the missing ones with nvidia-smi"
        )
    return passed(f"{said}; {topology} is asked for")


def _free(ground: Ground, gpus: Sequence[GpuState]) -> Verdict:
    if ground.server is not None:
        return skipped("the server runs: it holds their memory")
    busy = [gpu for gpu in gpus if gpu.used > IDLE or gpu.processes]
    if not busy:
        return passed(f"at most {max(gpu.used for gpu in gpus) / 1e9:.1f} GB of each are used, by no process")
    said = "; ".join(
        f"GPU {gpu.index}: {gpu.used / 1e9:.1f} of {gpu.memory / 1e9:.1f} GB used"
        + "".join(f", process {pid} {size / 1e9:.1f}" for pid, size in gpu.processes)
        for gpu in busy
    )
    remedy = "end those processes; SGLang takes its share of what is free when it starts, the least over all ranks"
    if ground.model is not None and ground.arguments is not None:
        need = ground.model.weights.per_gpu(max(1, ground.number("--tp-size", 1)))
        if any(gpu.memory - gpu.used < need for gpu in busy):
            return failed(f"{said}; the weights alone take {need / 1e9:.1f} GB each", remedy)
    return warned(said, remedy)


def _driver(ground: Ground, gpus: Sequence[GpuState]) -> Verdict:
    driver = gpus[0].driver
    branch = driver.partition(".")[0]
    torch = ground.installation.versions.get("torch", "") if ground.installation is not None else ""
    said = f"driver {driver}" + (f", torch {torch}" if torch else "")
    if not branch.isdecimal():
        return unknown(f"{said}: no version", "look at nvidia-smi")
    if "+cu13" not in torch:
        return passed(said) if int(branch) >= CUDA_13_DRIVER else skipped(f"{said}: nothing here wants CUDA 13")
    if int(branch) >= CUDA_13_DRIVER:
        return passed(said)
    return warned(
        f"{said}: CUDA 13 wants driver {CUDA_13_DRIVER} or newer, unless its compatibility package is there",
        f"install driver {CUDA_13_DRIVER}, or NVIDIA's package cuda-compat-13-0 on data-centre GPUs",
    )


def _health(ground: Ground, gpus: Sequence[GpuState]) -> Verdict:
    wrong = [f"GPU {g.index}: {g.ecc_errors} uncorrected ECC errors" for g in gpus if g.ecc_errors]
    if wrong:
        return failed(
            "; ".join(wrong), "reset or replace the GPU: its memory gives wrong numbers (nvidia-smi -q -d ECC)"
        )
    told = [g for g in gpus if g.ecc_errors is not None]
    if not told:
        return unknown("the driver tells of no ECC errors", "look at nvidia-smi -q -d ECC, and dmesg for Xid")
    return passed(f"no uncorrected ECC errors on {len(told)} GPUs since the driver was loaded")


def _mode(ground: Ground, gpus: Sequence[GpuState]) -> Verdict:
    if cut := [str(g.index) for g in gpus if g.mig]:
        said = f"MIG is on: GPU {', '.join(cut)}"
        if ground.number("--tp-size", 1) > 1:
            return failed(
                f"{said}; NCCL does not join parts of GPUs", "switch MIG off: nvidia-smi -mig 0, by who runs them"
            )
        return warned(f"{said}: a server gets one part", "switch MIG off: nvidia-smi -mig 0, by who runs them")
    low = [g for g in gpus if g.power_limit and g.power_default and g.power_limit < g.power_default]
    if low:
        said = "; ".join(f"GPU {g.index}: {g.power_limit:g} of {g.power_default:g} W" for g in low)
        return warned(f"power is limited: {said}", "nvidia-smi -pl, by who runs them: the slowest rank sets the pace")
    if slow := [str(g.index) for g in gpus if g.persistent is False]:
        return warned(
            f"persistence mode is off: GPU {', '.join(slow)}; the driver is loaded anew with each first process",
            "nvidia-smi -pm 1, or the service nvidia-persistenced",
        )
    return passed("no MIG, full power, persistence mode")


CHECKS: Iterable[Check] = (
    Check("gpu.those", "the GPUs are those of the topology", _each(_those), (_SMI,)),
    Check("gpu.free", "the GPUs are free", _each(_free), (_SMI, "SGLang, ModelRunner's memory profile")),
    Check(
        "gpu.driver",
        "the driver runs the CUDA that torch was built for",
        _each(_driver),
        ("https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html",),
    ),
    Check("gpu.health", "the GPUs' memory is healthy", _each(_health), ("https://lib.rs/crates/gpu-fryer", _SMI)),
    Check("gpu.mode", "the GPUs are whole and at full power", _each(_mode), (_SMI, "https://lib.rs/crates/gpu-fryer")),
)
