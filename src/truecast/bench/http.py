"""Asking the server small questions, beside the load: JSON or text, with a limit on size and time."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from truecast.errors import InputError

TIMEOUT_S = 10.0
MAX_BYTES = 8 << 20
SHOWN = 300
"""Characters of a server's message that are worth showing."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The address that the user gave is the one that is asked."""

    def redirect_request(self, *_: Any) -> None:
        """None: a redirect is an error like any other."""


_OPENER = urllib.request.build_opener(_NoRedirect)


class StatusError(InputError):
    """The server answered with an error status."""

    def __init__(self, status: int, message: str, where: str) -> None:
        self.status = status
        self.message = message
        super().__init__(f"answers {status}: {message}", where=where)


def ask(
    url: str, body: object = None, *, method: str | None = None, timeout: float = TIMEOUT_S, key: str | None = None
) -> str:
    """Text of the answer. Raises: StatusError for an error status, InputError for a server that cannot be reached."""
    headers = {"content-type": "application/json", **authorization(key)}
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        with _OPENER.open(request, timeout=timeout) as answer:
            return str(answer.read(MAX_BYTES).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        raise StatusError(error.code, server_message(error.read(MAX_BYTES).decode("utf-8", "replace")), url) from None
    except urllib.error.URLError as error:
        raise InputError(f"cannot be reached: {error.reason}", where=url, fix="is the server up?") from None
    except (OSError, ValueError) as error:  # a reset, an answer that is no HTTP, an address that is none
        raise InputError(f"cannot be reached: {error}", where=url, fix="is the server up?") from None


def ask_json(url: str, *, key: str | None = None) -> Any:
    """The answer as JSON. Raises: StatusError, InputError."""
    text = ask(url, key=key)
    try:
        return json.loads(text)
    except ValueError:
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
    except ValueError:
        pass
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[:SHOWN] + " ..."
