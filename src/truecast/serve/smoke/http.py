"""One request to the server under test, whatever that server does: late, endless, huge, no HTTP, no JSON.

The standard library alone, so that the smoke test runs where nothing but truecast's core is installed. A new connection
for each request; redirects are answers like any other and are not followed; proxies of the environment are not used.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_BODY_BYTES = 16 << 20
_PIECE = 1 << 16
_REASON_CHARS = 300


class ServerFault(Exception):
    """The server gave no answer that can be used; the text says what it did instead."""


class NoAnswer(ServerFault):
    """No connection, no HTTP, or nothing whole within the time."""


class Refused(ServerFault):
    """Another status than 200."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"answers {status}: {reason}" if reason else f"answers {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, lower-case header names, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON. Raises: ServerFault."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise ServerFault(f"answers {self.status} with no JSON: {self.body[:80]!r}") from None

    def document(self) -> dict[str, Any]:
        """The JSON object of a 200. Raises: Refused, ServerFault."""
        if self.status != 200:
            raise Refused(self.status, self.reason())
        document = self.json()
        if not isinstance(document, dict):
            raise ServerFault("answers 200 with no JSON object")
        return document

    def reason(self) -> str:
        """What an error says: OpenAI's error object, SGLang's and FastAPI's forms of it, or the body."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return " ".join(self.body[:_REASON_CHARS].decode(errors="replace").split())
        if isinstance(found, dict):
            error = found.get("error", found)
            found = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
        return str(found)[:_REASON_CHARS]


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask. ``base`` is the address with OpenAI's paths, such as ``http://host:8000/v1``; ``model`` the name to
    ask for, ``context`` its tokens if listed, ``sglang`` whether the server says that it is SGLang. ``seconds`` is the
    most that one answer may take, ``key`` the bearer token."""

    base: str
    seconds: float
    key: str = ""
    model: str = ""
    context: int | None = None
    sglang: bool = False

    @property
    def root(self) -> str:
        """The address without ``/v1``."""
        return self.base.removesuffix("/v1")

    def get(self, path: str) -> Answer:
        """``GET`` below ``base``, or anywhere for a whole address. Raises: NoAnswer."""
        return self._request("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | bytes) -> Answer:
        """``POST`` below ``base``, or anywhere for a whole address. Raises: NoAnswer."""
        return self._request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> Answer:
        url = path if "://" in path else self.base + path
        headers = {"content-type": "application/json"} if body is not None else {}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        return request(method, url, body, headers, self.seconds)


def request(method: str, url: str, body: bytes | None, headers: dict[str, str], seconds: float) -> Answer:
    """One request and its whole answer, within ``seconds`` and :data:`MAX_BODY_BYTES`. Raises: NoAnswer."""
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    end = time.monotonic() + seconds
    try:
        connection.connect()
        with _cut_off(connection.sock, end - time.monotonic()), contextlib.ExitStack() as held:
            connection.request(method, target, body, headers)
            response = held.enter_context(connection.getresponse())  # has the socket where the server will close it
            raw = bytearray()
            while piece := response.read1(_PIECE):
                raw += piece
                if len(raw) > MAX_BODY_BYTES:
                    raise NoAnswer(f"answers with more than {MAX_BODY_BYTES:,} bytes")
            if time.monotonic() >= end:  # cut off: what came may look whole
                raise TimeoutError
            if response.length:
                raise http.client.IncompleteRead(bytes(raw), response.length)
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, bytes(raw))
    except NoAnswer:
        raise
    except Exception as error:  # http.client raises many kinds for what is no HTTP
        if time.monotonic() >= end:
            raise NoAnswer(f"no whole answer within {seconds:g} s") from None
        raise NoAnswer(_said(error)) from None
    finally:
        connection.close()


@contextlib.contextmanager
def _cut_off(connected: socket.socket, seconds: float) -> Iterator[None]:
    """Ends the connection after ``seconds``: a socket's own timeout counts anew with each byte."""

    def cut() -> None:
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(seconds, 0), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, OSError):
        return f"no connection: {error.strerror or error}"
    if isinstance(error, http.client.IncompleteRead):
        return "breaks off within its answer"
    return f"no HTTP: {type(error).__name__}"
