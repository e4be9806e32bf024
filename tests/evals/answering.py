"""A real HTTP server that answers chat completions as a function of the request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """``usage``: output tokens; None leaves it out. ``status`` other than 200: an error with ``content`` as message.

    ``calls``: names of functions called."""

    content: str = ""
    finish: str | None = "stop"
    usage: int | None = 10
    status: int = 200
    reasoning: str | None = None
    code: str | None = None
    calls: tuple[str, ...] = ()
    body: bytes | None = None
    """Sent instead, as it is."""
    breaks: bool = False
    """The connection ends before the body does."""
    model: str = "toy"


@dataclass
class Answering:
    """``asked``: every request's body. ``says`` may be exchanged under way."""

    url: str
    says: Callable[[dict[str, Any]], Reply]
    asked: list[dict[str, Any]] = field(default_factory=list)


def _body(reply: Reply) -> dict[str, Any]:
    if reply.status != 200:
        return {
            "error": {"message": reply.content, "type": "invalid_request_error", "code": reply.code or reply.status}
        }
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "reasoning_content": reply.reasoning}
    if reply.calls:
        function = [{"name": name, "arguments": "{}"} for name in reply.calls]
        message["tool_calls"] = [{"id": f["name"], "type": "function", "function": f} for f in function]
    choice = {"index": 0, "message": message, "finish_reason": reply.finish}
    body: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": reply.model,
        "choices": [choice],
    }
    if reply.usage is not None:
        body["usage"] = {"prompt_tokens": 5, "completion_tokens": reply.usage, "total_tokens": reply.usage + 5}
    return body


@contextmanager
def answering(says: Callable[[dict[str, Any]], Reply]) -> Iterator[Answering]:
    """Serve until the context ends; ``says`` answers each request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _send(self, status: int, document: Any, breaks: bool = False) -> None:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # a client that was killed
                self.wfile.write(body[: len(body) // 2] if breaks else body)
            self.close_connection = self.close_connection or breaks

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._send(200, {"object": "list", "data": [{"id": "toy", "object": "model", "owned_by": "vllm"}]})
            elif self.path == "/version":
                self._send(200, {"version": "0.1"})
            else:
                self._send(404, {"error": {"message": "nothing here"}})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            running.asked.append(request)
            reply = running.says(request)
            self._send(reply.status, _body(reply) if reply.body is None else reply.body, reply.breaks)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Answering(f"http://127.0.0.1:{server.server_port}", says)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
