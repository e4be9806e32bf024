"""Asking a server for continuations of token ids, over OpenAI's completions API."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from truecast.errors import InputError

TIMEOUT_S = 3600.0
"""A long answer of a slow server takes a while, and nothing comes before its end."""
LIST_TIMEOUT_S = 60.0
"""A list of models takes none."""
MAX_LIST_BYTES = 4 << 20
ANSWER_BYTES_OF_TOKEN = 1024
"""More than an answer takes for a token, read or made: its id and its text."""
_PIECE = 1 << 16
_SHOWN = 1000


def served_model(url: str) -> str:
    """Name of the first model of a server. ``url`` ends in ``/v1``. Raises: InputError."""
    try:
        name = ask(f"{url}/models", None, MAX_LIST_BYTES, LIST_TIMEOUT_S)["data"][0]["id"]
    except (KeyError, IndexError, TypeError):
        name = None
    if not isinstance(name, str):
        raise InputError("lists no model", where=f"{url}/models", fix="is this an OpenAI-compatible server?")
    return name


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
    most = MAX_LIST_BYTES + ANSWER_BYTES_OF_TOKEN * (len(prompt) + max_tokens)
    answer = ask(f"{url}/completions", body, most, TIMEOUT_S)
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
    if len(tokens) > max_tokens:
        raise InputError(f"gives {len(tokens):,} tokens, {max_tokens:,} were asked for", where=url)
    if read is not None and read != list(prompt):
        raise InputError("has read another prompt than the ids it was sent", where=url, fix="is it the same model?")
    return tokens


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The address that the user gave is the one that is asked, whatever it says of others."""

    def redirect_request(self, *_: Any) -> None:
        """None: the redirect is an error like any other."""


_OPENER = urllib.request.build_opener(_NoRedirect)


def ask(url: str, body: dict[str, Any] | None, most: int, seconds: float, key: str = "") -> Any:
    """The JSON of an answer of at most ``most`` bytes that comes whole within ``seconds``.

    ``key`` is sent as the bearer token. Raises: InputError.
    """
    if not url.startswith(("http://", "https://")):
        raise InputError("is no http or https address", where=url)
    data = None if body is None else json.dumps(body).encode()
    try:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(url, data, headers)
        return json.loads(_whole(request, most, seconds))
    except InputError:
        raise
    except urllib.error.HTTPError as error:
        raise InputError(f"answers {error.code}: {_reason(error)}", where=url) from None
    except (OSError, ValueError, RecursionError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(f"no answer: {reason}", where=url, fix="is the server running?") from None
    except Exception as error:  # http.client's own, such as BadStatusLine, derive from Exception alone
        raise InputError(f"is no HTTP: {type(error).__name__}", where=url) from None


def _whole(request: urllib.request.Request, most: int, seconds: float) -> bytes:
    """The body of an answer. A timeout of a socket counts anew with each byte, so the time is looked at too."""
    end, raw = time.monotonic() + seconds, bytearray()
    with _OPENER.open(request, timeout=seconds) as response:
        total = response.length  # None where only its end tells
        while (total is None or len(raw) < total) and (piece := response.read1(_PIECE)):
            raw += piece
            if len(raw) > most:
                raise InputError(f"answers with more than {most:,} bytes", where=request.full_url)
            if time.monotonic() > end:
                raise InputError(f"has not answered within {seconds:,.0f} s", where=request.full_url)
    if total is not None and len(raw) < total:
        raise InputError("breaks off within its answer", where=request.full_url)
    return bytes(raw)


def _reason(error: urllib.error.HTTPError) -> str:
    """OpenAI's error object, or vLLM's and SGLang's, which are its inside."""
    try:
        document = json.loads(error.read(1 << 16))
        inside = document.get("error", document)
        return str(inside["message"] if isinstance(inside, dict) else inside)[:_SHOWN]
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
        return str(error.reason)[:_SHOWN]
