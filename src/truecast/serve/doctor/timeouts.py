"""Times that ranks wait for each other while a model is loaded, against how long loading takes here.

Two clocks run. NCCL's (``--dist-timeout``, 600 s by default) catches the first rank that is done with Marlin's repack and
enters a collective alone. The barrier after loading has 480 s written into SGLang's source, whatever is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from truecast.engines.sglang.choice import chosen, seconds
from truecast.engines.sglang.fixes import FIXES, expert_load_filter, load_barrier
from truecast.engines.sglang.plugin import VARIABLE as CHOICE
from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.nodes import elsewhere, place
from truecast.serve.machine import Machine
from truecast.serve.stored_model import StoredModel

DIST_TIMEOUT = 600
"""Seconds: NCCL's default in torch, which SGLang leaves where ``--dist-timeout`` is not given."""
BARRIER = 480
"""Seconds, in SGLang 0.5.17 to 0.5.23."""
REPACK_LEAST, REPACK_MOST = 600 / 247_296, 3600 / 247_296
"""Seconds a matrix of an expert. Kimi-K3 has 247,296; on one group of experts (EP 1) their repack took more than 600 s, and
was through within 3600 (model card of PatronusAI/kimi-k3-nvfp4)."""
_CARD = "https://huggingface.co/PatronusAI/kimi-k3-nvfp4"


def repack_seconds(model: StoredModel, ep: int) -> tuple[float, float]:
    """Least and most seconds that a rank repacks for Marlin: three matrices an expert, one by one in Python."""
    count = matrices(model, ep)
    return count * REPACK_LEAST, count * REPACK_MOST


