"""Times that ranks wait for each other while a model is loaded, against how long loading takes here.

Two clocks run. NCCL's (``--dist-timeout``, 600 s by default) catches the first rank that is done with Marlin's repack and
enters a collective alone. The barrier after loading has 480 s written into SGLang's source, whatever is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from truecast.engines.sglang.choice import seconds
from truecast.engines.sglang.fix import Fix
from truecast.engines.sglang.fixes import expert_load_filter, load_barrier
from truecast.serve.doctor.faults import plugin_state
from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.nodes import elsewhere, here, place
from truecast.serve.forecast.constants import NODE_READ
from truecast.serve.forecast.ready import repack_seconds
from truecast.serve.machine import ReadRate

DIST_TIMEOUT = 600
"""Seconds: NCCL's default in torch, which SGLang leaves where ``--dist-timeout`` is not given."""
SLOWEST = 0.1e9
"""Bytes a second that one hard disk or a network of 1 Gbit/s gives: no checkpoint is served from less."""
BARRIER = 480
"""Seconds, in SGLang 0.5.17 to 0.5.23."""
MARGIN = 4
"""An hour was published to be enough for Kimi-K3 on one group of experts, 600 s not to be, and nothing between: the
forecast of some 820 s may be off by this factor."""
_CARD = "https://huggingface.co/PatronusAI/kimi-k3-nvfp4"


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
    took = repack_seconds(ground.model, ep)
    given = f"--dist-timeout {limit}" if ground.argument("--dist-timeout") else f"NCCL's default of {limit} s"
    said = f"a rank repacks its experts for Marlin (EP {ep}) in some {took:,.0f} s; {given}"
    remedy = f"--dist-timeout {max(3600, _round(MARGIN * took))}, or more ranks of experts (--ep-size)"
    if limit >= MARGIN * took:
        return passed(said)
    return warned(said, remedy) if limit > took else failed(said, remedy)


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
    rate, why = _rate(ground)
    if rate is None and size <= SLOWEST * limit:
        return passed(f"each node reads {size / 1e9:.2f} GB{which}, in time at {SLOWEST / 1e9:g} GB/s already; {told}")
    if rate is None:
        usual = f"published deployments had about {NODE_READ / 1e9:g}"
        said = f"{need}: {wanted / 1e9:.2f} GB/s would be needed ({usual}); not measured: {why}"
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


def _rate(ground: Ground) -> tuple[ReadRate | None, str]:
    """The measured rate of the checkpoint's shards, or why there is none."""
    assert ground.model is not None
    if why := elsewhere(ground):
        return None, why
    machine = here(ground)
    files = sorted(Path(ground.model.location).glob("*.safetensors"))
    if not files:
        return None, f"{ground.model.location} is no folder here"
    return machine.read_rate(files), "its files have holes, lie in memory, or are too small"


def bytes_of_a_node(ground: Ground) -> tuple[int, str]:
    """What one node reads, and why it is less than everything where it is.

    Stock SGLang reads every tensor on every rank; those of one node share it through the page cache.
    """
    assert ground.model is not None
    weights, ep = ground.model.weights, ground.number("--ep-size", 1)
    ranks = ground.number("--tp-size", 1) // ground.number("--nnodes", 1)
    groups = max(1, min(ep, ranks * ep // max(1, ground.number("--tp-size", 1))))
    if ep < 2 or not mended(ground, expert_load_filter.FIX):
        return weights.total, ""
    share = weights.experts * groups // ep + weights.split + weights.whole
    return share, f" of {weights.total / 1e9:,.0f} ({expert_load_filter.FIX.name}: its own experts)"


def mended(ground: Ground, fix: Fix) -> bool:
    """Does the plug-in apply this fix there? Raises: UsageError for a bad ``TRUECAST_SGLANG``."""
    return ground.installation is not None and plugin_state(ground, fix) is None


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
    if not mended(ground, load_barrier.FIX):
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
