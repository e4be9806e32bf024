from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.k3_vocabulary import NAMED, ranks
from truecast.errors import InputError
from truecast.models.kimi_k3.arguments import arguments_of
from truecast.models.kimi_k3.chat import render
from truecast.models.kimi_k3.reply import Content, Event, Reasoning, ReplyParser, ToolCall
from truecast.models.kimi_k3.tokenizer import K3Tokenizer

BASE = len(ranks())
TOKENIZER = K3Tokenizer(ranks(), {BASE + slot: name for slot, name in NAMED.items()})
OPEN, CLOSE, SEP, END = (TOKENIZER.special(s) for s in ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"))
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "a": 1}}}


def shown(*messages: dict[str, Any], **options: Any) -> str:
    return TOKENIZER.decode(render(TOKENIZER, messages, **{"effort": None, "add_generation_prompt": False, **options}))


def ids_of(text: str) -> list[int]:
    """Ids of a text whose markers are meant."""
    ids: list[int] = []
    for piece in text.replace("<|", "\0<|").replace("|>", "|>\0").split("\0"):
        ids += [TOKENIZER.specials[piece]] if piece in TOKENIZER.specials else TOKENIZER.encode(piece)
    return ids


def user(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def test_a_user_message() -> None:
    assert shown(user("hi")) == '<|open|>message role="user"<|sep|>hi<|close|>message<|sep|><|end_of_msg|>'


def test_name_and_escapes() -> None:
    assert shown(user("a & b", name='x"&y')).startswith('<|open|>message role="user" name="x&quot;&amp;y"<|sep|>a & b<')


def test_structure_is_special_ids_and_each_stretch_of_text_is_encoded_by_itself() -> None:
    text = TOKENIZER.encode
    wanted = [OPEN, *text("message"), *text(" role"), *text('="'), *text("user"), *text('"'), SEP]
    wanted += [*text("hi"), CLOSE, *text("message"), SEP, END]
    assert render(TOKENIZER, [user("hi")], effort=None, add_generation_prompt=False) == wanted


@pytest.mark.parametrize(
    ("thinking", "tail"),
    [
        (True, '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'),
        (False, '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'),
    ],
)
def test_the_generation_prompt(thinking: bool, tail: str) -> None:
    assert shown(user("hi"), thinking=thinking, add_generation_prompt=True).endswith(f"<|end_of_msg|>{tail}")


def test_think_is_always_there_while_thinking_and_never_otherwise() -> None:
    answer = {"role": "assistant", "content": "yes"}
    end = "<|open|>response<|sep|>yes<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
    head = '<|open|>message role="assistant"<|sep|>'
    assert shown(answer) == f"{head}<|open|>think<|sep|><|close|>think<|sep|>{end}"
    answer["reasoning_content"] = "why"
    assert shown(answer) == f"{head}<|open|>think<|sep|>why<|close|>think<|sep|>{end}"
    assert shown(answer, thinking=False) == head + end


@pytest.mark.parametrize("effort", ["low", "high", "max"])
def test_effort_comes_after_the_tools_and_before_the_messages(effort: str) -> None:
    text = shown(user("hi"), tools=[ADD], effort=effort)
    tools, said, asked, rest = text.split("<|end_of_msg|>")
    assert tools == (
        '<|open|>message role="system" type="tool-declare"<|sep|># Tools\nHere are the available tools, described in'
        ' JSONSchema.\n\n```json\n[{"function":{"name":"add","parameters":{"a":1,"type":"object"}},"type":"function"}]'
        "\n```<|close|>message<|sep|>"
    )
    assert said == (
        '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how much to think in'
        " your thinking channel (not including the response channel), supported values include `low`, `medium`,"
        f" `high`, and `max`.\nNow the system is invoked with `thinking_effort={effort}`.<|close|>message<|sep|>"
    )
    assert (asked, rest) == ('<|open|>message role="user"<|sep|>hi<|close|>message<|sep|>', "")
    assert "thinking-effort" not in shown(user("hi"), effort=effort, thinking=False)


def test_tool_calls_and_results_in_call_order() -> None:
    arguments = '{"a": 1e2, "s": "x", "f": {"k":[1, 2]}, "n": null, "b": true}'
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}},
        {"id": "c2", "type": "function", "function": {"name": "say", "arguments": "not json"}},
    ]
    text = shown(
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c2", "content": "second"},
        {"role": "tool", "tool_call_id": "c1", "content": "first"},
        thinking=False,
    )
    assert text == (
        '<|open|>message role="assistant"<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>'
        '<|open|>call tool="add" index="1"<|sep|>'
        '<|open|>argument key="a" type="number"<|sep|>1e2<|close|>argument<|sep|>'
        '<|open|>argument key="s" type="string"<|sep|>x<|close|>argument<|sep|>'
        '<|open|>argument key="f" type="object"<|sep|>{"k":[1, 2]}<|close|>argument<|sep|>'
        '<|open|>argument key="n" type="null"<|sep|>null<|close|>argument<|sep|>'
        '<|open|>argument key="b" type="boolean"<|sep|>true<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="say" index="2"<|sep|><|open|>json type="object"<|sep|>not json<|close|>json<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="tool" tool="add" index="1"<|sep|>first<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="tool" tool="say" index="2"<|sep|>second<|close|>message<|sep|><|end_of_msg|>'
    )


