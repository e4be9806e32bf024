"""Chat, as the real OpenAI client sees it. What the model says is scripted; a random one would never call a tool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.serve.serving import TOKENIZER, Running, Scripted, running, spoken
from truecast.models.kimi_k3.chat import render

ANSWER = "I think é<|close|>think<|sep|><|open|>response<|sep|>Hello 😀, STOP here<|close|>response<|sep|>"
CALL = (
    '<|open|>tools<|sep|><|open|>call tool="add" index="1"<|sep|><|open|>argument key="a" type="number"<|sep|>1'
    '<|close|>argument<|sep|><|open|>argument key="b" type="string"<|sep|>two<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>"
)
CLOSING = "<|close|>message<|sep|><|end_of_msg|>"
USER: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def talker() -> Iterator[Running]:
    with running(lambda: Scripted(spoken(ANSWER + CLOSING))) as server:
        yield server


@pytest.fixture(scope="module")
def caller() -> Iterator[Running]:
    with running(lambda: Scripted(spoken(ANSWER + CALL + CLOSING))) as server:
        yield server


def ask(server: Running, **options: Any) -> Any:
    return server.client.chat.completions.create(**{"model": "tiny", "messages": USER, "temperature": 0, **options})


def test_channels_and_usage(talker: Running) -> None:
    answer = ask(talker)
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", "Hello 😀, STOP here")
    assert message.reasoning_content == message.reasoning == "I think é"
    assert message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    made = len(spoken(ANSWER + CLOSING))
    prompt = len(render(TOKENIZER, USER))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, made)
    assert answer.usage.total_tokens == prompt + made


def test_streaming_gives_the_same(talker: Running) -> None:
    chunks = list(ask(talker, stream=True, stream_options={"include_usage": True}))
    *body, last = chunks
    assert body[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta for chunk in body]
    assert "".join(d.content or "" for d in deltas) == "Hello 😀, STOP here"
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "I think é"
    assert [c.choices[0].finish_reason for c in body if c.choices[0].finish_reason] == ["stop"]
    assert last.choices == []
    assert last.usage == ask(talker).usage
    assert all(chunk.usage is None for chunk in body)
    assert len(body) > 5, "it came in pieces"


def test_without_include_usage_no_chunk_has_it(talker: Running) -> None:
    assert all(chunk.choices for chunk in ask(talker, stream=True))


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "add"}}])
def test_tool_calls(caller: Running, choice: Any) -> None:
    answer = ask(caller, tools=TOOLS, tool_choice=choice).choices[0]
    (call,) = answer.message.tool_calls
    assert (call.type, call.function.name) == ("function", "add")
    assert json.loads(call.function.arguments) == {"a": 1, "b": "two"}
    assert answer.finish_reason == "tool_calls"
    reply = {"role": "tool", "tool_call_id": call.id, "content": "3"}
    again = [*USER, answer.message.model_dump(exclude_none=True), reply]
    assert ask(caller, messages=again, tools=TOOLS).choices[0].finish_reason == "tool_calls"


def test_tool_calls_while_streaming(caller: Running) -> None:
    chunks = list(ask(caller, tools=TOOLS, stream=True))
    calls = [call for c in chunks for call in c.choices[0].delta.tool_calls or ()]
    assert [(c.index, c.function.name) for c in calls] == [(0, "add")]
    assert json.loads(calls[0].function.arguments) == {"a": 1, "b": "two"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_length_ends_it_and_an_unfinished_call_is_content(caller: Running) -> None:
    limit = len(spoken(ANSWER + CALL)) - 8
    answer = ask(caller, tools=TOOLS, max_completion_tokens=limit).choices[0]
    assert answer.finish_reason == "length"
    assert answer.message.tool_calls is None
    assert '<|open|>call tool="add" index="1"<|sep|>' in answer.message.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("stop", "thought", "shown"), [
    ("STOP", "I think é", "Hello 😀, "), (["zzz", "lo 😀"], "I think é", "Hel"), (["think"], "I ", ""),
])  # fmt: skip
def test_stop_strings(talker: Running, stream: bool, stop: Any, thought: str, shown: str) -> None:
    answer = ask(talker, stop=stop, stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        reasoning = "".join(getattr(c.delta, "reasoning_content", None) or "" for c in choices)
        content, reason = "".join(c.delta.content or "" for c in choices), choices[-1].finish_reason
    else:
        message = answer.choices[0].message
        reasoning, content, reason = message.reasoning_content, message.content, answer.choices[0].finish_reason
    assert (reasoning, content, reason) == (thought, shown, "stop")
    assert talker.idle_within(5)


def test_logprobs_name_every_token(talker: Running) -> None:
    answer = ask(talker, logprobs=True, top_logprobs=3, extra_body={"return_token_ids": True})
    entries = answer.choices[0].logprobs.content
    ids = spoken(ANSWER + CLOSING)
    assert answer.choices[0].token_ids == ids
    assert answer.prompt_token_ids == answer.choices[0].prompt_token_ids == render(TOKENIZER, USER)
    assert [bytes(e.bytes) for e in entries] == [TOKENIZER.token_bytes(i) for i in ids]
    assert all(e.logprob == pytest.approx(0, abs=1e-6) for e in entries)
    assert all(len(e.top_logprobs) == 3 and e.top_logprobs[0].token == e.token for e in entries)
    streamed = [c for c in ask(talker, logprobs=True, stream=True, extra_body={"return_token_ids": True}) if c.choices]
    assert [i for c in streamed for i in getattr(c.choices[0], "token_ids", None) or ()] == ids
    assert sum(len(c.choices[0].logprobs.content) for c in streamed if c.choices[0].logprobs) == len(ids)


def test_several_choices(talker: Running) -> None:
    answer = ask(talker, n=3)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert {c.message.content for c in answer.choices} == {"Hello 😀, STOP here"}


def prompt(server: Running, **options: Any) -> Any:
    return ask(server, max_tokens=1, extra_body={"return_token_ids": True, **options}).prompt_token_ids


def test_effort_and_thinking_reach_the_prompt(talker: Running) -> None:
    assert prompt(talker) == render(TOKENIZER, USER, effort="max")
    assert prompt(talker, reasoning_effort="low") == render(TOKENIZER, USER, effort="low")
    for options in ({"thinking": False}, {"enable_thinking": False}):
        assert prompt(talker, chat_template_kwargs=options) == render(TOKENIZER, USER, thinking=False)
    form = {"type": "json_object"}
    assert prompt(talker, response_format=form) == render(TOKENIZER, USER, response_format=form)
    assert prompt(talker, tools=TOOLS, tool_choice="none") == render(TOKENIZER, USER, TOOLS, tool_choice="none")


def test_without_thinking_the_answer_begins_as_content() -> None:
    with running(lambda: Scripted(spoken("Hi<|close|>response<|sep|>" + CLOSING))) as server:
        message = ask(server, extra_body={"chat_template_kwargs": {"thinking": False}}).choices[0].message
    assert (message.content, message.reasoning_content) == ("Hi", None)


@pytest.mark.parametrize("options", [
    {"reasoning_effort": "medium"}, {"reasoning_effort": "minimal"}, {"tool_choice": "required"}, {"top_logprobs": 2},
    {"max_tokens": 10_000}, {"max_tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"n": 0}, {"frequency_penalty": 1},
    {"messages": []}, {"messages": [{"role": "robot", "content": "x"}]}, {"stream_options": {"include_usage": True}},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, {"stop": ""},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
])  # fmt: skip
def test_bad_requests(talker: Running, options: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(talker, **options)
    assert caught.value.body["message"]  # type: ignore[index]
    with pytest.raises(openai.BadRequestError):
        ask(talker, **{"stream": True, **options} if "stream_options" not in options else {"messages": [], **options})


def test_a_prompt_longer_than_the_context(talker: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1500") as caught:
        ask(talker, messages=[{"role": "user", "content": "x" * 2000}])
    assert caught.value.code == "context_length_exceeded"


def test_another_model_is_not_found(talker: Running) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        ask(talker, model="gpt")
    assert caught.value.code == "model_not_found"
    assert [m.id for m in talker.client.models.list()] == ["tiny"]
    assert talker.client.models.retrieve("tiny").id == "tiny"
