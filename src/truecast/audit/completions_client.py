"""Asking a server for continuations of token ids, over OpenAI's completions API."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from truecast.errors import InputError

TIMEOUT_S = 3600.0
"""A long answer of a slow server takes a while, and nothing comes before its end."""
MAX_ANSWER_BYTES = 256 << 20


def served_model(url: str) -> str:
    """Name of the first model of a server. ``url`` ends in ``/v1``. Raises: InputError."""
    try:
        return str(_ask(f"{url}/models", None)["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise InputError("lists no model", where=f"{url}/models", fix="is this an OpenAI-compatible server?") from None


def continuation(
    url: str, model: str, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int
) -> list[int]:
    """Token ids with which the server goes on after ``prompt``.

    Raises: InputError for what the server refuses, or where it gives no ids.
    """
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "return_token_ids": True,
    }
    answer = _ask(f"{url}/completions", body)
    try:
        choice = answer["choices"][0]
        tokens, read = choice.get("token_ids"), choice.get("prompt_token_ids")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise InputError("answers with no choice", where=url) from None
    if not isinstance(tokens, list) or not tokens or not all(type(t) is int for t in tokens):
        raise InputError(
            "gives no token ids",
            where=url,
            fix="the server must know return_token_ids: truecast serve-reference, vLLM and SGLang do",
        )
    if read is not None and read != list(prompt):
        raise InputError("has read another prompt than the ids it was sent", where=url, fix="is it the same model?")
    return tokens


def _ask(url: str, body: dict[str, Any] | None) -> Any:
    if not url.startswith(("http://", "https://")):
        raise InputError("is no http or https address", where=url)
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            raw = response.read(MAX_ANSWER_BYTES + 1)
        if len(raw) > MAX_ANSWER_BYTES:
            raise InputError(f"answers with more than {MAX_ANSWER_BYTES} bytes", where=url)
        return json.loads(raw)
    except urllib.error.HTTPError as error:
        raise InputError(f"answers {error.code}: {_reason(error)}", where=url) from None
    except (OSError, ValueError, RecursionError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(f"no answer: {reason}", where=url, fix="is the server running?") from None
    except Exception as error:  # http.client's own, such as BadStatusLine, derive from Exception alone
        raise InputError(f"is no HTTP: {type(error).__name__}", where=url) from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(1 << 16))["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        return str(error.reason)
