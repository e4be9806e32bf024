"""What a server says of itself, over real HTTP, with the field names of the real wheels."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.engines.conftest import SGLANG_VERSIONS, Release
from truecast.errors import InputError
from truecast.serve.server_info import arguments_of, server_info

MODELS = {"data": [{"id": "k3", "owned_by": "sglang", "max_model_len": 1000}]}
USAGE = {"weight": 48.1, "kvcache": 20.5, "startup_available": 90.0, "token_capacity": 500000, "graph": {}}
STATE = {
    "memory_usage": USAGE,
    "effective_max_running_requests_per_dp": 48,
    "avg_spec_accept_length": 2.45,
    "last_gen_throughput": 900.0,
}
INFO = {
    "model_path": "moonshotai/Kimi-K3",
    "tp_size": 32,
    "ep_size": 32,
    "trust_remote_code": True,
    "disable_radix_cache": False,
    "mem_fraction_static": 0.82,
    "dist_init_addr": None,
    "json_model_override_args": "{}",
    "custom_sigquit_handler": None,
    "cuda_graph_config": {"decode": {}},
    "status": "ready",
    "max_total_num_tokens": 500000,
    "max_req_input_len": 99,
    "internal_states": [STATE],
    "version": "0.5.20",
    "launch_command": "sglang serve --tp 32",
    "kv_events": None,
}

Route = Callable[[BaseHTTPRequestHandler], None]


def say(document: Any, status: int = 200, kind: str = "application/json", **headers: str) -> Route:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@contextlib.contextmanager
def serving(routes: dict[str, Route]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                routes.get(self.path, say({"detail": "Not Found"}, 404))(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang(path: str) -> None:
    with serving({"/v1/models": say(MODELS), path: say(INFO)}) as url:
        facts = server_info(url)
    assert (facts.engine, facts.version, facts.model) == ("sglang", "0.5.20", "k3")
    assert facts.arguments == {
        "--model-path": "moonshotai/Kimi-K3",
        "--tp-size": "32",
        "--ep-size": "32",
        "--trust-remote-code": "",
        "--mem-fraction-static": "0.82",
        "--json-model-override-args": "{}",
    }
    assert facts.states == (STATE,) and facts.max_total_tokens == 500000
    assert facts.environment is None and facts.launch_command == "sglang serve --tp 32"


def test_sglang_that_shows_its_environment() -> None:
    shown = {**INFO, "internal_states": [{**STATE, "env_vars": {"SGLANG_HOST_IP": "10.0.0.1"}}]}
    with serving({"/v1/models": say(MODELS), "/server_info": say(shown)}) as url:
        assert server_info(url + "/v1").environment == {"SGLANG_HOST_IP": "10.0.0.1"}


def test_vllm() -> None:
    models = {"data": [{"id": "k3", "owned_by": "vllm"}]}
    with serving({"/v1/models": say(models), "/version": say({"version": "0.33.0"})}) as url:
        facts = server_info(url)
    assert (facts.engine, facts.version, facts.arguments) == ("vllm", "0.33.0", {})


def test_another_server() -> None:
    with serving({"/v1/models": say({"data": [{"id": "m"}]})}) as url:
        assert server_info(url).engine == "unknown"


def _drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b" ")
            time.sleep(0.05)


def _endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b" " * (1 << 20))


@pytest.mark.parametrize(
    ("route", "words"),
    [
        (_drip, "no whole answer within 0.5 s"),
        (_endless, "more than 16,777,216 bytes"),
        (say(b"<html>hello</html>", kind="text/html"), "no JSON"),
        (say([1, 2]), "no JSON object"),
        (say({}, 302, location="http://elsewhere.example/"), "redirects to http://elsewhere.example/"),
        (say({"error": "Unauthorized"}, 401), "401: Unauthorized"),
        (say({"detail": "scheduler died"}, 500), "500: scheduler died"),
        (say(b"[" * 100_000), "no JSON"),
    ],
    ids=["slow", "huge", "html", "no-object", "redirect", "key", "error", "deep"],
)
def test_servers_that_answer_badly(route: Route, words: str) -> None:
    seconds = 0.5 if route is _drip else 10
    with (
        serving({"/v1/models": say(MODELS), "/server_info": route}) as url,
        pytest.raises(InputError, match=words) as caught,
    ):
        server_info(url, seconds=seconds)
    assert caught.value.where.endswith("/server_info") and caught.value.fix


def test_nobody_there() -> None:
    with pytest.raises(InputError, match="no connection"):
        server_info("http://127.0.0.1:9")


@pytest.mark.parametrize(
    "odd", [{"tp_size": "x"}, {"tp_size": 1, "internal_states": {}, "version": 5}, {"tp_size": []}]
)
def test_odd_documents_are_no_traceback(odd: dict[str, Any]) -> None:
    with serving({"/v1/models": say(MODELS), "/server_info": say(odd)}) as url:
        facts = server_info(url)
    assert facts.states == () and facts.version is None


def test_nested_and_unset_fields_are_no_arguments() -> None:
    assert arguments_of({"a_b": 1, "c": None, "d": False, "e": [1], "f": {"g": 1}, "h": True}) == {
        "--a-b": "1",
        "--h": "",
    }


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_field_names_are_those_of_the_wheels(version: str) -> None:
    """Should SGLang rename what is read here, this fails; the documents above are made by hand."""
    text = Release.of(version).sources
    server, scheduler = text("sglang.srt.entrypoints.http_server"), text("sglang.srt.managers.scheduler")
    for name in ("/server_info", "/get_server_info", "internal_states", "version"):
        assert f'"{name}"' in server, name
    part = "sglang.srt.managers.scheduler_components"
    state = text(f"{part}.internal_state") if version == "0.5.23" else scheduler
    for name in set(STATE) - {"memory_usage"}:
        assert f'"{name}"' in state, name
    assert '"memory_usage"' in state and '"max_total_num_tokens"' in scheduler
    usage = text(f"{part}.memory_usage")
    assert all(f'"{name}"' in usage for name in USAGE)
