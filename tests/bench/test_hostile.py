"""A server that answers anything at all: a message, never a traceback, and never a figure made of it."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import Serve, write_prompts
from truecast.bench.http import ask, ask_json, server_message
from truecast.bench.monitor import Monitor
from truecast.bench.server import Server, counts_tokens, describe, flush_cache
from truecast.bench.stream import request_of
from truecast.bench.window import Window
from truecast.errors import InputError

Measured = Callable[..., dict[str, Any]]
QUICK = {"ttft": 0.002, "interval": 0.0002, "tokens": 20}
PROMPT = {"messages": [{"role": "user", "content": "hello"}]}
DEEP = "[" * 100_000
HUGE = "1" + "0" * 400


@contextmanager
def answering(*parts: bytes, every: float = 0.0) -> Iterator[str]:
    """A server that answers each connection with these bytes, with a pause after each, and hangs up."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            try:
                for part in parts:
                    self.request.sendall(part)
                    time.sleep(every)
            except OSError:
                pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def page(body: str, status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body.encode())}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "gives no whole answer|cannot be reached"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "gives no whole answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000, "gives no whole answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nabc", "gives no whole answer"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", "gives no whole answer"),
        (b"HTTP/1.1 500 X\r\ncontent-length: 99\r\n\r\nabc", "gives no whole answer"),
        (b"HTTP/1.1 302 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "answers 302"),
        (page("<html>sign in</html>"), "answers with no JSON"),
        (page(DEEP), "answers with no JSON"),
        (page(DEEP, 500), "answers 500"),
        (page("9" * 5000), "answers with no JSON"),
    ],
)
def test_an_answer_that_is_none(answer: bytes, words: str) -> None:
    with answering(answer) as url, pytest.raises(InputError, match=words):
        ask_json(url)


def test_an_answer_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    start = b"HTTP/1.1 200 OK\r\n\r\n"
    with (
        answering(start, *[b"data: {}\n\n"] * 1000, every=0.01) as url,
        pytest.raises(InputError, match="does not end"),
    ):
        ask(url, timeout=0.2)
    monkeypatch.setattr("truecast.bench.http.MAX_BYTES", 1000)
    with answering(start, b"x" * 5000) as url, pytest.raises(InputError, match="longer than 1000 bytes"):
        ask(url)


def test_an_error_that_is_no_text_is_told_all_the_same() -> None:
    assert server_message(DEEP).endswith(" ...")


@pytest.mark.parametrize(
    "models",
    [[], {"data": 3}, {"data": [3, {"id": 3}]}, {"data": [{"id": ""}]}, {"data": None}, 3],
    ids=json.dumps,
)
def test_a_list_of_models_that_is_none(models: Any) -> None:
    with answering(page(json.dumps(models))) as url, pytest.raises(InputError, match="lists no model"):
        describe(url, None)


def test_settings_that_no_record_can_hold_are_left_out() -> None:
    info = (
        '{"data": [{"id": "<b>m</b>", "max_model_len": HUGE}], "version": 1, "a": NaN, "b": 1e999, "c": HUGE, "d": 7}'
    )
    with answering(page(info.replace("HUGE", HUGE))) as url:
        server = describe(url, None)
    assert (server.model, server.context, server.version) == ("<b>m</b>", None, "1")
    assert server.arguments == {"version": 1, "d": 7}
    json.dumps(server.document(), allow_nan=False)


def test_a_page_for_everything_is_no_flushed_cache() -> None:
    with answering(page("<!doctype html><title>gateway</title>")) as url:
        assert flush_cache(Server(url, "m")) == "cannot be flushed"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (['{"error": {"message": "<script>"}}'], "answers with an error: <script>"),
        (['{"usage": 3}', '{"usage": []}', '{"usage": {"completion_tokens": true}}', DEEP, "3"], "reports no usage"),
    ],
)
def test_a_probe_without_a_count(events: list[str], words: str) -> None:
    text = "".join(f"data: {event}\n\n" for event in events)
    with answering(page(text)) as url, pytest.raises(InputError, match=words):
        counts_tokens(Server(url, "m"), PROMPT)