def matrices(model: StoredModel, ep: int) -> int:
    """Matrices of experts that a rank holds whole or in part."""
    dense = model.text.get("first_k_dense_replace")
    return 3 * -(-model.experts // max(ep, 1)) * (model.layers - (dense if type(dense) is int else 0))


def marlin(ground: Ground) -> bool:
    """Are the experts repacked for Marlin? Asked for, or NVFP4 on a GPU without FP4, where SGLang falls back to it."""
    assert ground.model is not None
    runner = ground.argument("--moe-runner-backend") or "auto"
    if ground.model.format not in ("mxfp4", "nvfp4"):
        return False
    falls_back = ground.model.format == "nvfp4" and 80 <= (ground.capability or 0) < 100
    return runner == "marlin" or (runner == "auto" and falls_back)


def _dist_timeout(ground: Ground) -> Verdict:
    if why := _not_loading(ground):
        return skipped(why)
    assert ground.model is not None
    if not ground.model.experts or not marlin(ground):
        return skipped("experts are not repacked for Marlin")
    limit, ep = ground.number("--dist-timeout", DIST_TIMEOUT), ground.number("--ep-size", 1)
    least, most = repack_seconds(ground.model, ep)
    given = f"--dist-timeout {limit}" if ground.argument("--dist-timeout") else f"NCCL's default of {limit} s"
    count = f"a rank repacks {matrices(ground.model, ep):,} matrices of experts for Marlin (EP {ep})"
    said = f"{count}: {least:,.0f} to {most:,.0f} s; {given}"
    remedy = f"--dist-timeout {max(3600, _round(most))}, or more ranks of experts (--ep-size)"
    if limit >= most:
        return passed(said)
    return warned(said, remedy) if limit > least else failed(said, remedy)


def _barrier(ground: Ground) -> Verdict:
    if why := _not_loading(ground):
        return skipped(why)
    assert ground.model is not None
    limit, told = _limit(ground)
    size, which = bytes_of_a_node(ground)
    wanted = size / limit
    remedy = (
        f"install truecast's plug-in beside SGLang and export {load_barrier.VARIABLE}={{}}, or read the checkpoint once"
        " before (vmtouch, cat) so that it lies in memory"
    )
    need = f"each node reads {size / 1e9:,.0f} GB{which}; {told}"
    machine: Machine | None = ground.machine
    files = sorted(Path(ground.model.location).glob("*.safetensors"))
    rate = None if machine is None or elsewhere(ground) or not files else machine.read_rate(files)
    if rate is None:
        why = "" if files else f": {ground.model.location} is no folder here"
        said = f"{need}: {wanted / 1e9:.2f} GB/s would be needed; the rate was not measured{why}"
        return unknown(said, remedy.format(_round(2 * size / 1e9)))
    took = size / rate.rate
    measured = f"measured {rate.bytes / 1e6:,.0f} MB in {rate.seconds:.2f} s = {rate.rate / 1e9:.2f} GB/s ({rate.how})"
    said = f"{measured}: {need}, which takes {took:,.0f} s"
    if took <= limit:
        return passed(said)
    remedy = remedy.format(_round(2 * took))
    if ground.number("--nnodes", 1) > 1:
        return failed(f"{said}; a node that has it in memory already would wait for the others in vain", remedy)
    return warned(said, remedy)


def bytes_of_a_node(ground: Ground) -> tuple[int, str]:
    """What one node reads, and why it is less than everything where it is.

    Stock SGLang reads every tensor on every rank; those of one node share it through the page cache.
    """
    assert ground.model is not None
    weights, ep = ground.model.weights, ground.number("--ep-size", 1)
    ranks = ground.number("--tp-size", 1) // ground.number("--nnodes", 1)
    groups = max(1, min(ep, ranks * ep // max(1, ground.number("--tp-size", 1))))
    if expert_load_filter.FIX.name not in fixes(ground) or ep < 2:
        return weights.total, ""
    share = weights.experts * groups // ep + weights.split + weights.whole
    return share, f" of {weights.total / 1e9:,.0f} ({expert_load_filter.FIX.name}: its own experts)"


def fixes(ground: Ground) -> frozenset[str]:
    """Names of the plug-in's fixes that are allowed there; none where it is not installed. Raises: UsageError."""
    installed = ground.installation is not None and "truecast" in ground.installation.plugins
    allowed = ground.environment.get("SGLANG_PLUGINS")
    if not installed or (allowed and "truecast" not in [name.strip() for name in allowed.split(",")]):
        return frozenset()
    return chosen(FIXES, {CHOICE: ground.environment.get(CHOICE, "")})


def _limit(ground: Ground) -> tuple[float, str]:
    constant, where = BARRIER, place(ground, load_barrier.MODULE, load_barrier.CONSTANT)
    if ground.installation is not None:
        text = ground.installation.sources(load_barrier.MODULE)
        if not (found := re.search(rf"^{load_barrier.CONSTANT}\b.*=\s*(\d+)", text, re.MULTILINE)):
            raise LookupError(f"{where} has no constant {load_barrier.CONSTANT}")
        constant = int(found[1])
    value = ground.environment.get(load_barrier.VARIABLE)
    if value is None:
        return constant, f"ranks wait {constant} s for each other ({where})"
    if load_barrier.FIX.name not in fixes(ground):
        return (
            constant,
            f"{load_barrier.VARIABLE}={value} is read by nobody without the plug-in: {constant} s ({where})",
        )
    limit = seconds(value)
    return limit, f"ranks wait {limit:g} s for each other ({load_barrier.VARIABLE})"


def _not_loading(ground: Ground) -> str | None:
    if ground.server is not None:
        return "the server runs: it has loaded"
    if ground.model is None:
        return "no checkpoint is given"
    if ground.arguments is None:
        return "the server's arguments are not given"
    return None if ground.number("--tp-size", 1) > 1 else "one rank waits for nobody"


def _round(value: float) -> int:
    """Up to whole ten minutes."""
    return int(-(-value // 600) * 600)


CHECKS: Iterable[Check] = (
    Check(
        "time.dist-timeout",
        "NCCL waits longer than Marlin's repack takes",
        _dist_timeout,
        (_CARD, "sglang/srt/layers/quantization/marlin_utils_fp4.py"),
    ),
    Check(
        "time.load-barrier",
        "ranks wait for each other as long as loading takes",
        _barrier,
        ("https://github.com/sgl-project/sglang/pull/39629", _CARD),
    ),
)
