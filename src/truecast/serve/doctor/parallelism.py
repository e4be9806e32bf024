"""Whether the checkpoint can be divided as the arguments ask: ranks, experts, scale groups, attention heads."""

from __future__ import annotations

from collections.abc import Iterable

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.nodes import place, placeholder

GATE = "sglang.kernels.ops.attention.fla.fused_norm_gate"
_READ = "g = g.reshape(-1, g.shape[-1])"


def _sizes(ground: Ground) -> tuple[int, int, int]:
    """TP, EP, and the ranks that share one copy of attention."""
    tp, ep, dp = (ground.number(name, 1) for name in ("--tp-size", "--ep-size", "--dp-size"))
    return tp, ep, tp // dp if ground.argument("--enable-dp-attention") is not None and dp else tp


def _ranks(ground: Ground) -> Verdict:
    if ground.arguments is None:
        return skipped("the server's arguments are not given")
    tp, ep, _ = _sizes(ground)
    pp, nodes = ground.number("--pp-size", 1), ground.number("--nnodes", 1)
    said = f"--tp-size {tp}, --ep-size {ep}, --pp-size {pp}, --nnodes {nodes}"
    if not tp or not ep or tp % ep:
        return failed(f"{said}: EP does not divide TP", "take an --ep-size that divides --tp-size")
    if not nodes or tp * pp % nodes:
        return failed(f"{said}: {tp * pp} ranks are no whole number a node", "take a --tp-size that --nnodes divides")
    rank = ground.argument("--node-rank") or "0"
    if not placeholder(rank) and not (rank.isdecimal() and len(rank) < 10 and int(rank) < nodes):
        return failed(f"{said}: --node-rank {rank} is none of 0 to {nodes - 1}", "count nodes from 0")
    if (topology := ground.topology) is None:
        return passed(said)
    if nodes > topology.nodes or tp * pp // nodes > topology.per_node:
        return failed(
            f"{said}: {tp * pp} ranks on {nodes} nodes, and {topology} has less", f"take {topology.gpus} ranks"
        )
    copies = topology.gpus // (tp * pp)
    return passed(f"{said} on {topology}" + (f": room for {copies} copies of the server" if copies > 1 else ""))


def _split(ground: Ground) -> Verdict:
    if why := _nothing(ground):
        return skipped(why)
    assert ground.model is not None
    model, legal = ground.model, ground.model.parallel
    tp, ep, attention = _sizes(ground)
    inside = tp // ep if ep else 0
    said = f"TP {tp}, EP {ep}: each expert over {inside}, attention over {attention} ranks"
    if model.experts and ep not in legal.ep:
        return failed(f"{said}; {model.experts} experts are not divided by {ep}", _remedy(ground, tp))
    if model.experts and inside not in legal.tp:
        return failed(
            f"{said}; scale groups of {model.format} allow each expert over {_some(legal.tp)} ranks",
            _remedy(ground, tp),
        )
    if attention not in legal.dense:
        return failed(f"{said}; its heads and FP8 tiles allow {_some(legal.dense)}", _remedy(ground, tp))
    if model.experts and inside not in legal.unpadded:
        how = (
            "scales are not interleaved by four, and the kernel takes its narrow tiles"
            if model.format == "w4afp8"
            else "kernels pad each part, which costs memory"
        )
        return warned(f"{said}; with {inside} {how} (without that: {_some(legal.unpadded)})", _remedy(ground, tp))
    return passed(said)


def _heads(ground: Ground) -> Verdict:
    if why := _nothing(ground):
        return skipped(why)
    assert ground.model is not None
    linear = ground.model.text.get("linear_attn_config")
    heads = linear.get("num_heads") if isinstance(linear, dict) else None
    if type(heads) is not int:
        return skipped(f"{ground.model.name} has no KDA layers")
    _, _, ranks = _sizes(ground)
    each = heads / ranks if ranks else 0
    where = place(ground, GATE, _READ)
    if each != 1:
        return passed(f"{heads} KDA heads over {ranks} ranks: {each:g} a rank")
    if ground.installation is not None and not _misread(ground.installation.sources(GATE)):
        return passed(f"one KDA head a rank, and {where} copies the gate")
    return failed(
        f"one KDA head a rank: {where} reads the gate through a view with other strides, wrong numbers without an error",
        f"at most --tp-size {heads // 2}, or SGLang 0.5.23",
    )


def _misread(text: str) -> bool:
    return any(line.strip() == _READ for line in text.splitlines())


def _nothing(ground: Ground) -> str | None:
    if ground.model is None:
        return "no checkpoint is given"
    return "the server's arguments are not given" if ground.arguments is None else None


def _remedy(ground: Ground, ranks: int) -> str:
    assert ground.model is not None
    found = ground.model.parallel.split(ranks)
    if found is not None:
        return f"--tp-size {ranks} --ep-size {found[1]}"
    near = [n for n in ground.model.parallel.dense if ground.model.parallel.split(n)]
    return f"a number of GPUs of {_some(tuple(near))}"


def _some(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes)) or "none"


CHECKS: Iterable[Check] = (
    Check("parallel.ranks", "ranks, nodes and GPUs agree", _ranks, ("SGLang, check_server_args",)),
    Check(
        "parallel.split",
        "the checkpoint's experts, scale groups and heads can be divided so",
        _split,
        ("sglang/srt/layers/moe/fused_moe_triton/layer.py", "sglang/srt/layers/quantization/w4afp8.py"),
    ),
    Check(
        "parallel.heads",
        "KDA gets more than one head a rank",
        _heads,
        ("docs/log.md (nano-K3 with two heads)", "sglang/kernels/ops/attention/fla/fused_norm_gate.py"),
    ),
)
