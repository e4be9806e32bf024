"""One tool, one question that needs it: a call whose arguments fit the schema, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

from truecast.serve.smoke.chat import MARKERS, QUESTION, Reply, ask, ask_streamed
from truecast.serve.smoke.finding import Finding, failed, passed, quoted
from truecast.serve.smoke.http import Refused, Server

NAME = "get_weather"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOL = {
    "type": "function",
    "function": {"name": NAME, "description": "Weather forecast of a city", "parameters": PARAMETERS},
}
USER = "What will the weather be in Oslo for the next 3 days?"
CITY, DAYS = "oslo", 3
_PARSER = "start SGLang with --tool-call-parser kimi_k3, vLLM with --enable-auto-tool-choice and its parser"


def tools(server: Server) -> Finding:
    """Ask both ways. Raises: ServerFault."""
    name, more = "tools", {"tools": [TOOL], "reasoning_effort": "low"}
    try:
        whole = ask(server, USER, **more)
    except Refused as error:
        return failed(name, f"a request with tools: {error}", _PARSER)
    wrong = _wrong(whole)
    if wrong:
        return failed(name, f"{USER!r}: {wrong}", _PARSER)
    streamed = ask_streamed(server, USER, **more)
    wrong = _wrong(streamed.reply) or "; ".join(streamed.problems)
    if wrong:
        return failed(
            name, f"whole it is right, streamed not: {wrong}", "look for this engine's issues on its tool parser"
        )
    idle = ask_streamed(server, QUESTION, **more).reply
    if idle.calls or not idle.content.strip():
        return failed(
            name,
            f"a question that needs no tool, streamed: content {quoted(idle.content)}, {len(idle.calls)} calls",
            "tool parsers have dropped streamed text (SGLang issue 23341): update the engine",
        )
    return passed(name, f"{USER!r}: {NAME}({whole.calls[0].arguments}), whole and streamed, finish_reason tool_calls")


def _wrong(reply: Reply) -> str:
    """What is wrong with a reply that should be one call; empty if nothing is."""
    if not reply.calls:
        leaked = next((m for m in MARKERS if m in reply.content), "")
        spelled = f"; {leaked} stands in content: the call is not parsed" if leaked else ""
        return f"no call, but content {quoted(reply.content)}, finish_reason {reply.finish}{spelled}"
    if len(reply.calls) > 1 or reply.calls[0].name != NAME:
        return f"calls {', '.join(c.name for c in reply.calls)}, not {NAME} once"
    try:
        given = json.loads(reply.calls[0].arguments)
    except (ValueError, RecursionError):
        return f"arguments are no JSON: {quoted(reply.calls[0].arguments)}"
    if not isinstance(given, dict) or set(given) != {"city", "days"} or not isinstance(given["city"], str):
        return f"arguments do not fit the schema: {quoted(reply.calls[0].arguments)}"
    if type(given["days"]) is not int:
        return f"days is no integer: {quoted(reply.calls[0].arguments)}"
    if CITY not in given["city"].lower() or given["days"] != DAYS:
        return f"arguments are not what was said: {quoted(reply.calls[0].arguments)}"
    if reply.finish != "tool_calls":
        return f"finish_reason {reply.finish} beside a tool call: agents stop there"
    return ""
