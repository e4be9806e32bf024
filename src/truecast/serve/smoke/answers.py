"""One easy question: the answer, its channels, its usage, what a small budget does to it, and does it repeat."""

from __future__ import annotations

import re
from collections.abc import Iterator

from truecast.serve.smoke.chat import BUDGET, EFFORT, MARKERS, QUESTION, RESULT, Reply, ask
from truecast.serve.smoke.finding import Finding, failed, passed, quoted, warned
from truecast.serve.smoke.http import Refused, Server

LARGER = 4
"""Times the budget that an unfinished answer gets at its second try."""
CUT = 8
"""Tokens: too few for any thinking."""
LEAST_BUDGET = 512
"""What Kimi-K3's model card says ``max_tokens`` should be at least."""
REPEATS = 2
TOKENS_OF_CHARACTERS = 2
"""A reply with this many tokens a character lost some: a token has a character or more, but for markers."""
MARKER_TOKENS = 24
_PARSERS = "start SGLang with --reasoning-parser kimi_k3, vLLM with the parser of its recipe for this model"


def arithmetic(server: Server) -> tuple[Reply | None, Finding]:
    """Ask. The reply is None where there is none that other checks could build on. Raises: ServerFault."""
    name, asked = "arithmetic", f"{QUESTION!r} at reasoning_effort {EFFORT}"
    reply, budget = ask(server, QUESTION), BUDGET
    if _cut(reply):
        more = _with_more(server)
        if more is None or _cut(more):
            tried = BUDGET if more is None else BUDGET * LARGER
            return None, failed(
                name,
                f"{asked}: content empty, finish_reason length after {reply.made if more is None else more.made}"
                f" of max_tokens {tried}: thinking that was cut off, and it does not end for so easy a question",
                "if the count is below max_tokens something caps it (gateway, default); if not, the model rambles: look"
                " at its text, and run truecast check and verify on the checkpoint",
            )
        reply, budget = more, BUDGET * LARGER
    said = re.findall(r"-?\d+", reply.content.replace(",", ""))
    if not reply.content.strip() and not reply.calls:
        return None, failed(
            name,
            f"{asked}: content is empty although the answer finished ({reply.finish}), {reply.made} tokens;"
            f" reasoning_content {quoted(reply.reasoning)}",
            f"the reasoning parser keeps the answer for itself (SGLang pull requests 32567, 33995): update, and {_PARSERS}",
        )
    if not said or int(said[-1]) != RESULT:
        return reply if reply.finish == "stop" and reply.content else None, failed(
            name,
            f"{asked}: {quoted(reply.content)}, not {RESULT}; finish_reason {reply.finish}, {reply.made} tokens",
            "a model that cannot do this is damaged or its kernels are: run truecast check and verify on the checkpoint,"
            " and truecast doctor for the engine",
        )
    if budget > BUDGET:
        return reply, warned(
            name,
            f"{asked}: right, but max_tokens {BUDGET} gave empty content and finish_reason length: its thinking takes"
            f" {reply.made} tokens",
            f"give max_tokens of {advised(reply)} or more",
        )
    return reply, passed(name, f"{asked}: {quoted(reply.content)}, {reply.made} tokens")


