"""What the server takes and refuses: its health, names of models, reasoning efforts, requests that make no sense."""

from __future__ import annotations

from collections.abc import Sequence

from truecast.serve.smoke.chat import EFFORT, QUESTION, ask, body
from truecast.serve.smoke.finding import Finding, failed, passed, quoted, skipped, warned
from truecast.serve.smoke.http import Refused, Server, ServerFault

EFFORTS = ("low", "high", "max")
"""What Kimi-K3's chat format has."""
NO_EFFORT = "ludicrous"
BETWEEN = "medium"
"""OpenAI's clients send it. The format's own text names it, but the published encoder has only :data:`EFFORTS`."""
NO_MODEL = "truecast-smoke-no-such-model"
PREFIX = 32
"""Tokens of two answers that are compared."""


def health(server: Server) -> Finding:
    """``/health``. Raises: NoAnswer."""
    answer = server.get(f"{server.root}/health")
    if answer.status == 200:
        return passed("health", "/health answers 200")
    if answer.status in (404, 405):
        return skipped("health", f"/health answers {answer.status}: this server has none")
    return failed(
        "health", f"/health answers {answer.status}: {answer.reason()}", "load balancers take it out: see its log"
    )


def model_name(server: Server, names: Sequence[str]) -> Finding:
    """The name asked for is listed, another is refused. Raises: NoAnswer."""
    name, listed = "model-name", ", ".join(names)
    if server.model not in names:
        return failed(
            name, f"{server.model!r} is not listed: {listed}", "give --model, or --served-model-name to the engine"
        )
    status = server.post("/chat/completions", body(server, QUESTION, max_tokens=1) | {"model": NO_MODEL}).status
    if 400 <= status < 500:
        return passed(name, f"{server.model!r} is listed; {NO_MODEL!r} is answered {status}")
    seen = f"{NO_MODEL!r} is answered {status}"
    if server.sglang and status == 200:
        return warned(name, f"{seen}: SGLang answers to any name", "a client that means another server will not notice")
    return failed(name, seen, "a wrong model must be refused with 404: clients that mean another server do not notice")


def efforts(server: Server) -> list[Finding]:
    """Low, high and max are taken and differ; another is refused. Raises: ServerFault."""
    name, replies = "efforts", {}
    for effort in EFFORTS:
        try:
            tokens = 1 if effort == EFFORT else PREFIX  # only the other two are compared
            replies[effort] = ask(server, QUESTION, reasoning_effort=effort, max_tokens=tokens)
        except Refused as error:
            return [
                failed(name, f"reasoning_effort {effort}: {error}", "Kimi-K3 has low, high and max: update the engine")
            ]
    status = server.post("/chat/completions", body(server, QUESTION, reasoning_effort=NO_EFFORT, max_tokens=1)).status
    if not 400 <= status < 500:
        fix = "an effort that does not exist must be refused: a typo runs at the default, which is max"
        return [failed(name, f"reasoning_effort {NO_EFFORT} is answered {status}", fix)]
    if replies["low"].text == replies["max"].text:
        said = replies["low"].reasoning + replies["low"].content
        return [
            failed(
                name,
                f"the first {PREFIX} tokens at low and at max are the same: {quoted(said)}",
                "the effort does not reach the prompt (Kimi-K3: thinking_effort of its encoder): update the engine",
            )
        ]
    return [
        passed(name, f"{', '.join(EFFORTS)} are taken and differ; {NO_EFFORT} is answered {status}"),
        _between(server),
    ]


def _between(server: Server) -> Finding:
    name = "effort-medium"
    status = server.post("/chat/completions", body(server, QUESTION, reasoning_effort=BETWEEN, max_tokens=1)).status
    if 400 <= status < 500:
        return passed(name, f"reasoning_effort {BETWEEN}, which Kimi-K3 does not have, is answered {status}")
    more = ", and SGLang runs Kimi-K3 at the encoder's default, max" if server.sglang else ""
    return warned(
        name, f"reasoning_effort {BETWEEN} is answered {status}{more}",
        "right for models that have it; for Kimi-K3 send low, high or max: OpenAI's clients send medium",
    )  # fmt: skip


def bad_requests(server: Server) -> Finding:
    """Requests that make no sense are the client's fault, 4xx, and the server lives on."""
    good = body(server, QUESTION, max_tokens=1)
    without = {key: value for key, value in good.items() if key != "messages"}
    bad: dict[str, dict[str, object] | bytes] = {
        "broken JSON": b'{"messages": [',
        "no messages": without,
        "max_tokens that is a word": good | {"max_tokens": "many"},
        "temperature -1": good | {"temperature": -1},
    }
    name = "bad-requests"
    wrong: list[str] = []
    seen: list[str] = []
    for what, request in bad.items():
        try:
            status = server.post("/chat/completions", request).status
        except ServerFault as error:
            wrong.append(f"{what}: {error}")
            continue
        (seen if 400 <= status < 500 else wrong).append(f"{what}: {status}")
    if wrong:
        return failed(name, "; ".join(wrong), "must be answered 4xx: a 5xx makes clients try again, a hang holds them")
    try:
        ask(server, QUESTION, max_tokens=1)
    except ServerFault as error:
        return failed(
            name, f"after {'; '.join(seen)} a good request: {error}", "bad requests bring it down: see its log"
        )
    return passed(name, "; ".join(seen))
