"""Servers that cannot be tested, or do what no server should: exit 2 with a reason, never a traceback, never for ever."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Outcome
from truecast.serve.smoke import http
from truecast.serve.smoke.http import NoAnswer, request

Cli = Callable[..., Outcome]
MODELS = json.dumps({"data": [{"id": "m", "max_model_len": 9}]}).encode()


def reply(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@contextlib.contextmanager
def raw_server(answer: Callable[[str], Iterator[bytes] | bytes]) -> Iterator[tuple[str, list[str]]]:
    """A socket that answers a request's first line with these bytes. Gives its address, and the requests it saw."""
    seen: list[str] = []

    def talk(peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            request_text = peer.recv(65536).decode("latin-1")
            seen.append(request_text)
            pieces = answer(request_text.split("\r\n")[0])
            for piece in [pieces] if isinstance(pieces, bytes) else pieces:
                peer.sendall(piece)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listening.accept()[0],), daemon=True).start()

    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", seen
    finally:
        listening.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("127.0.0.1:8000", "is no http or https address"),
        ("ftp://host/v1", "is no http or https address"),
        ("http://", "is no http or https address"),
        ("http://host:port", "is no address: Port could not be cast"),
        ("http://host:99999", "is no address: Port out of range"),
        ("http://me:secret@host/", "has more than host, port and path"),
        ("http://host/v1?x=1", "has more than host, port and path"),
        ("http://host/a b", "holds blanks"),
        ("http://[::1", "is no address"),
        ("http://no-such-host.invalid:8000", "no connection"),
    ],
)
def test_addresses_that_are_none(url: str, reason: str, cli: Cli) -> None:
    outcome = cli("smoke", url)
    assert outcome.code == 2
    assert reason in outcome.err


def test_nobody_listens(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = cli("smoke", f"http://127.0.0.1:{port}", "--json")
    assert outcome.code == 2
    assert outcome.json["schema"] == "truecast.smoke/1"
    assert "Connection refused; is the server running, and is this its address?" in outcome.json["error"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reply("401 Unauthorized", b'{"error": "no key"}'), "answers 401: no key; put its key into"),
        (reply("404 Not Found"), "answers 404; is this the address of an OpenAI-compatible server?"),
        (reply("503 Starting", b"not yet"), "answers 503: not yet; is it ready"),
        (reply("302 Found", b"", "location: http://192.0.2.7/v1/models"), "redirects to http://192.0.2.7/v1/models"),
        (reply("200 OK", b"<html>Welcome</html>"), "answers 200 with no JSON: b'<html>Welcome</html>'"),
        (reply("200 OK", b"[" * 100_000), "answers 200 with no JSON"),
        (reply("200 OK", b"[]"), "answers 200 with no JSON object"),
        (reply("200 OK", b'{"data": []}'), "lists no model"),
        (reply("200 OK", b'{"data": [{"id": 5}, 6]}'), "lists no model"),
        (reply("200 OK", MODELS)[:-5], "breaks off within its answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no HTTP: BadStatusLine"),
        (b"", "no connection: Remote end closed connection"),
    ],
)
def test_what_lists_no_models(answer: bytes, reason: str, cli: Cli) -> None:
    with raw_server(lambda _: answer) as (url, _):
        outcome = cli("smoke", url)
    assert outcome.code == 2
    assert reason in outcome.err


def test_the_address_with_and_without_v1_and_at_the_root(cli: Cli) -> None:
    for base, given in (("/v1", ""), ("/v1", "/v1"), ("/v1", "/v1/"), ("", ""), ("/api/v1", "/api")):

        def answer(line: str, listed: str = f"GET {base}/models ") -> bytes:
            return reply("200 OK", MODELS) if line.startswith(listed) else reply("404 Not Found")

        with raw_server(answer) as (url, _):
            outcome = cli("smoke", url + given, "--json")
        assert outcome.code == 1, (base, given)  # it lists models and answers nothing else
        assert outcome.json["url"] == url + base
        assert {c["id"]: c["status"] for c in outcome.json["checks"]}["arithmetic"] == "FAIL"


def test_the_key_is_sent_and_not_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "abc123")
    with raw_server(lambda _: reply("401 Unauthorized")) as (url, seen):
        outcome = cli("smoke", url, "--api-key-env", "MY_KEY")
    assert outcome.code == 2
    assert "is the key right?" in outcome.err
    assert "abc123" not in outcome.err
    assert "authorization: Bearer abc123\r\n" in seen[0].lower().replace("bearer", "Bearer")
    assert cli("smoke", url, "--api-key-env", "NO_SUCH_VARIABLE").code == 2


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon", "1e9"])
def test_times_that_are_none(seconds: str, cli: Cli) -> None:
    assert cli("smoke", "http://127.0.0.1:1", "--timeout", seconds).code == 2


def _drip(line: str) -> Iterator[bytes]:
    del line
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    while True:
        yield b" "
        time.sleep(0.05)


def _drip_headers(line: str) -> Iterator[bytes]:
    del line
    yield b"HTTP/1.1 200 OK\r\nx: "
    while True:
        yield b"y"
        time.sleep(0.05)


@pytest.mark.parametrize("drip", [_drip, _drip_headers])
def test_bytes_that_trickle_for_ever(drip: Callable[[str], Iterator[bytes]], cli: Cli) -> None:
    start = time.monotonic()
    with raw_server(drip) as (url, _):
        outcome = cli("smoke", url, "--timeout", 0.5)
    assert outcome.code == 2
    assert "no whole answer within 0.5 s" in outcome.err
    assert time.monotonic() - start < 5


def test_a_body_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def flood(line: str) -> Iterator[bytes]:
        del line
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while True:
            yield b"x" * 65536

    monkeypatch.setattr(http, "MAX_BODY_BYTES", 1 << 20)
    with raw_server(flood) as (url, _), pytest.raises(NoAnswer, match="more than 1,048,576 bytes"):
        request("GET", url, None, {}, 10)


def test_plain_http_where_tls_is_asked(cli: Cli) -> None:
    with raw_server(lambda _: reply("200 OK", MODELS)) as (url, _):
        outcome = cli("smoke", url.replace("http:", "https:"), "--timeout", 5)
    assert outcome.code == 2
    assert "TLS: " in outcome.err
    assert "is it https?" in outcome.err


def test_a_certificate_that_nobody_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        error = ssl.SSLCertVerificationError(1, "x")
        error.verify_message = "self-signed certificate"
        raise error

    monkeypatch.setattr("http.client.HTTPSConnection.connect", refuse)
    with pytest.raises(NoAnswer, match="TLS: self-signed certificate"):
        request("GET", "https://127.0.0.1:1/", None, {}, 1)


def test_a_model_that_is_not_listed_fails(cli: Cli) -> None:
    with raw_server(lambda _: reply("200 OK", MODELS)) as (url, _):
        outcome = cli("smoke", url, "--model", "other", "--json")
    assert outcome.code == 1
    checks = {c["id"]: c for c in outcome.json["checks"]}
    assert checks["model-name"]["status"] == "FAIL"
    assert "'other' is not listed: m" in checks["model-name"]["evidence"]


def test_no_reference_checkpoint_is_told_at_once(cli: Cli, tmp_path: object) -> None:
    with raw_server(lambda _: reply("200 OK", MODELS)) as (url, seen):
        outcome = cli("smoke", url, "--reference", tmp_path)
    assert outcome.code == 2
    assert len(seen) == 1
