"""The prompts of a load run: real ones from a file, and whether they differ enough to mean anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from truecast.errors import InputError

RESERVED = {"model", "stream", "stream_options", "n"}
"""Keys of a request body that the run itself decides."""


@dataclass(frozen=True)
class Prompts:
    """A file of prompts: its request bodies, and the hash of its bytes, by which two runs had the same ones."""

    file: str
    sha256: str
    bodies: list[dict[str, Any]]

    def document(self) -> dict[str, Any]:
        """For the record, with the counts of all and of distinct prompts (``messages`` only)."""
        distinct = {json.dumps(body["messages"], sort_keys=True) for body in self.bodies}
        return {"file": self.file, "sha256": self.sha256, "prompts": len(self.bodies), "distinct": len(distinct)}


def read_prompts(path: Path) -> Prompts:
    """Request bodies of a JSONL file: ``{"messages": [...]}`` or ``{"prompt": "..."}`` a line.

    Further keys of a line (``tools``, ``max_tokens``, ``chat_template_kwargs``) go to the server as they are.
    Raises: InputError naming the line.
    """
    try:
        data = path.read_bytes()
        lines = data.decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
    bodies = [_body(line, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not bodies:
        raise InputError(
            "holds no prompt", where=str(path), fix='one JSON object a line, e.g. {"prompt": "How many primes ..."}'
        )
    return Prompts(path.name, hashlib.sha256(data).hexdigest(), bodies)


def _body(line: str, where: str) -> dict[str, Any]:
    try:
        body = json.loads(line, parse_constant=_no_constant)
        json.dumps(body, ensure_ascii=False).encode()  # half a surrogate pair is no text that can be sent
    except (ValueError, RecursionError) as error:
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


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is none")


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
