"""Faults between a real server and its clients: a proxy that can be told to go wrong in one way at a time.

Answers of the real server are kept by request, so that a second run of the same requests costs nothing. With
``python -m tests.serve.smoke.faulty URL FAULT`` any server gets the fault: try ``truecast smoke`` on the address printed.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MARK = "Repeat exactly: "


@dataclass
class Exchange:
    """A request, and the answer to it, which a fault may change."""

    path: str
    asked: dict[str, Any]
    status: int = 200
    kind: str = "application/json"
    body: bytes = b""
    stall_s: float = 0.0
    trickle: bool = False

    @property
    def streamed(self) -> bool:
        return bool(self.asked.get("stream"))

    @property
    def user(self) -> str:
        messages = self.asked.get("messages")
        return str(messages[0]["content"]) if isinstance(messages, list) and messages else ""

    @property
    def identifier(self) -> str:
        return self.user.removeprefix(MARK) if self.user.startswith(MARK) else ""

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the document of a whole chat completion that is one."""
        if self.path.endswith("completions") and self.status == 200 and not self.streamed:
            document = json.loads(self.body)
            change(document)
            self.body = json.dumps(document).encode()

    def edit_events(self, change: Callable[[list[dict[str, Any]]], None]) -> None:
        """Change the list of a stream's chunks."""
        if self.streamed and self.status == 200:
            lines = [line[6:] for line in self.body.decode().splitlines() if line.startswith("data: ")]
            chunks = [json.loads(line) for line in lines if line != "[DONE]"]
            change(chunks)
            self.body = b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"

    def edit_parts(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change a message or each delta."""
        self.edit(lambda document: change(document["choices"][0]["message"]))
        self.edit_events(lambda chunks: [change(c["choices"][0]["delta"]) for c in chunks if c["choices"]] and None)


@dataclass
class Proxy:
    """Where clients ask; ``replay`` gives answers that are kept; a fault sees requests and answers."""

    url: str
    upstream: str
    before: Callable[[Exchange], None] | None = None
    after: Callable[[Exchange], None] | None = None
    replay: bool = False

    def __post_init__(self) -> None:
        self.kept: dict[bytes, tuple[int, str, bytes]] = {}

    def answer(self, method: str, path: str, raw: bytes) -> Exchange:
        try:
            asked = json.loads(raw) if raw else {}
        except ValueError:
            asked = {}
        exchange = Exchange(path, asked if isinstance(asked, dict) else {})
        if self.before is not None:
            self.before(exchange)
            raw = json.dumps(exchange.asked).encode() if exchange.asked else raw
        key = f"{method} {path} ".encode() + raw
        if not (self.replay and key in self.kept):
            self.kept[key] = self._forward(method, path, raw)
        exchange.status, exchange.kind, exchange.body = self.kept[key]
        if self.after is not None:
            self.after(exchange)
        return exchange

    def _forward(self, method: str, path: str, raw: bytes) -> tuple[int, str, bytes]:
        parts = urllib.parse.urlsplit(self.upstream)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)
        try:
            connection.request(method, path, raw or None, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.headers["content-type"] or "text/plain", response.read()
        finally:
            connection.close()


@contextlib.contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    """A proxy before the server at ``upstream`` (scheme, host, port) until the context ends."""
    told = Proxy("", upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            exchange = told.answer(
                self.command, self.path, self.rfile.read(int(self.headers.get("content-length") or 0))
            )
            stopped.wait(exchange.stall_s)
            with contextlib.suppress(OSError):
                self.send_response(exchange.status)
                self.send_header("content-type", exchange.kind)
                self.send_header("content-length", str(len(exchange.body)))
                self.end_headers()
                for i in range(len(exchange.body)) if exchange.trickle else ():
                    self.wfile.write(exchange.body[i : i + 1])
                    if stopped.wait(0.05):
                        return
                self.wfile.write(b"" if exchange.trickle else exchange.body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    stopped = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    told.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield told
    finally:
        stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


_count = itertools.count()
_identifiers: list[str] = []


def _is_question(exchange: Exchange) -> bool:
    return exchange.user.startswith("What is 17")


def unhealthy(e: Exchange) -> None:
    if e.path == "/health":
        e.status, e.body = 503, b""


def broken_generation(e: Exchange) -> None:
    if e.path.endswith("completions") and e.status == 200:
        e.status, e.body = 500, b'{"error": {"message": "out of memory"}}'


def hanging_generation(e: Exchange) -> None:
    if e.path.endswith("completions") and e.status == 200:
        e.stall_s = 60


def trickling_generation(e: Exchange) -> None:
    e.trickle = e.path.endswith("completions") and e.status == 200


def any_name(e: Exchange) -> None:
    if "model" in e.asked:
        e.asked["model"] = "checkpoint"


def empty_content(e: Exchange) -> None:
    def change(document: dict[str, Any]) -> None:
        document["choices"][0]["message"]["content"] = ""
        document["choices"][0]["finish_reason"] = "length"

    e.edit(change)


def answer_swallowed(e: Exchange) -> None:
    if _is_question(e):
        e.edit(lambda document: document["choices"][0]["message"].update(content=None))


def wrong_sums(e: Exchange) -> None:
    def last(chunks: list[dict[str, Any]]) -> None:
        next(c for c in chunks[::-1] if _content(c))["choices"][0]["delta"]["content"] = "2"

    if _is_question(e):
        e.body = e.body.replace(b"17 * 3 = 51", b"17 * 3 = 52")
        e.edit_events(last)


def thinking_in_content(e: Exchange) -> None:
    def change(part: dict[str, Any]) -> None:
        thought = part.pop("reasoning_content", None)
        part.pop("reasoning", None)
        if thought:
            part["content"] = thought + (part.get("content") or "")

    e.edit_parts(change)


def markers_in_content(e: Exchange) -> None:
    def change(part: dict[str, Any]) -> None:
        if part.get("content"):
            part["content"] += "<|close|>response<|sep|>"

    if not e.asked.get("tools") and not e.identifier:
        e.edit(lambda document: change(document["choices"][0]["message"]))
        e.edit_events(lambda chunks: change(next(c for c in chunks[::-1] if _content(c))["choices"][0]["delta"]))


def _content(chunk: dict[str, Any]) -> str:
    return str(chunk["choices"][0]["delta"].get("content") or "") if chunk["choices"] else ""


def thinking_lost(e: Exchange) -> None:
    def change(part: dict[str, Any]) -> None:
        for name in ("reasoning_content", "reasoning"):
            part.pop(name, None)

    e.edit_parts(change)


def no_usage(e: Exchange) -> None:
    e.edit(lambda document: document.update(usage=None))


def cut_answer_says_stop(e: Exchange) -> None:
    e.body = e.body.replace(b'"finish_reason":"length"', b'"finish_reason":"stop"')


def limit_dropped(e: Exchange) -> None:
    if e.asked.get("max_tokens") == 8:
        e.asked["max_tokens"] = 1200


def unfinished_thinking_in_content(e: Exchange) -> None:
    if e.asked.get("max_tokens") == 8:
        thinking_in_content(e)


def never_twice_the_same(e: Exchange) -> None:
    def change(document: dict[str, Any]) -> None:
        message = document["choices"][0]["message"]
        message["reasoning_content"] = f"{message.get('reasoning_content')}{next(_count)}"

    if _is_question(e):
        e.edit(change)


def chunk_lost(e: Exchange) -> None:
    if _is_question(e):
        e.edit_events(lambda chunks: chunks.pop(5) and None)


def chunk_twice(e: Exchange) -> None:
    if _is_question(e):
        e.edit_events(lambda chunks: chunks.insert(5, chunks[5]))


def chunks_swapped(e: Exchange) -> None:
    if _is_question(e):
        e.edit_events(lambda chunks: chunks.insert(3, chunks.pop(9)))


def no_usage_in_stream(e: Exchange) -> None:
    if not e.asked.get("tools"):
        e.edit_events(lambda chunks: chunks.pop() and None)


def no_done(e: Exchange) -> None:
    if not e.asked.get("tools"):
        e.body = e.body.removesuffix(b"data: [DONE]\n\n")


def arguments_cut(e: Exchange) -> None:
    def change(part: dict[str, Any]) -> None:
        for call in part.get("tool_calls") or ():
            call["function"]["arguments"] = call["function"]["arguments"][:-1]

    e.edit_parts(change)


def calls_only_whole(e: Exchange) -> None:
    e.edit_events(
        lambda chunks: [c["choices"][0]["delta"].pop("tool_calls", None) for c in chunks if c["choices"]] and None
    )


def text_dropped_beside_tools(e: Exchange) -> None:
    if e.asked.get("tools"):
        e.edit_events(
            lambda chunks: [c["choices"][0]["delta"].pop("content", None) for c in chunks if c["choices"]] and None
        )


def call_says_stop(e: Exchange) -> None:
    e.body = e.body.replace(b'"finish_reason":"tool_calls"', b'"finish_reason":"stop"')


def numbers_as_text(e: Exchange) -> None:
    e.body = e.body.replace(b'\\"days\\":3', b'\\"days\\":\\"3\\"').replace(b'\\"days\\": 3', b'\\"days\\": \\"3\\"')


def unknown_effort_taken(e: Exchange) -> None:
    if e.asked.get("reasoning_effort") not in (None, "low", "high", "max"):
        e.asked["reasoning_effort"] = "max"


def max_effort_refused(e: Exchange) -> None:
    if e.asked.get("reasoning_effort") == "max":
        e.status, e.body = 400, b'{"error": {"message": "unknown effort"}}'


def effort_ignored(e: Exchange) -> None:
    if e.asked.get("reasoning_effort") in ("low", "max") and _is_question(e):
        e.asked["reasoning_effort"] = "max"


def one_character_changed(e: Exchange) -> None:
    if e.identifier:
        e.body = e.body.replace(e.identifier.encode(), e.identifier.encode()[:-1] + b"?")


def one_corrupted_in_a_crowd(e: Exchange) -> None:
    """Only the first time: alone it is right."""
    if e.identifier and e.identifier not in _identifiers:
        _identifiers.append(e.identifier)
        if len(_identifiers) == 2:
            one_character_changed(e)


def anothers_text(e: Exchange) -> None:
    """Whoever comes second gets the first one's text too."""
    if e.identifier:
        _identifiers.append(e.identifier)
        if len(_identifiers) == 2:
            e.body = e.body.replace(b'"content":"', f'"content":"{_identifiers[0]} '.encode())


def swapped_texts(e: Exchange) -> None:
    if e.identifier:
        _identifiers.append(e.identifier)
        e.body = e.body.replace(e.identifier.encode(), _identifiers[max(0, len(_identifiers) - 2)].encode())


def other_words_in_a_crowd(e: Exchange) -> None:
    """The fourth time the whole question is asked is the one among others."""
    if _is_question(e) and e.asked.get("max_tokens") == 1200 and not e.streamed and next(_count) >= 3:
        e.body = e.body.replace(b"30 + 21", b"21 + 30")


def _first_logprob(e: Exchange, value: float) -> None:
    def change(document: dict[str, Any]) -> None:
        document["choices"][0]["logprobs"]["content"][2]["logprob"] = value

    if e.asked.get("logprobs") is True:
        e.edit(change)


def positive_logprob(e: Exchange) -> None:
    _first_logprob(e, 0.7)


def nan_logprob(e: Exchange) -> None:
    _first_logprob(e, float("nan"))


def unlikely_token(e: Exchange) -> None:
    _first_logprob(e, -3.0)


def inflated_top(e: Exchange) -> None:
    def change(document: dict[str, Any]) -> None:
        for top in document["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            top["logprob"] = -0.2

    if e.asked.get("logprobs") is True:
        e.edit(change)


def another_model(e: Exchange) -> None:
    def change(document: dict[str, Any]) -> None:
        values = document["choices"][0]["logprobs"]["token_logprobs"]
        document["choices"][0]["logprobs"]["token_logprobs"] = [v and v * 1.05 for v in values]

    if e.asked.get("echo"):
        e.edit(change)


def bad_is_server_error(e: Exchange) -> None:
    if e.path.endswith("/chat/completions") and e.status == 400 and e.asked.get("temperature") == -1:
        e.status = 500


def bad_hangs(e: Exchange) -> None:
    if e.path.endswith("/chat/completions") and e.status == 400 and "messages" not in e.asked:
        e.stall_s = 60


BEFORE = (any_name, limit_dropped, unknown_effort_taken, effort_ignored)
"""Faults that change the request; all others change the answer."""


def switch(told: Proxy, fault: Callable[[Exchange], None] | None) -> None:
    """Switch on one fault, or none."""
    global _count
    _count = itertools.count()
    _identifiers.clear()
    told.before = fault if fault in BEFORE else None
    told.after = None if fault in BEFORE else fault


def main() -> None:
    """Until Ctrl-C."""
    faults = {
        name: f
        for name, f in globals().items()
        if not name.startswith("_") and getattr(f, "__annotations__", {}).get("e") == "Exchange"
    }
    if len(sys.argv) != 3 or sys.argv[2] not in faults:
        raise SystemExit(f"usage: python -m tests.serve.smoke.faulty URL FAULT, with FAULT one of {', '.join(faults)}")
    with proxy(sys.argv[1]) as told:
        switch(told, faults[sys.argv[2]])
        print(told.url, flush=True)
        time.sleep(86_400)


if __name__ == "__main__":
    main()
