"""What real engines do that is no fault, and what is: replies as SGLang and vLLM give them, without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from truecast.serve.smoke import answers, chat, requests
from truecast.serve.smoke.chat import Reply
from truecast.serve.smoke.http import Answer, Server, ServerFault

SERVER = Server("http://x/v1", 1, model="m")
RIGHT = Reply("51", "17 * 3", (), "stop", 10, 40, 50)


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[dict[str, Any]], Answer]) -> None:
    def post(_: Server, path: str, body: dict[str, Any] | bytes) -> Answer:
        del path
        return answer(body if isinstance(body, dict) else {})

    monkeypatch.setattr(Server, "post", post)


def completion(content: str | None, finish: str = "stop", made: int = 20, **message: Any) -> Answer:
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    counts = {"prompt_tokens": 9, "completion_tokens": made, "total_tokens": 9 + made}
    return Answer(200, {}, json.dumps({"choices": [choice], "usage": counts}).encode())


def test_thinking_that_needs_more_than_the_budget_is_a_warning_with_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        if body["max_tokens"] < 4000:
            return completion("", "length", body["max_tokens"])
        return completion("51", made=1900, reasoning_content="let me think")

    answering(monkeypatch, answer)
    reply, finding = answers.arithmetic(SERVER)
    assert reply is not None
    assert finding.status == "WARN"
    assert "its thinking takes 1900 tokens" in finding.evidence
    assert finding.remedy == "give max_tokens of 7680 or more"


def test_a_context_too_small_for_a_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return (
            completion("", "length", 16) if body["max_tokens"] < 4000 else Answer(400, {}, b'{"message": "too long"}')
        )

    answering(monkeypatch, answer)
    reply, finding = answers.arithmetic(SERVER)
    assert reply is None
    assert finding.status == "FAIL"
    assert "after 16 of max_tokens 1200" in finding.evidence
    assert "caps it" in finding.remedy


@pytest.mark.parametrize(
    ("sglang", "status", "expected"),
    [(True, 200, "WARN"), (False, 200, "FAIL"), (False, 404, "PASS"), (True, 400, "PASS"), (True, 500, "FAIL")],
)
def test_a_wrong_name(monkeypatch: pytest.MonkeyPatch, sglang: bool, status: int, expected: str) -> None:
    answering(monkeypatch, lambda _: Answer(status, {}, b"{}"))
    assert requests.model_name(replace(SERVER, sglang=sglang), ["m"]).status == expected


def test_medium_effort_runs_at_max_in_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        effort = body["reasoning_effort"]
        known = effort in ("low", "medium", "high", "max")
        return completion(effort) if known else Answer(400, {}, b"{}")

    answering(monkeypatch, answer)
    efforts, medium = requests.efforts(replace(SERVER, sglang=True))
    assert (efforts.status, medium.status) == ("PASS", "WARN")
    assert "SGLang runs Kimi-K3 at the encoder's default, max" in medium.evidence


def test_vllm_names_the_channel_reasoning(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, lambda _: completion("51", reasoning="17 * 3 is 51"))
    assert chat.ask(SERVER, "?").reasoning == "17 * 3 is 51"


def test_a_model_that_does_not_think_is_a_warning() -> None:
    finding = answers.channels(replace(RIGHT, reasoning="", made=6))
    assert finding.status == "WARN"
    assert "right for a model that does not think" in finding.remedy


@pytest.mark.parametrize(
    "body",
    [b"[]", b'{"choices": []}', b'{"choices": [{"message": 5}]}', b'{"choices": [{"message": {"content": [1]}}]}',
     b'{"choices": [{"message": {"content": "x", "tool_calls": [{}]}}]}', b"{", b'{"choices": {"0": 1}}'],
)  # fmt: skip
def test_what_is_no_completion(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    answering(monkeypatch, lambda _: Answer(200, {}, body))
    with pytest.raises(ServerFault):
        chat.ask(SERVER, "?")


def test_a_stream_that_breaks_off_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = b'data: {"id": "1", "choices": []}\n\ndata: {"error": {"message": "gone"}}\n\ndata: [DONE]\n\n'
    answering(monkeypatch, lambda _: Answer(200, {"content-type": "text/event-stream"}, stream))
    with pytest.raises(ServerFault, match="gone"):
        chat.ask_streamed(SERVER, "?")


def test_arguments_that_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        document = {"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        return b"data: " + json.dumps(document).encode() + b"\n\n"

    def piece(arguments: str, **more: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": 0, "function": {"arguments": arguments, **more}}]}

    stream = [chunk(piece("", name="f")), chunk(piece('{"a"')), chunk(piece(": 1}")), chunk({}, "tool_calls")]
    answering(
        monkeypatch,
        lambda _: Answer(
            200, {"content-type": "text/event-stream; charset=utf-8"}, b"".join(stream) + b"data: [DONE]\n\n"
        ),
    )
    streamed = chat.ask_streamed(SERVER, "?")
    assert streamed.reply.calls == (chat.Call("f", '{"a": 1}'),)
    assert streamed.problems == ["no usage although include_usage asks for it"]