def test_a_prompts_own_limits_do_not_contradict_the_probes() -> None:
    """vLLM refuses min_tokens above max_tokens; OpenAI both kinds of a limit."""
    seen: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while (line := self.rfile.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            seen.append(self.rfile.read(length))
            self.wfile.write(page('data: {"usage": {"completion_tokens": 3}}\n\n'))

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        prompt = {**PROMPT, "max_completion_tokens": 9000, "min_tokens": 100}
        assert counts_tokens(Server(f"http://127.0.0.1:{server.server_address[1]}", "m"), prompt) is False
    body = json.loads(seen[0])
    assert body["max_tokens"] == 16
    assert not {"max_completion_tokens", "min_tokens"} & body.keys()


ODD = {
    "no JSON": "<html>",
    "deep": DEEP,
    "digits": "9" * 5000,
    "choices": '{"choices": 3}',
    "choice": '{"choices": ["x"]}',
    "delta": '{"choices": [{"delta": "x"}]}',
    "usage": '{"usage": [3]}',
}


@pytest.mark.parametrize("kind", ODD)
def test_an_event_that_is_none_fails_its_request_and_no_other(serve: Serve, measured: Measured, kind: str) -> None:
    document = measured(serve(**QUICK, odd_every=5, odd_event=ODD[kind]), 2, requests=16)
    (run,) = document["levels"][0]["runs"]
    assert run["requests"]["errors"] == {"sent an event that is no chunk of a chat completion": 4}
    assert document["sound"] is False
    assert run["figures"]["output_tokens"] == 20
    json.dumps(document, allow_nan=False)


COUNTS = {"negative": "-5", "huge": HUGE, "growing": "999999999", "true": "true", "text": '"7"', "infinite": "1e999"}


@pytest.mark.parametrize("kind", COUNTS)
def test_a_running_count_that_lies_is_not_gone_by(serve: Serve, measured: Measured, kind: str) -> None:
    """The final count is what holds: a stream whose running counts contradict it has its tokens spread over its chunks."""
    text = '{"choices": [{"delta": {"content": "x"}}], "usage": {"completion_tokens": ' + COUNTS[kind] + "}}"
    document = measured(serve(**QUICK, odd_every=1, odd_event=text), 2)
    (run,) = document["levels"][0]["runs"]
    assert run["requests"]["errors"] == {}
    assert run["figures"]["output_tokens"] == 20
    assert run["figures"]["aggregate"] == pytest.approx(2 * 20 * 1000 / 26, rel=1e-4)
    assert "does not count tokens by chunk" in "\n".join(document["levels"][0]["remarks"])


def answer(usage: str, text: str = "x") -> dict[str, Any]:
    about = {
        "credit_issued_ns": 0,
        "request_start_ns": 10,
        "request_end_ns": 20,
        "benchmark_phase": "profiling",
    }
    events = [
        json.dumps({"choices": [{"delta": {"content": text}}]}),
        '{"choices": [{"delta": {}, "finish_reason": "' + "s" * 1000 + '"}], "usage": ' + usage + "}",
    ]
    responses = [{"perf_ns": i, "packets": [{"name": "data", "value": e}]} for i, e in enumerate(events, 1)]
    return {"metadata": about, "start_perf_ns": 0, "status": 200, "responses": responses}


@pytest.mark.parametrize(
    ("count", "words"),
    [
        ("-5", "no usage"),
        (HUGE, "no usage"),
        ("NaN", "no usage"),
        ("1e999", "no usage"),
        ("true", "no usage"),
        ("0", "counts no token in an answer that has some"),
        ("5000", "counts 5000 tokens in an answer, more than the model's context of 4096"),
        ("4000", "None"),
    ],
)
def test_a_final_count_that_cannot_be_fails_its_request(count: str, words: str) -> None:
    request = request_of(answer('{"completion_tokens": ' + count + "}"), 4096)
    assert words in str(request.error)
    assert len(request.finish or "") == 40


@pytest.mark.parametrize("value", ["-1", "101", HUGE, "NaN", "{}", "null", "true"])
def test_other_counts_that_cannot_be_are_not_known(value: str) -> None:
    usage = '"prompt_tokens": 100, "completion_tokens": 100, "reasoning_tokens": ' + value
    request = request_of(answer("{" + usage + ', "prompt_tokens_details": {"cached_tokens": ' + value + "}}"))
    assert (request.error, request.cached, request.reasoning) == (None, None, None)


@pytest.mark.parametrize("details", ["3", "[]", '"x"'])
def test_details_that_are_none_tell_nothing(details: str) -> None:
    usage = f'"prompt_tokens_details": {details}, "completion_tokens_details": {details}'
    request = request_of(answer('{"completion_tokens": 9, ' + usage + "}"))
    assert (request.error, request.output, request.cached, request.reasoning) == (None, 9, None, None)


def test_metrics_that_are_none_do_not_end_the_run(tmp_path: Path) -> None:
    for text in ("<html>", "sglang:num_queue_reqs --\nsglang:num_queue_reqs e\n", "\0" * 1000):
        with answering(page(text)) as url:
            monitor = Monitor(url)
            monitor.poll(-1)
            assert monitor.server(Window(0, 1e12))["queued"] is None
    with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nabc") as url:
        Monitor(url).poll(-1)


@pytest.mark.usefixtures("in_process")
def test_names_are_no_markup(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from truecast.cli.main import main

    server = serve(**QUICK, model="<b>m</b>[red]\x1b[2J", engine="plain")
    argv = ["bench", server.url, "--prompts", str(write_prompts(tmp_path)), "--concurrency", "2", "--requests", "8"]
    assert main([*argv, "--runs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "<b>m</b>[red]\\x1b[2J at" in printed
