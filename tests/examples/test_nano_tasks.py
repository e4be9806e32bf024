"""Dialogues: what they claim is true, held-out contents stay out, the judge accepts them and nothing else."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

pytest.importorskip("tiktoken")

from examples.nano_k3 import dialogue, tasks, vocabulary
from examples.nano_k3.data import Kind, Text, assemble
from examples.nano_k3.judge import Answer, parse, score, wrong
from truecast.models.kimi_k3.tokenizer import K3Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> K3Tokenizer:
    names = {256 + place: spelling for place, spelling in vocabulary.SPECIALS.items()}
    return K3Tokenizer({bytes([b]): b for b in range(256)}, names)


@pytest.mark.parametrize("task", ["add", "multiply"])
@pytest.mark.parametrize("mode", tasks.MODES)
def test_every_equation_that_is_written_holds(task: str, mode: tuple[bool, str | None]) -> None:
    rng = random.Random(1)
    for _ in range(200):
        (answer,) = tasks.TASKS[task](rng, mode).answers
        text = answer["content"] + "\n" + answer.get("reasoning_content", "")
        for equation in re.findall(r"\d+(?: [-+*/=] \d+)+", text):
            values = {eval(side.replace("/", "//")) for side in equation.split(" = ")}
            assert len(values) == 1, equation


def test_training_dialogues_hold_no_held_out_content() -> None:
    rng = random.Random(2)
    for task in tasks.TASKS:
        keys = [tasks.turn(rng, task, tasks.MODES[1], wanted_held_out=False).key for _ in range(300)]
        assert not any(map(tasks.held_out, keys))
        assert sum(tasks.held_out(tasks.TASKS[task](rng, tasks.MODES[1]).key) for _ in range(600)) > 5


def test_items_are_the_same_each_time_and_held_out() -> None:
    first, second = list(dialogue.items(7, each=2)), list(dialogue.items(7, each=2))
    assert first == second
    assert len(first) == 5 * 4 * 2  # three tasks of one stage, one of two; four modes
    assert len({item["id"] for item in first}) == len(first)


def _right_reply(
    rng: random.Random, task: str, mode: tuple[bool, str | None]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Items of a turn, each with the assistant message that answers it."""
    turn = tasks.turn(rng, task, mode, wanted_held_out=True)
    messages: list[dict[str, Any]] = [{"role": "user", "content": turn.user}]
    pairs, stages = [], iter(turn.stages)
    for message in turn.answers:
        if message["role"] == "assistant":
            item = {
                "messages": list(messages), "tools": turn.tools, "thinking": mode[0], "effort": mode[1],
                "expect": next(stages), "id": f"{task}-{mode[1]}-000",
            }  # fmt: skip
            pairs.append((item, message))
        messages.append(message)
    return pairs


@pytest.mark.parametrize("task", list(tasks.TASKS))
@pytest.mark.parametrize("mode", tasks.MODES)
def test_the_judge_accepts_what_training_teaches(
    task: str, mode: tuple[bool, str | None], tokenizer: K3Tokenizer
) -> None:
    rng = random.Random(3)
    for item, message in [pair for _ in range(5) for pair in _right_reply(rng, task, mode)]:
        whole = {**item, "messages": [*item["messages"], message]}
        ids, written = dialogue.encode(tokenizer, whole)
        prompt = dialogue.prompt(tokenizer, item)
        assert ids[: len(prompt)] == prompt
        assert all(written[len(prompt) :])
        assert not any(written[len(prompt) - 3 : len(prompt)])
        answer = parse(tokenizer, ids[len(prompt) :], item["thinking"])
        assert wrong(item, answer) == ""
        assert score([item], [answer])["right"]["all"] == 1


def test_the_judge_refuses_wrong_answers() -> None:
    number = {"thinking": False, "effort": None, "expect": {"kind": "number", "value": 12}}
    call = {"thinking": False, "effort": None, "expect": {"kind": "call", "name": "f", "arguments": {"a": 1}}}
    found = {"thinking": True, "effort": "high", "expect": {"kind": "contains", "values": ["rain"]}}
    assert wrong(number, Answer("5 + 7 = 13", "", []))
    assert wrong(number, Answer("5 + 7 = 12", "let me see", []))
    assert wrong(number, Answer("5 + 7 = 12", "", [], finished=False))
    assert wrong(call, Answer("", "", [("f", '{"a": "1"}')]))
    assert wrong(call, Answer("", "", []))
    assert wrong(found, Answer("rain", "", []))
    assert wrong(found, Answer("snow", "hm", []))
    assert not wrong(found, Answer("It will rain.", "hm", []))


def test_only_what_the_assistant_writes_counts(tokenizer: K3Tokenizer) -> None:
    rng = random.Random(4)
    for _ in range(30):
        drawn = dialogue.draw(rng)
        ids, written = dialogue.encode(tokenizer, drawn)
        spoken = tokenizer.decode([i for i, w in zip(ids, written, strict=True) if w])
        for message in drawn["messages"]:
            if message["role"] == "assistant":
                assert message["content"] in spoken
        assert spoken.count("<|end_of_msg|>") == sum(m["role"] == "assistant" for m in drawn["messages"])
        assert "thinking_effort" not in spoken


def test_rows_of_text_cover_each_piece_once_and_never_two() -> None:
    import numpy as np

    pieces = [np.arange(n, dtype=np.uint16) + 1000 * n for n in (5, 9, 23)]
    text = Text(np.concatenate(pieces), np.array([5, 9, 23], np.uint32), seed=0)
    batches = text.batches(Kind("text", 1, 8, 1.0), pad=7)
    seen: set[int] = set()
    while text.epoch == 0:
        batch = next(batches)
        row = batch.tokens[batch.live]
        assert len({int(t) // 1000 for t in row}) == 1
        assert (batch.targets[batch.live] == row + 1).all()
        if text.epoch == 0:
            seen |= {int(t) for t in batch.targets[batch.counts]}
    assert seen == {int(t) for piece in pieces for t in piece[1:]}


def test_padding_never_counts() -> None:
    batch = assemble(Kind("short", 2, 6, 1.0), [([1, 2, 3], [False, False, True])], pad=9)
    assert batch.tokens.tolist() == [[1, 2, 9, 9, 9, 9], [9] * 6]
    assert batch.targets[batch.counts].tolist() == [3]
    assert batch.live.sum() == 2


def test_no_token_holds_two_digits() -> None:
    pytest.importorskip("tokenizers")
    ranks = vocabulary.learn(["in 1234 and 1234 the end 12 12 12 12 the end"] * 50, ranks=300)
    assert len(ranks) <= 300
    assert not any(len(re.findall(rb"\d", token)) > 1 for token in ranks)
    learned = K3Tokenizer(ranks, {len(ranks) + p: s for p, s in vocabulary.SPECIALS.items()})
    assert learned.decode(learned.encode("the end of 1234, \u00e9\n")) == "the end of 1234, \u00e9\n"
    assert len(learned.encode("the end")) < 5