def test_trailing_system_messages() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "b": 0, "a": 0}}}
    text = shown(user("hi"), tool_choice="required", response_format=schema)
    assert 'type="tool-choice"<|sep|>The system is invoked with `tool_choice=required`.\nYou MUST call tools in' in text
    assert text.endswith('```json\n{"a":0,"b":0,"type":"object"}\n```<|close|>message<|sep|><|end_of_msg|>')
    assert "MUST NOT call" in shown(user("hi"), tool_choice="none")
    assert shown(user("hi"), tool_choice="auto", response_format={"type": "text"}) == shown(user("hi"))
    assert "response_format=json_object`" in shown(user("hi"), response_format={"type": "json_object"})


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([{"role": "robot", "content": "x"}], {}),
        (["text"], {}),
        ([user(7)], {}),
        ([user([{"type": "image_url", "image_url": {"url": "x"}}])], {}),
        ([{"role": "tool", "content": "x"}], {}),
        ([{"role": "assistant", "tool_calls": [{}]}], {}),
        ([{"role": "assistant", "tool_calls": 7}], {}),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 7}}]}], {}),
        ([user("x")], {"effort": "medium"}),
        ([user("x")], {"tool_choice": "maybe"}),
        ([user("x")], {"response_format": {"type": "xml"}}),
    ],
)
def test_what_the_format_does_not_have_is_an_input_error(messages: Any, options: Any) -> None:
    with pytest.raises(InputError):
        render(TOKENIZER, messages, **options)


@given(st.text() | st.lists(st.sampled_from(list(NAMED.values()))).map("".join))
def test_no_text_poses_as_structure(text: str) -> None:
    call = {"function": {"name": text, "arguments": {text: text}}}
    messages = [user(text, name=text), {"role": "assistant", "content": text, "tool_calls": [call]}]
    plain = [user("x", name="x" if text else ""), {**messages[1], "content": "x"}]
    count = [[i for i in render(TOKENIZER, m, tools=[text]) if i >= BASE] for m in (messages, plain)]
    assert count[0] == count[1]


def parsed(ids: list[int], thinking: bool = True) -> list[Event]:
    parser = ReplyParser(TOKENIZER, thinking=thinking)
    events = [event for i in ids for event in parser.feed(i)]
    return joined(events + parser.finish())


def joined(events: list[Event]) -> list[Event]:
    out: list[Event] = []
    for event in events:
        if out and not isinstance(event, ToolCall) and type(out[-1]) is type(event):
            out[-1] = type(event)(out[-1].text + event.text)  # type: ignore[union-attr]
        else:
            out.append(event)
    return out


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.text(), st.text(), st.lists(st.tuples(st.text(min_size=1), st.dictionaries(st.text(), JSON, max_size=3))),
    st.booleans(),
)  # fmt: skip
def test_what_is_rendered_is_read_back(
    think: str, answer: str, calls: list[tuple[str, dict[str, Any]]], thinking: bool
) -> None:
    message = {
        "role": "assistant",
        "reasoning_content": think,
        "content": answer,
        "tool_calls": [{"function": {"name": n, "arguments": json.dumps(a)}} for n, a in calls],
    }
    prompt = render(TOKENIZER, [], thinking=thinking, effort=None)
    ids = render(TOKENIZER, [message], thinking=thinking, effort=None, add_generation_prompt=False)
    assert ids[: len(prompt)] == prompt
    events = parsed(ids[len(prompt) :], thinking)
    wanted: list[Event] = [Reasoning(think)] if think and thinking else []
    wanted += [Content(answer)] if answer else []
    assert [e for e in events if not isinstance(e, ToolCall)] == wanted
    read = [e for e in events if isinstance(e, ToolCall)]
    assert [(e.index, e.name, json.loads(e.arguments)) for e in read] == [(i, n, a) for i, (n, a) in enumerate(calls)]


