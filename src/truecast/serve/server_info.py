"""What a running server says of itself: engine, version, the arguments that it resolved, its state and memory.

SGLang: ``/server_info`` (``/get_server_info`` in older ones) holds every field of its server arguments after resolution,
the scheduler's limits, and under ``internal_states`` one document for each data-parallel rank; ``/model_info`` says which
model. Read in entrypoints/http_server.py and managers/scheduler.py of 0.5.17 and 0.5.20, and in
managers/scheduler_components/internal_state.py of 0.5.23. vLLM: ``/version`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from truecast.errors import InputError
from truecast.serve.smoke.connect import connect
from truecast.serve.smoke.http import Refused, Server, ServerFault

PATIENCE = 30.0
"""Seconds for one answer: the scheduler answers between two batches."""
_NOT_ARGUMENTS = frozenset(
    {
        "frontend",
        "hicache_object_layout",
        "internal_states",
        "kv_event_sources",
        "kv_events",
        "launch_command",
        "max_req_input_len",
        "max_total_num_tokens",
        "startup_time",
        "status",
        "version",
    }
)
"""What ``/server_info`` holds beside fields of the server arguments."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """``engine``: ``sglang``, ``vllm`` or ``unknown``. ``arguments`` by ``--name``, as the server resolved them.

    A switch that is on has the value ``""``; what is off or unset is left out. ``environment`` is known only where
    the server was told to show it (SGLANG_EXPOSE_OWN_ENV_VARS). ``states``: one document a data-parallel rank.
    """

    url: str
    engine: str
    version: str | None
    model: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    states: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, str] | None = None
    max_total_tokens: int | None = None
    launch_command: str | None = None


def server_info(url: str, *, key: str = "", seconds: float = PATIENCE) -> ServerFacts:
    """Ask it. ``url`` with or without ``/v1``; ``key`` is sent as the bearer token.

    Raises: InputError if nothing there answers as an OpenAI-compatible server, within ``seconds`` an answer.
    """
    server, _ = connect(url, None, key, seconds)
    if (document := _document(server, "/server_info", "/get_server_info")) is not None and "tp_size" in document:
        return _sglang(server, document)
    version = (_document(server, "/version") or {}).get("version")
    if isinstance(version, str):
        return ServerFacts(server.root, "vllm", version, server.model)
    return ServerFacts(server.root, "sglang" if server.sglang else "unknown", None, server.model)


def _sglang(server: Server, document: Mapping[str, Any]) -> ServerFacts:
    found = document.get("internal_states")
    states = tuple(state for state in found if isinstance(state, dict)) if isinstance(found, list) else ()
    shown = next((state["env_vars"] for state in states if isinstance(state.get("env_vars"), dict)), None)
    version, tokens, command = (document.get(k) for k in ("version", "max_total_num_tokens", "launch_command"))
    return ServerFacts(
        server.root,
        "sglang",
        version if isinstance(version, str) else None,
        server.model,
        arguments_of(document),
        states,
        None if shown is None else {str(name): str(value) for name, value in shown.items()},
        tokens if type(tokens) is int else None,
        command if isinstance(command, str) else None,
    )


def arguments_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Fields of ``/server_info`` as arguments: plain values only, nothing that is off, unset or empty."""
    found: dict[str, str] = {}
    for name, value in document.items():
        if name in _NOT_ARGUMENTS or value is None or value is False:
            continue
        if isinstance(value, str | int | float):
            found[f"--{name.replace('_', '-')}"] = "" if value is True else str(value)
    return found


def _document(server: Server, *paths: str) -> dict[str, Any] | None:
    """The first of these that is there; None where none is. Raises: InputError for one that answers badly."""
    for path in paths:
        where = server.root + path
        try:
            answer = server.get(where)
            if 300 <= answer.status < 400:
                place = answer.headers.get("location", "nowhere")
                raise InputError(
                    f"redirects to {place}", where=where, fix="not followed: give that address if it is meant"
                )
            return answer.document()
        except Refused as refused:
            if refused.status == 404:
                continue
            raise InputError(str(refused), where=where, fix="does the server want a key, or is it not ready?") from None
        except ServerFault as fault:
            raise InputError(str(fault), where=where, fix="is the server well, and is this its address?") from None
    return None
