from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from tests.bench.conftest import Serve
from truecast.bench.http import StatusError, server_message
from truecast.bench.server import base_url, changed_since, counts_tokens, describe, flush_cache
from truecast.errors import InputError

PROMPT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("url", ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"])
def test_an_address_with_or_without_v1(url: str) -> None:
    assert base_url(url) == "http://a:1"


def test_no_address() -> None:
    with pytest.raises(InputError, match="no http address"):
        base_url("a:1")


def test_a_server_says_who_it_is(serve: Serve) -> None:
    server = describe(serve(ttft=0.01).url, None)
    assert (server.model, server.context, server.engine, server.version) == ("timed", 100_000, "sglang", "0.5.20")
    assert server.arguments["tp_size"] == 4
    assert "api_key" not in server.arguments
    assert "k3y" not in str(describe(server.url, None, "k3y").document())
    assert describe(serve(engine="vllm").url, None).engine == "vllm"
    assert describe(serve(engine="plain").url, "timed").engine is None


def test_another_server_in_its_place(serve: Serve) -> None:
    server = describe(serve().url, None)
    assert changed_since(server) == []
    other = replace(server, version="0.0", arguments={**server.arguments, "random_seed": 7})
    assert changed_since(other) == ["version", "random_seed"]
    assert changed_since(replace(server, model="other")) == ["model"]
    assert changed_since(replace(server, url="http://127.0.0.1:9")) == []


def test_a_model_that_is_not_served(serve: Serve) -> None:
    with pytest.raises(InputError, match="serves no other, but timed"):
        describe(serve().url, "other")


@pytest.mark.parametrize(("usage", "by_chunk"), [("continuous", True), ("final", False), ("refuse", False)])
def test_how_a_server_counts(serve: Serve, usage: str, by_chunk: bool) -> None:
    server = describe(serve(ttft=0.01, usage=usage).url, None)
    assert counts_tokens(server, PROMPT) is by_chunk


def test_a_server_without_usage_is_no_server_to_measure(serve: Serve) -> None:
    server = describe(serve(ttft=0.01, usage="none").url, None)
    with pytest.raises(InputError, match="reports no usage"):
        counts_tokens(server, PROMPT)


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_an_error_status_is_told_with_the_servers_words(serve: Serve, status: int) -> None:
    server = describe(serve(status=status).url, None)
    with pytest.raises(StatusError, match=f"answers {status}: the model says {status}"):
        counts_tokens(server, PROMPT)


def test_a_server_that_is_down() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(InputError, match="is the server up"):
        describe(f"http://127.0.0.1:{port}", None)


def test_flush(serve: Serve) -> None:
    server = serve()
    assert flush_cache(describe(server.url, None)) == "flushed"
    assert server.page("/timed/state")["flushed"] == 1
    assert flush_cache(describe(serve(engine="plain").url, None)) == "cannot be flushed"


def test_a_servers_message_is_short_and_on_one_line() -> None:
    assert server_message('{"error": {"message": "a\\nb"}}') == "a b"
    assert server_message('{"detail": "x"}') == '{"detail": "x"}'
    assert server_message('"plain"') == "plain"
    assert len(server_message("x" * 1000)) < 400
