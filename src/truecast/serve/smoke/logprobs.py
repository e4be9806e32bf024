"""Log-probabilities that a chat gives with its tokens: are they any?"""

from __future__ import annotations

import math
from typing import Any

from truecast.serve.smoke.chat import QUESTION, ask
from truecast.serve.smoke.finding import Finding, failed, passed, skipped
from truecast.serve.smoke.http import Refused, Server

TOP, TOKENS = 5, 16
SLACK = 1e-3
"""Of float32 sums over a vocabulary."""
TIE = 0.01
"""Two tokens this close in log-probability may change places."""


def logprobs(server: Server) -> Finding:
    """Ask for some. Raises: ServerFault."""
    name = "logprobs"
    try:
        reply = ask(server, QUESTION, logprobs=True, top_logprobs=TOP, max_tokens=TOKENS)
    except Refused as error:
        if error.status >= 500:
            raise
        return skipped(name, f"the server gives none: {error}")
    entries = reply.logprobs.get("content") if isinstance(reply.logprobs, dict) else None
    if not entries:
        return skipped(name, "the server gives none with a chat")
    try:
        wrong = next((w for w in map(_wrong, entries) if w), "")
    except (KeyError, TypeError, AttributeError):
        return failed(
            name, "they have no token, logprob or top_logprobs", "not OpenAI's form: clients cannot read them"
        )
    if wrong:
        return failed(
            name, wrong, "evaluations by likelihood are void on this server: see truecast doctor and the engine's log"
        )
    return passed(
        name, f"{len(entries)} tokens: at most 0, finite, the {TOP} best sum to 1 or less, the best was taken"
    )


def _wrong(entry: dict[str, Any]) -> str:
    token, value = entry["token"], entry["logprob"]
    best = [(str(top["token"]), top["logprob"]) for top in entry["top_logprobs"]]
    for text, number in [(token, value), *best]:
        if not isinstance(number, int | float) or not math.isfinite(number):
            return f"{text!r} has {number}"
        if number > SLACK:
            return f"{text!r} has {number}, a probability above 1"
    total = math.fsum(math.exp(number) for _, number in best)
    if total > 1 + SLACK:
        return f"the {len(best)} best beside {token!r} have probabilities of {total:.4f} in all"
    if best and value < max(number for _, number in best) - TIE:
        return f"{token!r} has {value}, {best[0][0]!r} {best[0][1]}: not the best was taken at temperature 0"
    return ""
