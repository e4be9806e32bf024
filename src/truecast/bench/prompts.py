"""The prompts of a load run: real ones from a file, and whether they differ enough to mean anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from truecast.errors import InputError

RESERVED = {"model", "stream", "stream_options", "n"}
"""Keys of a request body that the run itself decides."""


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Request bodies of a JSONL file: ``{"messages": [...]}`` or ``{"prompt": "..."}`` a line.

    Further keys of a line (``tools``, ``max_tokens``, ``chat_template_kwargs``) go to the server as they are.
    Raises: InputError naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
    bodies = [_body(line, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not bodies:
        raise InputError(
            "holds no prompt", where=str(path), fix='one JSON object a line, e.g. {"prompt": "How many primes ..."}'
        )
    return bodies


def _body(line: str, where: str) -> dict[str, Any]:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise InputError(f"is no JSON: {error}", where=where) from None
    if not isinstance(body, dict):
        raise InputError("is no JSON object", where=where)
    if taken := RESERVED & set(body):
        raise InputError(f"sets {', '.join(sorted(taken))}, which the run decides", where=where)
    prompt = body.pop("prompt", None)
    if prompt is not None and "messages" not in body:
        if not isinstance(prompt, str) or not prompt:
            raise InputError("prompt is no text", where=where)
        body["messages"] = [{"role": "user", "content": prompt}]
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(_is_message(m) for m in messages):
        raise InputError("has neither a prompt nor messages with a role each", where=where)
    return body


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str)


def request_bodies(
    prompts: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any], model: str, *, per_chunk: bool
) -> list[dict[str, Any]]:
    """What is sent: each prompt with the run's sampling; a prompt's own keys hold where it has them.

    ``per_chunk`` asks for the running token count on every chunk: with speculative decoding a chunk is several tokens.
    """
    options: dict[str, bool] = {"include_usage": True}
    if per_chunk:
        options["continuous_usage_stats"] = True
    return [{**sampling, **prompt, "model": model, "stream": True, "stream_options": options} for prompt in prompts]


def diversity(prompts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Counts of all and of distinct prompts (``messages`` only)."""
    distinct = {json.dumps(p["messages"], sort_keys=True) for p in prompts}
    return {"prompts": len(prompts), "distinct": len(distinct)}
