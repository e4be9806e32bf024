"""What only a running server can tell: accepted drafts, memory in use, limits that it set itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from truecast.serve.doctor.finding import Check, Verdict, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.server_info import ServerFacts

ACCEPTED = 1.2
"""Tokens a step below which speculation costs more than it brings: less than one draft in five steps."""
RESET = 48
"""``--max-running-requests`` that SGLang sets with speculation where none is given (arg_groups/speculative_hook.py)."""
LEFT = 1.0
"""GiB of a GPU below which the next long prefill may run out of memory."""
_GIB = 1 << 30
_HOOK = "SGLang, speculative_hook.py"


def _state(judge: Callable[[Ground, ServerFacts, Mapping[str, Any]], Verdict]) -> Callable[[Ground], Verdict]:
    """The first data-parallel rank's state; the others have the same arguments."""

    def run(ground: Ground) -> Verdict:
        server = ground.server
        if server is None:
            return skipped("no --server is given")
        if server.engine != "sglang":
            return skipped(f"{server.engine} does not tell")
        if not server.states:
            return unknown(f"{server.url}/server_info holds no internal_states", "look into the server's log")
        return judge(ground, server, server.states[0])

    return run


def _engine(ground: Ground) -> Verdict:
    server = ground.server
    if server is None:
        return skipped("no --server is given")
    if server.engine == "unknown" or server.version is None:
        return unknown(
            f"{server.url} serves {server.model}, and does not say with which engine or version",
            "give the address of the engine itself, not that of a router",
        )
    return passed(f"{server.engine} {server.version} serves {server.model} at {server.url}")


def _accepted(ground: Ground, server: ServerFacts, state: Mapping[str, Any]) -> Verdict:
    if "--speculative-algorithm" not in server.arguments:
        return skipped("the server does not speculate")
    lengths = [
        float(value)
        for s in server.states
        if isinstance(value := s.get("avg_spec_accept_length"), int | float) and value
    ]
    if not lengths:
        return unknown("no draft was verified yet", "send it some requests first")
    window = server.arguments.get("--speculative-num-draft-tokens")
    said = f"{min(lengths):.2f} tokens a step were accepted on average since the start" + (
        f", of at most {window}" if window else ""
    )
    if min(lengths) >= ACCEPTED:
        return passed(said)
    return warned(
        said,
        "restart it if that was better before; else look whether the draft belongs to this model, or serve without",
    )


def _requests(ground: Ground, server: ServerFacts, state: Mapping[str, Any]) -> Verdict:
    effective = state.get("effective_max_running_requests_per_dp")
    if type(effective) is not int:
        return unknown("effective_max_running_requests_per_dp is not told", "look into the server's log")
    asked = server.arguments.get("--max-running-requests")
    said = f"{effective} requests run at once" + (f", --max-running-requests {asked}" if asked else "")
    given = server.launch_command is None or "--max-running-requests" in server.launch_command
    speculates = "--speculative-algorithm" in server.arguments
    if speculates and effective == RESET and (server.launch_command is None or not given):
        return warned(
            f"{said}: {RESET} is what SGLang sets with speculation where none is given; more requests wait",
            "give --max-running-requests, and --max-mamba-cache-size and --cuda-graph-max-bs-decode for as many",
        )
    if asked is not None and asked.isdecimal() and effective < int(asked):
        return warned(
            f"{said}: memory allows no more",
            "more slots (--max-mamba-cache-size), a larger --mem-fraction-static, or fewer --max-running-requests",
        )
    return passed(said)


def _radix(ground: Ground, server: ServerFacts, state: Mapping[str, Any]) -> Verdict:
    if "--disable-radix-cache" in server.arguments:
        return passed("--disable-radix-cache: equal prompts are computed anew")
    return warned(
        "the radix cache is on: prompts that repeat are not computed again, so a benchmark that repeats them is too fast",
        "nothing for users; for a benchmark --disable-radix-cache, or prompts that differ and /flush_cache between runs",
    )


def _memory(ground: Ground, server: ServerFacts, state: Mapping[str, Any]) -> Verdict:
    usage = _usage(state)
    if usage is None:
        return unknown("memory_usage is not told", "look into the server's log")
    graph = usage.get("graph")
    graphs = sum(v for v in graph.values() if isinstance(v, int | float)) if isinstance(graph, dict) else 0.0
    left = usage["startup_available"] - usage["weight"] - usage["kvcache"] - graphs
    said = (
        f"GiB a GPU: {usage['startup_available']:.1f} at start, weights {usage['weight']:.1f}, KV cache {usage['kvcache']:.1f}"
        f" for {server.max_total_tokens or 0:,} tokens, graphs {graphs:.1f}; {left:.1f} left"
    )
    if left < LEFT:
        return warned(f"{said}; a long prefill may find none", "lower --mem-fraction-static or --chunked-prefill-size")
    context = ground.model.context if ground.model is not None else 0
    if server.max_total_tokens and context and server.max_total_tokens < context:
        return warned(
            f"{said}; no request reaches the model's context of {context:,}",
            "set --context-length to what fits, or give the KV cache more (--kv-cache-dtype, --mem-fraction-static)",
        )
    return passed(said)


def _weights(ground: Ground, server: ServerFacts, state: Mapping[str, Any]) -> Verdict:
    if ground.model is None:
        return skipped("no checkpoint is given to compare with")
    usage, ranks = _usage(state), server.arguments.get("--tp-size", "1")
    if usage is None or not ranks.isdecimal():
        return unknown("memory_usage is not told", "look into the server's log")
    stored, held = ground.model.weights.per_gpu(max(1, int(ranks))), usage["weight"] * _GIB
    said = f"weights take {held / 1e9:.1f} GB a GPU; the checkpoint has {stored / 1e9:.1f} for each of {ranks}"
    if held > 1.5 * stored:
        return warned(
            f"{said}: they are not held as they are stored",
            "name the experts' kernel: without --moe-runner-backend SGLang expands MXFP4 to BF16 on Hopper",
        )
    if held < 0.7 * stored:
        return warned(
            f"{said}: not all of it was loaded", "is it the same checkpoint? look for skipped tensors in its log"
        )
    return passed(said)


def _usage(state: Mapping[str, Any]) -> dict[str, Any] | None:
    found = state.get("memory_usage")
    names = ("weight", "kvcache", "startup_available")
    if not isinstance(found, dict) or not all(isinstance(found.get(name), int | float) for name in names):
        return None
    return found


CHECKS: Iterable[Check] = (
    Check("server.engine", "the server says what it is", _engine, ("sglang/srt/entrypoints/http_server.py",)),
    Check(
        "server.accepted",
        "drafts are accepted",
        _state(_accepted),
        ("https://github.com/sgl-project/sglang/pull/32422",),
    ),
    Check("server.requests", "as many requests run at once as were asked for", _state(_requests), (_HOOK,)),
    Check(
        "server.radix-cache",
        "no prompt is answered out of the cache",
        _state(_radix),
        ("https://docs.sglang.io/advanced_features/server_arguments.html",),
    ),
    Check(
        "server.memory",
        "memory is left, and the KV cache reaches the model's context",
        _state(_memory),
        ("https://github.com/sgl-project/sglang/pull/34638", "SGLang, memory_usage.py"),
    ),
    Check(
        "server.weights",
        "weights are held in memory as they are stored",
        _state(_weights),
        ("SGLang, arg_groups/model_overrides/kimi_k3.py",),
    ),
)
