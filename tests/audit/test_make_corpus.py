"""Documents of a model's own making: the same from the model and from a server, and after an interruption."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Outcome
from tests.models.tiny_k3 import make_tiny_k3
from tests.serve.serving import END, TOKENIZER, VOCABULARY, Running, running
from truecast.audit import completions_client
from truecast.audit.corpus import read_corpus
from truecast.audit.make_corpus import make_corpus
from truecast.errors import InputError, RefusedError
from truecast.models.generate import Resident
from truecast.models.kimi_k3.chat import render
from truecast.models.open import open_model

USER = [{"role": "user", "content": "hi"}]
PROMPTS: list[dict[str, Any]] = [
    {"id": "chat", "messages": USER, "effort": "low"},
    {"tokens": [1, 2, 3]},
    {"text": "the message"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_k3(tmp_path_factory.mktemp("corpus") / "tiny")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n".join(map(json.dumps, PROMPTS)))
    return path


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Running]:
    with running(Resident(open_model(model)).session) as server:
        yield server


def test_documents_begin_with_their_prompts(model: Path, prompts: Path, tmp_path: Path) -> None:
    result = make_corpus(str(model), prompts, tmp_path / "docs.jsonl", max_tokens=7)
    corpus = read_corpus(tmp_path / "docs.jsonl", VOCABULARY)
    assert [d.id for d in corpus.documents] == ["chat", "line-3", "line-5"]
    starts = [render(TOKENIZER, USER, effort="low"), [1, 2, 3], TOKENIZER.encode("the message")]
    for document, start in zip(corpus.documents, starts, strict=True):
        tokens = document.tokens.tolist()
        assert tokens[: len(start)] == start
        made = tokens[len(start) :]
        assert len(made) == 7 or made[-1] == END
        assert document.scored == len(made)
        assert document.scored_from == len(start) - 1
    assert result["documents"] == 3
    assert result["made_tokens"] == sum(d.scored for d in corpus.documents)
    assert set(corpus.tokenizer_files) == {"tiktoken.model", "tokenizer_config.json"}


def test_the_server_gives_what_the_model_gives(model: Path, prompts: Path, tmp_path: Path, server: Running) -> None:
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    make_corpus(str(model), prompts, here, max_tokens=9, seed=4)
    make_corpus(str(model), prompts, there, max_tokens=9, seed=4, url=f"{server.url}/v1")
    assert here.read_text().splitlines()[1:] == there.read_text().splitlines()[1:]
    make_corpus(str(model), prompts, tmp_path / "other.jsonl", max_tokens=9, seed=5)
    assert (tmp_path / "other.jsonl").read_text().splitlines()[1:] != here.read_text().splitlines()[1:]


@pytest.mark.parametrize("cut", [0, 30])
def test_an_interrupted_run_goes_on(model: Path, prompts: Path, tmp_path: Path, cut: int) -> None:
    whole, again = tmp_path / "whole.jsonl", tmp_path / "again.jsonl"
    make_corpus(str(model), prompts, whole, max_tokens=5)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_corpus(str(model), prompts, again, max_tokens=5, progress=stop)
    assert not again.exists()
    part = tmp_path / "again.jsonl.partial"
    part.write_bytes(part.read_bytes()[: -cut or None])
    result = make_corpus(str(model), prompts, again, max_tokens=5)
    assert again.read_bytes() == whole.read_bytes()
    assert result["kept"] == (1 if cut else 2)
    assert not part.exists()


def test_what_would_be_overwritten_or_mixed_is_refused(model: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "docs.jsonl"
    out.write_text("mine")
    with pytest.raises(RefusedError, match="exists"):
        make_corpus(str(model), prompts, out)
    part = tmp_path / "new.jsonl.partial"
    for text in ("{}\n", "no JSON\n", "[1]\n", "null\n"):
        part.write_text(text)
        with pytest.raises(RefusedError, match="part of"):
            make_corpus(str(model), prompts, tmp_path / "new.jsonl")
    with pytest.raises(RefusedError, match="cannot write"):
        make_corpus(str(model), prompts, tmp_path / "nowhere" / "new.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        "", "{", "[]", "{}", '{"text": 1}', '{"text": ""}', '{"tokens": []}', '{"tokens": [true]}', '{"tokens": [-1]}',
        f'{{"tokens": [{VOCABULARY}]}}', '{"tokens": 7}', '{"tokens": [1], "text": "a"}', '{"messages": 7}',
        '{"messages": [7]}', '{"messages": [{"role": "robot"}]}', '{"messages": [], "effort": "medium"}',
        '{"messages": [], "thinking": 1}', '{"text": "a", "id": 7}', '{"text": "a", "id": "x"}\n{"text": "b", "id": "x"}',
        "[" * 100_000, json.dumps({"text": "a", "id": "x" * 1001}),
    ],
)  # fmt: skip
def test_bad_prompts(model: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "prompts.jsonl").write_text(line)
    with pytest.raises(InputError, match=r"prompts\.jsonl"):
        make_corpus(str(model), tmp_path / "prompts.jsonl", tmp_path / "docs.jsonl")
    assert not (tmp_path / "docs.jsonl.partial").exists()


class Answer(BaseHTTPRequestHandler):
    status, body = 200, b""

    def do_GET(self) -> None:
        self._send(200, b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._send(self.status, self.body)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b'{"choices": [{"text": "a"}]}', "no token ids"),
        (200, b'{"choices": [{"token_ids": []}]}', "no token ids"),
        (200, b'{"choices": [{"token_ids": ["a"]}]}', "no token ids"),
        (200, b'{"choices": [{"token_ids": [999999]}]}', "outside the vocabulary"),
        (200, b'{"choices": [{"token_ids": [1], "prompt_token_ids": [2]}]}', "another prompt"),
        (200, b'{"choices": [{"token_ids": [1, 1, 1, 1, 1, 1, 1, 1, 1]}]}', "9 tokens, 8 were asked for"),
        (200, b'{"choices": []}', "no choice"),
        (200, b"[]", "no choice"),
        (200, b"not json", "no answer"),
        (400, b'{"error": {"message": "too long"}}', "answers 400: too long"),
        (500, b"oh", "answers 500"),
    ],
)
def test_what_a_server_may_answer(
    model: Path, prompts: Path, tmp_path: Path, status: int, body: bytes, message: str
) -> None:
    handler = type("Given", (Answer,), {"status": status, "body": body})
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            with pytest.raises(InputError, match=message):
                url = f"http://127.0.0.1:{http.server_port}/v1"
                make_corpus(str(model), prompts, tmp_path / "docs.jsonl", url=url, max_tokens=8)
        finally:
            http.shutdown()
            thread.join()


def _elsewhere(handler: Answer) -> None:
    handler.send_response(302)
    handler.send_header("location", "http://127.0.0.1:9/elsewhere")
    handler.end_headers()


def _endless(handler: Answer) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


def _trickling(handler: Answer) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def _cut(handler: Answer) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"data": [{"id": "m"}]}')


def _nameless(handler: Answer) -> None:
    handler._send(200, b'{"data": [{"id": {}}]}')


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_elsewhere, "answers 302"),
        (_endless, "more than"),
        (_trickling, "within 1 s"),
        (_cut, "breaks off"),
        (_nameless, "lists no model"),
    ],
)
def test_a_hostile_server_ends_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[Answer], None], message: str
) -> None:
    def send(handler: Answer) -> None:
        with suppress(OSError):  # the client has left
            answer(handler)

    monkeypatch.setattr(completions_client, "LIST_TIMEOUT_S", 1.0)
    with HTTPServer(("127.0.0.1", 0), type("Hostile", (Answer,), {"do_GET": send})) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            with pytest.raises(InputError, match=message):
                completions_client.served_model(f"http://127.0.0.1:{http.server_port}/v1")
        finally:
            http.shutdown()
            thread.join()


@pytest.mark.parametrize("what", ["pipe", "/dev/zero"])
def test_prompts_that_never_end(model: Path, tmp_path: Path, what: str) -> None:
    path = Path(what) if what.startswith("/") else tmp_path / what
    if not path.exists():
        os.mkfifo(path)
    with pytest.raises(InputError, match="no regular file"):
        make_corpus(str(model), path, tmp_path / "docs.jsonl")
    assert not (tmp_path / "docs.jsonl.partial").exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "file:///etc/passwd", "http://[", "nonsense"])
def test_no_server(model: Path, prompts: Path, tmp_path: Path, url: str) -> None:
    with pytest.raises(InputError):
        make_corpus(str(model), prompts, tmp_path / "docs.jsonl", url=url)


def test_the_command(model: Path, prompts: Path, tmp_path: Path, cli: Callable[..., Outcome], server: Running) -> None:
    out = tmp_path / "docs.jsonl"
    common = ("corpus", model, "--prompts", prompts, "--max-tokens", 4, "--limit", 2)
    outcome = cli(*common, "--out", out, "--device", "cpu", "--json")
    assert (outcome.code, outcome.json["documents"], outcome.json["out"]) == (0, 2, str(out))
    assert outcome.json["schema"] == "truecast.corpus/1"
    assert len(read_corpus(out, VOCABULARY).documents) == 2
    assert cli(*common, "--out", out).code == 3
    outcome = cli(*common, "--out", tmp_path / "two.jsonl", "--url", f"{server.url}/v1/")
    assert (outcome.code, "2 documents" in outcome.out) == (0, True)
    assert cli(*common, "--out", tmp_path / "three.jsonl", "--temperature", "warm").code == 2


def test_two_runs_do_not_write_one_corpus(model: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "docs.jsonl"

    def second(done: int, total: int) -> None:
        with pytest.raises(RefusedError, match="another run is writing it"):
            make_corpus(str(model), prompts, out, max_tokens=3)

    make_corpus(str(model), prompts, out, max_tokens=3, progress=second)
    assert [d.id for d in read_corpus(out, VOCABULARY).documents] == ["chat", "line-3", "line-5"]
    assert not out.with_name(f"{out.name}.partial").exists()
