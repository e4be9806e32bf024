"""Bodies that no client library sends, clients that leave, and many requests at once."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.models.k3_vocabulary import VOCABULARY
from tests.serve.serving import TOKENIZER, Running, Scripted, running

ENDLESS = TOKENIZER.encode("ab ")
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(lambda: Scripted(ENDLESS)) as server:
        yield server


@pytest.fixture(scope="module")
def slow() -> Iterator[Running]:
    with running(lambda: Scripted(ENDLESS, delay_s=0.01)) as server:
        yield server


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b'"text"', b"1" * 5000, b"{}",
        b'{"model": null}', b'{"model": "tiny", "messages": "x", "prompt": {}}',
        b'{"model": "tiny", "messages": [[]], "prompt": [[]]}', b'{"model": "tiny", "messages": [{}], "prompt": []}',
        b'{"model": "tiny", "messages": [{"role": "user"}], "prompt": 7, "seed": 1.5}',
        b'{"model": "tiny", "messages": [{"role": "user"}], "prompt": [true], "temperature": NaN}',
        b'{"model": "tiny", "messages": [{"role": "user"}], "prompt": [1e3], "temperature": 1e999}',
        b'{"model": "\\ud800", "messages": [{"role": "\\ud800"}], "prompt": [[1], "a"], "tools": [1]}',
    ],
)  # fmt: skip
def test_a_malformed_body_is_a_400(server: Running, path: str, body: bytes) -> None:
    answer = server.http.post(path, content=body)
    assert answer.status_code in (400, 404), answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})
FIELDS = ("messages", "prompt", "max_completion_tokens", "temperature", "top_p", "n", "stop", "seed", "logprobs", "stream",
          "tools", "tool_choice", "response_format", "stream_options", "echo", "chat_template_kwargs")  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.sampled_from(PATHS), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
def test_no_field_of_any_type_gives_a_500(server: Running, path: str, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "prompt": "a", **fields, "max_tokens": 2}
    content = json.dumps(body)
    answer = server.http.post(path, content=content)
    assert answer.status_code in (200, 400), (content, answer.text)


def test_half_a_surrogate_pair_is_answered(server: Running) -> None:
    body = b'{"model": "tiny", "prompt": "a\\ud800", "max_tokens": 1, "echo": true}'
    answer = server.http.post("/v1/completions", content=body)
    assert answer.json()["choices"][0]["text"].startswith("a\ufffd")


def test_unknown_paths_and_methods(server: Running) -> None:
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("GET", "/v1/completions", 405),
        ("GET", "/v1/models/x", 404),
    ):
        answer = server.http.request(method, path)
        assert (answer.status_code, bool(answer.json()["error"]["message"])) == (status, True)


def test_tokenize(server: Running) -> None:
    answer = server.http.post("/tokenize", json={"prompt": "<|open|>the"}).json()
    assert answer["tokens"] == TOKENIZER.encode("<|open|>the")
    assert answer["count"] == len(answer["tokens"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_generation(slow: Running, stream: bool) -> None:
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1400, "stream": stream}).encode()
    host, port = slow.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        time.sleep(0.2)
        assert slow.load() == (1, 0)
    assert slow.idle_within(1.0), "1400 tokens take 14 s"


def test_a_short_request_is_not_held_up_by_long_ones(slow: Running) -> None:
    long = {"model": "tiny", "prompt": "a", "max_tokens": 60}
    with ThreadPoolExecutor(3) as pool:
        ends = [pool.submit(lambda: (slow.http.post("/v1/completions", json=long), time.monotonic()))
                for _ in range(3)]  # fmt: skip
        while slow.load()[0] < 3:
            time.sleep(0.01)
        short = slow.http.post("/v1/completions", json={**long, "max_tokens": 5})
        done = time.monotonic()
        assert short.json()["usage"]["completion_tokens"] == 5
        for end in ends:
            answer, at = end.result()
            assert answer.json()["usage"]["completion_tokens"] == 60
            assert at > done


def test_more_requests_than_places_all_get_their_turn(server: Running) -> None:
    body = {"model": "tiny", "prompt": ["a"] * 20, "max_tokens": 3, "n": 2, "temperature": 0}
    answer = server.http.post("/v1/completions", json=body).json()
    assert [c["text"] for c in answer["choices"]] == ["ab "] * 40


def test_a_model_that_fails_is_a_500_and_the_server_goes_on(server: Running) -> None:
    body = {"model": "tiny", "prompt": "a", "echo": True, "logprobs": 1, "max_tokens": 1}
    answer = server.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "RuntimeError: this model cannot score")
    lines = server.http.post("/v1/completions", json={**body, "stream": True}).text.split("\n\n")
    assert "cannot score" in lines[0]
    assert lines[1] == "data: [DONE]"
    assert server.http.post("/v1/completions", json={**body, "echo": False}).status_code == 200


def test_closing_ends_what_is_running() -> None:
    with running(lambda: Scripted(ENDLESS, delay_s=0.01)) as server:
        body = {"model": "tiny", "prompt": "a", "max_tokens": 1400}
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(httpx.post(f"{server.url}/v1/completions", json=body)))
        thread.start()
        while server.load() != (1, 0):
            time.sleep(0.01)
    thread.join()
    assert answers[0].status_code == 500
    assert "shutting down" in answers[0].text


def test_ids_outside_the_vocabulary(server: Running) -> None:
    answer = server.http.post("/v1/completions", json={"model": "tiny", "prompt": [VOCABULARY]})
    assert (answer.status_code, "vocabulary" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("path", "start", "item"),
    [
        ("/v1/completions", b'{"model": "tiny", "prompt": [', b"-1,"),
        ("/v1/chat/completions", b'{"model": "tiny", "messages": [', b"1,"),
        ("/v1/chat/completions", b'{"model": "tiny", "messages": [{"role": "user"}], "tools": [', b"1,"),
    ],
)
def test_a_million_faults_are_told_by_the_first(server: Running, path: str, start: bytes, item: bytes) -> None:
    began = time.monotonic()
    answer = server.http.post(path, content=start + item * 300_000 + b"1]}")
    assert answer.status_code == 400
    assert time.monotonic() - began < 5  # a report of each takes half a minute and gigabytes


def test_messages_beyond_the_context_are_not_rendered(server: Running) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "ab " * 1000}] * 5000}
    began = time.monotonic()
    answer = server.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert time.monotonic() - began < 5


def test_a_long_prompt_does_not_hold_up_the_others(server: Running) -> None:
    with ThreadPoolExecutor() as pool:
        long = pool.submit(server.http.post, "/tokenize", json={"prompt": "word and " * 200_000})
        time.sleep(0.2)
        waits: list[float] = []
        while not long.done():
            began = time.monotonic()
            server.http.get("/health")
            waits.append(time.monotonic() - began)
        assert long.result().json()["count"] > 200_000
    assert len(waits) > 2


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": True},
        {"temperature": "1"},
        {"top_p": "1"},
        {"messages": [{"role": "user", "name": ["a"]}]},
        {"messages": [{"role": "tool", "tool": 7}]},
        {"response_format": {"type": "json_schema"}},
        {"model": "x" * 100_000},
        {"messages": [{"role": "x" * 100_000}]},
        {"reasoning_effort": "x" * 100_000},
    ],
)
def test_a_field_of_another_type_is_refused_in_few_words(server: Running, body: dict[str, Any]) -> None:
    answer = server.http.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": [{"role": "user", "content": "a"}], **body}
    )
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 500


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("localhost:1", 200),
        ("LOCALHOST", 200),
        ("rebound.example", 403),
        ("localhost.example:8000", 403),
        ("127.0.0.1.example", 403),
        ("", 403),
    ],
)
def test_a_page_of_another_name_gets_nothing(server: Running, host: str, status: int) -> None:
    answer = server.http.get("/v1/models", headers={"host": host})
    assert answer.status_code == status
    assert ("error" in answer.json()) == (status == 403)


def test_whoever_leaves_within_a_body_leaves_no_traceback(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    time.sleep(0.3)
    assert server.http.get("/health").status_code == 200
    assert "Traceback" not in caplog.text
    assert "Exception" not in caplog.text