def advised(reply: Reply) -> int:
    """A ``max_tokens`` that leaves room: four times what an easy question took, 512 at least, in steps of 256."""
    return max(LEAST_BUDGET, -(-4 * reply.made // 256) * 256)


def _cut(reply: Reply) -> bool:
    return reply.finish == "length" and not reply.content.strip()


def _with_more(server: Server) -> Reply | None:
    """The reply with a larger budget; None where the context has no room for it."""
    try:
        return ask(server, QUESTION, max_tokens=BUDGET * LARGER)
    except Refused as error:
        if error.status != 400:
            raise
        return None


def channels(reply: Reply) -> Finding:
    """Thinking in its own channel, the answer in the other, and no marker in either."""
    name = "channels"
    for where, text in (("content", reply.content), ("reasoning_content", reply.reasoning)):
        for marker in MARKERS:
            if marker in text:
                return failed(name, f"{marker} in {where}: {quoted(text)}", f"nobody parses the channels: {_PARSERS}")
    if reply.reasoning.strip():
        seen = f"reasoning_content {quoted(reply.reasoning)}, content {quoted(reply.content)}"
        return passed(name, seen)
    if "\n" in reply.content.strip():
        return failed(
            name, f"reasoning_content is empty and content has several lines: {quoted(reply.content)}",
            f"the thinking stands in content: {_PARSERS}",
        )  # fmt: skip
    if reply.made > MARKER_TOKENS + TOKENS_OF_CHARACTERS * len(reply.content):
        return failed(
            name, f"{reply.made} tokens were made, but content is {quoted(reply.content)} and reasoning_content empty",
            f"the thinking is lost between engine and client: {_PARSERS}",
        )  # fmt: skip
    return warned(
        name, f"reasoning_content is empty at reasoning_effort {EFFORT}; content {quoted(reply.content)}",
        f"right for a model that does not think; Kimi-K3 does: {_PARSERS}",
    )  # fmt: skip


def usage(reply: Reply) -> Finding:
    """Token counts of the whole answer."""
    name, seen = "usage", f"prompt {reply.prompt_tokens}, completion {reply.made}, total {reply.total}"
    if reply.prompt_tokens > 0 and reply.made > 0 and reply.total == reply.prompt_tokens + reply.made:
        return passed(name, seen)
    return failed(
        name, f"{seen} (-1: not given)", "whoever bills or plans by usage is misled: look at what lies between"
    )


def truncation(server: Server, whole: Reply) -> Finding:
    """The same question with far too small a budget. Raises: ServerFault."""
    name, reply = "truncation", ask(server, QUESTION, max_tokens=CUT)
    seen = f"max_tokens {CUT}: content {quoted(reply.content)}, finish_reason {reply.finish}, {reply.made} tokens"
    if reply.made > CUT:
        return failed(name, seen, "max_tokens is not kept: does a proxy rename or drop it?")
    if whole.made > CUT and reply.finish != "length":
        return failed(name, seen, "finish_reason must be length here: clients take this for a whole answer")
    if any(marker in reply.content for marker in MARKERS) or (reply.content.strip() and whole.reasoning.strip()):
        return failed(
            name, f"{seen}: unfinished thinking stands in content",
            "the reasoning parser must keep an unclosed think channel out of content: update the engine",
        )  # fmt: skip
    return passed(
        name,
        f"{seen}: empty content with finish_reason length is thinking that was cut off, not a broken model; this"
        f" question took {whole.made} tokens, so give max_tokens of {advised(whole)} or more",
    )


def determinism(server: Server, first: Reply) -> tuple[bool, Finding]:
    """The same request again, alone. True where it repeats. Raises: ServerFault."""
    name = "determinism"
    texts = [first.text] + [ask(server, QUESTION, max_tokens=_budget(first)).text for _ in range(REPEATS)]
    differ = [text for text in texts[1:] if text != texts[0]]
    if not differ:
        return True, passed(name, f"{len(texts)} equal answers to the same request alone, temperature 0")
    return False, failed(
        name,
        f"{len(differ)} of {REPEATS} repetitions differ at temperature 0, one request at a time:"
        f" {quoted(_apart(texts[0], differ[0]))}",
        "atomic adds (SGLang's Marlin for NVFP4) do that: truecast's plug-in turns them off; also look for a"
        " temperature that a gateway replaces, and for replicas that differ",
    )


def among_others(alone: Reply, crowded: Reply) -> Finding:
    """The same request while others run. Engines choose kernels by batch size, so a difference is no fault."""
    name = "batch-variance"
    if alone.text == crowded.text:
        return passed(name, "the same answer alone and among others")
    return warned(
        name,
        f"another answer among other requests than alone: {quoted(_apart(alone.text, crowded.text))}",
        "no fault: sums run in another order for another batch, and engines are not batch-invariant unless told;"
        " compare runs by scores or KL, not by equal text",
    )


def _budget(first: Reply) -> int:
    return BUDGET if first.made <= BUDGET else BUDGET * LARGER


def _apart(one: tuple[object, ...], other: tuple[object, ...]) -> str:
    pairs: Iterator[tuple[str, str]] = ((str(a), str(b)) for a, b in zip(one, other, strict=True) if a != b)
    first, second = next(pairs)
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return f"{first[max(0, at - 20) : at + 20]} / {second[max(0, at - 20) : at + 20]}"
