"""What the server says of itself, and what it can do: names and settings are recorded as reported, never supposed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from truecast.bench.http import StatusError, ask, ask_json, server_message
from truecast.bench.usage import MOST_TOKENS
from truecast.errors import InputError

PROBE_TIMEOUT_S = 600.0
"""A cold engine may compile for minutes before its first token."""
PROBE_TOKENS = 16
"""More than the tokens without text that open an answer, such as a mark of reasoning."""
MOST_SETTING = 1e18
LONGEST_SETTING = 10_000
"""Characters: a setting of SGLang may be a JSON of its own, but a record is no place for more."""
_NOT_PROBED = {"max_completion_tokens", "min_tokens"}
"""A prompt's own limits contradict the probe's."""
_SECRET = re.compile(r"(api_?key|password|secret|credential|(^|_)token$)", re.IGNORECASE)
_DESCRIPTIONS = ("/server_info", "/get_server_info")
_OF_A_START = ("model_path", "quantization", "random_seed", "tp_size", "ep_size", "dp_size", "speculative_algorithm")
"""Arguments of SGLang that one start has and another may not; the seed is drawn anew unless it is given."""
_FLUSHES = ("/flush_cache", "/reset_prefix_cache")
"""SGLang's and vLLM's (which has it only in development mode)."""


@dataclass(frozen=True)
class Server:
    """A server as it describes itself. ``url`` is without ``/v1``."""

    url: str
    model: str
    context: int | None = None
    engine: str | None = None
    version: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    """Its settings, scalars only, no secrets."""
    per_chunk: bool = False
    """Does it give the running token count on every chunk?"""
    key: str | None = field(default=None, repr=False)
    """The key that it wants; never in the record."""

    def document(self) -> dict[str, Any]:
        """For the record."""
        return {name: value for name, value in vars(self).items() if name != "key"}


def base_url(url: str) -> str:
    """The address without ``/v1`` or a slash at its end. Raises: InputError."""
    if not re.match(r"https?://[^/\s]+", url):
        raise InputError("is no http address", where=url, fix="e.g. http://127.0.0.1:30000")
    return re.sub(r"(/v1)?/*$", "", url)


def describe(url: str, model: str | None, key: str | None = None) -> Server:
    """Ask the server who it is. ``model`` picks one of several. Raises: InputError."""
    base = base_url(url)
    listed = ask_json(f"{base}/v1/models", key=key)
    data = listed.get("data") if isinstance(listed, dict) else None
    entries = [c for c in data if isinstance(c, dict)] if isinstance(data, list) else []
    cards = {c["id"]: c for c in entries if isinstance(c.get("id"), str) and c["id"]}
    if not cards:
        raise InputError("lists no model", where=f"{base}/v1/models", fix="is this an OpenAI-compatible server?")
    if model is not None and model not in cards:
        raise InputError(f"serves no {model}, but {', '.join(cards)}", where=base, fix="--model with one of these")
    name = model if model is not None else next(iter(cards))
    context = cards[name].get("max_model_len")
    info = _first_json(base, _DESCRIPTIONS, key)
    engine, version = _engine(base, info, key)
    settings = {k: v for k, v in info.items() if _can_be_kept(v) and not _SECRET.search(k)}
    known = context if type(context) is int and 0 < context <= MOST_TOKENS else None
    return Server(base, name, known, engine, version, settings, key=key)


def changed_since(server: Server) -> list[str]:
    """What a server says of itself now otherwise than ``server``: another one may have taken its place."""
    try:
        describe(server.url, None, server.key)
    except InputError:
        return []  # what has gone since took nobody's place
    try:
        now = describe(server.url, server.model, server.key)
    except InputError:
        return ["model"]
    pairs = {name: (getattr(server, name), getattr(now, name)) for name in ("engine", "version", "context")}
    pairs |= {name: (server.arguments.get(name), now.arguments.get(name)) for name in _OF_A_START}
    return [name for name, (before, after) in pairs.items() if before != after]


def _can_be_kept(value: object) -> bool:
    """Is this a scalar that a record can hold?"""
    if isinstance(value, int | float):
        return abs(value) <= MOST_SETTING  # no NaN, no infinity, no integer of 400 digits
    return isinstance(value, str) and len(value) <= LONGEST_SETTING


def _engine(base: str, info: dict[str, Any], key: str | None) -> tuple[str | None, str | None]:
    if "version" in info:
        return "sglang", str(info["version"])
    answer = _first_json(base, ("/version",), key)
    return ("vllm", str(answer["version"])) if "version" in answer else (None, None)


def _first_json(base: str, paths: tuple[str, ...], key: str | None) -> dict[str, Any]:
    """The first of these pages that is there and is a JSON object; else an empty one."""
    for path in paths:
        try:
            page = ask_json(base + path, key=key)
        except InputError:
            continue
        if isinstance(page, dict):
            return page
    return {}


def counts_tokens(server: Server, prompt: dict[str, Any]) -> bool:
    """Send one short request, as the load will be. Returns: does the server count tokens on every chunk?

    Raises: InputError where it refuses the request or reports no usage: tokens are the server's to count.
    """
    where = f"{server.url}/v1/chat/completions"
    for per_chunk in (True, False):
        options = {"include_usage": True, **({"continuous_usage_stats": True} if per_chunk else {})}
        asked = {name: value for name, value in prompt.items() if name not in _NOT_PROBED}
        body = {**asked, "model": server.model, "max_tokens": PROBE_TOKENS, "stream": True, "stream_options": options}
        try:
            text = ask(where, body, timeout=PROBE_TIMEOUT_S, key=server.key)
        except StatusError as error:
            if per_chunk and error.status in (400, 422):
                continue
            raise
        events = list(_events(text))
        if said := next((e["error"] for e in events if e.get("error")), None):
            raise InputError(f"answers with an error: {server_message(json.dumps({'error': said}))}", where=where)
        counts = sum(map(_counts, events))
        if not counts:
            raise InputError(
                "reports no usage: there is no token count to go by",
                where=where,
                fix="a server that honours stream_options.include_usage",
            )
        return per_chunk and counts > 1
    raise InputError("refuses the request", where=where)


def _events(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events; what is none is left out."""
    for line in text.splitlines():
        try:
            event = json.loads(line.removeprefix("data:")) if line.startswith("data:") else None
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _counts(event: Mapping[str, Any]) -> bool:
    usage = event.get("usage")
    return isinstance(usage, dict) and type(usage.get("completion_tokens")) is int


def flush_cache(server: Server) -> str:
    """Empty the server's prefix cache. Returns: ``flushed``, or ``cannot be flushed``."""
    for path in _FLUSHES:
        try:
            said = ask(server.url + path, method="POST", timeout=60.0, key=server.key)
        except InputError:
            continue
        if not said.lstrip().startswith("<"):  # a gateway's page for whatever it does not know
            return "flushed"
    return "cannot be flushed"
