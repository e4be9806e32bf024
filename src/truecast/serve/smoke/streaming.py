"""The same answer as server-sent events."""

from __future__ import annotations

from truecast.serve.smoke.chat import BUDGET, QUESTION, Reply, ask_streamed
from truecast.serve.smoke.finding import Finding, failed, passed, quoted
from truecast.serve.smoke.http import Server

_REMEDY = "clients that stream get another answer than those that do not: look at the engine's parsers and at proxies"


def streaming(server: Server, whole: Reply, repeats: bool) -> Finding:
    """Ask once more, streamed. ``repeats``: do answers repeat at all, so that texts can be compared?

    Raises: ServerFault.
    """
    name, streamed = "streaming", ask_streamed(server, QUESTION, max_tokens=max(BUDGET, whole.made))
    problems, reply = list(streamed.problems), streamed.reply
    if repeats:
        for what, one, other in (
            ("reasoning_content", whole.reasoning, reply.reasoning),
            ("content", whole.content, reply.content),
            ("finish_reason", whole.finish, reply.finish),
        ):
            if one != other:
                problems.append(f"{what} is {quoted(other)} streamed and {quoted(one)} whole")
        if min(reply.made, whole.made) > 0 and (reply.prompt_tokens, reply.made) != (whole.prompt_tokens, whole.made):
            problems.append(f"usage {reply.prompt_tokens} + {reply.made}, whole {whole.prompt_tokens} + {whole.made}")
    if problems:
        return failed(name, "; ".join(dict.fromkeys(problems)), _REMEDY)
    compared = "equals the whole answer" if repeats else "in order (its text was not compared: answers do not repeat)"
    return passed(name, f"{compared}; one finish_reason, usage, [DONE]")
