"""Asking the server small questions, beside the load: JSON or text, with a limit on size and time."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from truecast.errors import InputError

TIMEOUT_S = 10.0
MAX_BYTES = 8 << 20
_PART = 1 << 16
_UP = "is the server up?"
SHOWN = 300
"""Characters of a server's message that are worth showing."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The address that the user gave is the one that is asked."""

    def redirect_request(self, *_: Any) -> None:
        """None: a redirect is an error like any other."""


_OPENER = urllib.request.build_opener(_NoRedirect)


class DownError(InputError):
    """Nothing listens at the address."""


class StatusError(InputError):
    """The server answered with an error status."""

    def __init__(self, status: int, message: str, where: str) -> None:
        self.status = status
        self.message = message
        super().__init__(f"answers {status}: {message}", where=where)


def ask(
    url: str, body: object = None, *, method: str | None = None, timeout: float = TIMEOUT_S, key: str | None = None
) -> str:
    """Text of the answer.

    Raises: StatusError for an error status, DownError where nothing listens, InputError for any other answer that is none.
    """
    headers = {"content-type": "application/json", **authorization(key)}
    data = None if body is None else json.dumps(body).encode()
    deadline = time.monotonic() + timeout
    try:
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            with _OPENER.open(request, timeout=timeout) as answer:
                return _text(answer, deadline)
        except urllib.error.HTTPError as error:
            status, said = error.code, _text(error, deadline)
    except urllib.error.URLError as error:
        kind = DownError if isinstance(error.reason, ConnectionRefusedError) else InputError
        raise kind(f"cannot be reached: {error.reason}", where=url, fix=_UP) from None
    except http.client.HTTPException as error:  # an answer that is no HTTP, or one that breaks off
        raise InputError(f"gives no whole answer: {error!r:.{SHOWN}}", where=url, fix=_UP) from None
    except (OSError, ValueError) as error:  # a reset, an address that is none
        raise InputError(f"cannot be reached: {error}", where=url, fix=_UP) from None
    raise StatusError(status, server_message(said), url)


def _text(answer: Any, deadline: float) -> str:
    """The body, if it ends in time and is not too long. Raises: TimeoutError, ValueError, OSError, HTTPException."""
    parts: list[bytes] = []
    size = 0
    while part := answer.read1(_PART):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise ValueError(f"its answer is longer than {MAX_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("its answer does not end")
    if getattr(answer, "length", 0):
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(parts).decode("utf-8", "replace")


def ask_json(url: str, *, key: str | None = None) -> Any:
    """The answer as JSON. Raises: StatusError, InputError."""
    text = ask(url, key=key)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("answers with no JSON", where=url, fix="is this an OpenAI-compatible server?") from None


def authorization(key: str | None) -> dict[str, str]:
    """The header of a key, if there is one."""
    return {"authorization": f"Bearer {key}"} if key else {}


def server_message(text: str) -> str:
    """What an error answer says, without its JSON, shortened."""
    try:
        answer = json.loads(text)
        answer = answer.get("error", answer) if isinstance(answer, dict) else answer
        text = str(answer.get("message", text)) if isinstance(answer, dict) else str(answer)
    except (ValueError, RecursionError):
        pass
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[:SHOWN] + " ..."