def test_literals_are_kept() -> None:
    call = (
        '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="number"<|sep|>1e2<|close|>argument<|sep|>'
    )
    ids = ids_of(f"r<|close|>think<|sep|><|open|>tools<|sep|>{call}<|close|>call<|sep|><|close|>tools<|sep|>")
    assert parsed(ids) == [Reasoning("r"), ToolCall(0, "f", '{"a": 1e2}')]


def test_a_raw_json_block_is_the_arguments() -> None:
    call = '<|open|>call tool="f" index="1"<|sep|><|open|>json type="object"<|sep|>{"a":1}<|close|>json<|sep|>'
    ids = ids_of(f"<|open|>tools<|sep|>{call}<|close|>call<|sep|><|close|>tools<|sep|>")
    assert parsed(ids, thinking=False) == [ToolCall(0, "f", '{"a":1}')]


@pytest.mark.parametrize(
    "call",
    [
        '<|open|>call index="1"<|sep|><|close|>call<|sep|>',  # no name
        '<|open|>call tool="f"<|sep|>text<|close|>call<|sep|>',
        '<|open|>call tool="f"<|sep|><|open|>argument key="a" type="number"<|sep|>one<|close|>argument<|sep|><|close|>call<|sep|>',
        '<|open|>call tool="f"<|sep|><|open|>argument key="a" type="number"<|sep|>NaN<|close|>argument<|sep|><|close|>call<|sep|>',
        '<|open|>call tool="f"<|sep|><|open|>argument type="number"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>',
        '<|open|>call tool="f"<|sep|><|open|>json<|sep|>[1]<|close|>json<|sep|><|close|>call<|sep|>',
        f'<|open|>call tool="f"<|sep|><|open|>json<|sep|>{"[" * 9000}<|close|>json<|sep|><|close|>call<|sep|>',
        '<|open|>call tool="f"<|sep|><|open|>argument key="a"<|sep|>cut off',
        '<|open|>call tool="f"<|sep|><|open|>argument key="a"',
        '<|open|>call tool="f',
    ],
)  # fmt: skip
def test_a_call_that_is_none_is_content(call: str) -> None:
    assert parsed(ids_of(f"r<|close|>think<|sep|><|open|>tools<|sep|>{call}")) == [Reasoning("r"), Content(call)]


def test_an_unclosed_think_ends_where_the_response_opens() -> None:
    assert parsed(ids_of("r<|open|>response<|sep|>a<|end_of_msg|>ignored")) == [Reasoning("r"), Content("a")]


def test_an_unknown_element_is_content() -> None:
    text = '<|open|>poem kind="x"<|sep|>roses<|close|>poem<|sep|>'
    assert parsed(ids_of(text), thinking=False) == [Content(text)]


@given(st.lists(st.integers(0, BASE + 255) | st.sampled_from([OPEN, CLOSE, SEP, *TOKENIZER.encode("call tool")])))
def test_reading_never_raises_and_loses_no_text(ids: list[int]) -> None:
    events = parsed(ids, thinking=False)
    assert all(isinstance(e, Reasoning | Content | ToolCall) for e in events)


PIECES = st.lists(
    st.sampled_from(
        [
            *(
                "<|open|>",
                "<|close|>",
                "<|sep|>",
                "think",
                "response",
                "tools",
                "call",
                ' tool="f"',
                "argument",
                "json",
            ),
            *(' key="k"', ' type="number"', "1", "{}", "x", "message", "é", "<|end_of_msg|>"),
        ]
    ),
    max_size=40,
)


@given(PIECES, st.booleans())
def test_shuffled_markup_never_raises(pieces: list[str], thinking: bool) -> None:
    for event in parsed(ids_of("".join(pieces)), thinking):
        if isinstance(event, ToolCall):
            assert isinstance(json.loads(event.arguments), dict)
        else:
            assert event.text


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_arguments_as_text_and_as_object_agree(arguments: dict[str, Any]) -> None:
    text = json.dumps(arguments, ensure_ascii=False)
    assert arguments_of(text) == arguments_of(arguments)
