"""Runs against a real HTTP server that answers as each test says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai")

from tests.conftest import Outcome
from tests.evals.answering import Reply, answering
from tests.process import Process
from truecast.evals.record import parse_record

Cli = Callable[..., Outcome]
pytestmark = pytest.mark.filterwarnings("ignore")  # inspect-ai and what it stands on warn
TEMPLATE = "Q: {problem} Box it."


@pytest.fixture
def sums(tmp_path: Path) -> list[object]:
    """Options of a contest of four sums."""
    rows = [{"id": n, "problem": f"{n}+1", "answer": str(n + 1)} for n in range(1, 5)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "prompt.txt").write_text(TEMPLATE)
    return [
        *("--task", "aime25", "--data", tmp_path / "sums.jsonl", "--prompt", tmp_path / "prompt.txt"),
        *("--out", tmp_path / "out", "--samples", 2, "--max-tokens", 50, "--json"),
    ]


def number(request: dict[str, Any]) -> int:
    return int(request["messages"][-1]["content"].removeprefix("Q: ").partition("+")[0])


def right(request: dict[str, Any]) -> Reply:
    return Reply(f"It is \\boxed{{{number(request) + 1}}}.", reasoning="hm")


def test_scores_what_came_and_counts_errors_apart(cli: Cli, sums: list[object], tmp_path: Path) -> None:
    def says(request: dict[str, Any]) -> Reply:
        match number(request), request["seed"]:
            case 2, 1:
                return Reply("", "length", 50, reasoning="endless")
            case 3, _:
                return Reply("\\boxed{7}")
            case 4, 0:
                return Reply("no such thing", status=404)
            case 4, 1:
                return Reply("\\boxed{5}", finish="abort")
        return right(request)

    with answering(says) as server:
        outcome = cli("eval", server.url, *sums)
    assert outcome.code == 1, outcome.err
    record = outcome.json
    assert record == json.loads((tmp_path / "out/aime25/eval.json").read_bytes())
    parsed = parse_record(record, "here")
    assert [len(p.samples) for p in parsed.problems.values()] == [2, 2, 2, 0]
    found = record["scores"]
    assert found["score"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert found["bounds"] == [pytest.approx(0.5), pytest.approx(2 / 3)]
    assert (found["errors"], found["answers"], found["truncated"], found["empty"]) == (2, 6, 1 / 6, 1 / 6)
    assert (found["tokens"]["max"], found["tokens"]["budget"]) == (50, 50)
    errors = [s["error"] for s in record["problems"][3]["samples"]]
    assert "no such thing" in errors[0]
    assert "finish_reason" in errors[1]
    assert record["server"] | {"arguments": {}} == {
        "engine": "vllm", "version": "0.1", "model": "toy", "arguments": {}, "max_total_tokens": None
    }  # fmt: skip


def test_it_goes_on_where_it_was_and_asks_errors_again(cli: Cli, sums: list[object], tmp_path: Path) -> None:
    down = {3, 4}
    with answering(lambda r: Reply("busy", status=400) if number(r) in down else right(r)) as server:
        assert cli("eval", server.url, *sums).code == 1
        before = len(server.asked)
        down.clear()
        again = cli("eval", server.url, *sums)
        assert again.code == 0
        assert sorted(number(r) for r in server.asked[before:]) == [3, 3, 4, 4]
        with (tmp_path / "out/aime25/answers.jsonl").open("a") as file:
            file.write('{"sample": "torn')
        before = len(server.asked)
        assert cli("eval", server.url, *sums).json["problems"] == again.json["problems"]
        assert len(server.asked) == before
        other = cli("eval", server.url, *sums, "--max-tokens", 60)
    assert other.code == 3
    assert "holds answers of a run with another settings.max_tokens; give another --out" in other.err


DAMAGED = {
    "deep": b"[" * 100_000,
    "text for a share": b'{"sample": "1", "seed": 0, "answers": [{"problem": "1", "correct": "yes", "truncated": false,'
    b' "empty": false, "tokens": 3, "most": 3}]}',
    "no list": b'{"sample": "1", "seed": 0, "answers": 7}',
    "null": b"null",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_answers_that_somebody_edited(cli: Cli, sums: list[object], tmp_path: Path, name: str) -> None:
    with answering(right) as server:
        assert cli("eval", server.url, *sums).code == 0
        with (tmp_path / "out/aime25/answers.jsonl").open("ab") as file:
            file.write(DAMAGED[name] + b"\n")
        outcome = cli("eval", server.url, *sums)
    assert outcome.code == 2 and "is no answer; remove it" in outcome.err


def test_half_a_character_ends_no_run(cli: Cli, sums: list[object], tmp_path: Path) -> None:
    with answering(lambda request: replace(right(request), content="\ud800 " + right(request).content)) as server:
        outcome = cli("eval", server.url, *sums)
        assert outcome.code == 0, outcome.err
        assert outcome.json == cli("eval", server.url, *sums).json | {k: outcome.json[k] for k in ("date", "command")}


def test_a_model_that_changes_under_way_is_told(cli: Cli, sums: list[object], tmp_path: Path) -> None:
    with answering(lambda request: replace(right(request), model="toy" if number(request) < 3 else "other")) as server:
        outcome = cli("eval", server.url, *sums)
    said = "the replies name 2 models: other, toy: what was measured is a mixture"
    assert said in outcome.json["scores"]["warnings"]


def test_what_is_sent(cli: Cli, tmp_path: Path) -> None:
    names = ["Question", "Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3))]
    lines = [",".join(names), *(f"What is {n}?,r{n},x{n},y{n},z{n}" for n in range(3))]
    (tmp_path / "q.csv").write_text("\n".join(lines))
    (tmp_path / "p.txt").write_text("{problem}\nEnd with Answer: LETTER")

    def says(request: dict[str, Any]) -> Reply:
        choices = request["messages"][0]["content"].splitlines()
        letter = next(line[0] for line in choices if line[1:4] == ") r")
        return Reply(f"Answer: {letter}")

    with answering(says) as server:
        options = (
            "--data",
            tmp_path / "q.csv",
            "--prompt",
            tmp_path / "p.txt",
            "--out",
            tmp_path / "out",
            "--samples",
            3,
        )
        outcome = cli("eval", server.url, "--task", "gpqa-diamond", *options, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["scores"]["score"] == 1
    sent = {(r["seed"], r["temperature"], r.get("top_p"), r["max_tokens"]) for r in server.asked}
    assert sent == {(0, 0.0, None, 65536), (1, 0.6, 0.95, 65536), (2, 0.6, 0.95, 65536)}
    assert outcome.json["settings"]["sampling"] == [
        {"seeds": "0", "temperature": 0.0}, {"seeds": "1-2", "temperature": 0.6, "top_p": 0.95}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply("wrong key", status=401), "wrong key"),
        (Reply("Input is longer than the context of 100 tokens", status=400), "longer than the context of 100"),
    ],
)
def test_nothing_answered_is_bad_input(cli: Cli, sums: list[object], tmp_path: Path, reply: Reply, words: str) -> None:
    with answering(lambda request: reply) as server:
        outcome = cli("eval", server.url, *sums)
    assert outcome.code == 2
    assert "nothing was answered: " in outcome.err
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "out/aime25/eval.json").exists()


def test_no_usage(cli: Cli, sums: list[object]) -> None:
    with answering(lambda request: Reply("\\boxed{2}", usage=None)) as server:
        outcome = cli("eval", server.url, *sums)
    assert outcome.code == 0
    assert outcome.json["scores"]["tokens"] is None
    assert any("reports no usage" in w for w in outcome.json["scores"]["warnings"])


def test_a_server_that_is_not_there(cli: Cli, sums: list[object], tmp_path: Path) -> None:
    outcome = cli("eval", "http://127.0.0.1:9", *sums)
    assert outcome.code == 2
    assert "127.0.0.1:9" in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_task_of_inspect_by_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from inspect_ai import Task, task\nfrom inspect_ai.dataset import Sample\nfrom inspect_ai.scorer import match\n"
        "@task\ndef mine(word='hi'):\n"
        "    return Task(dataset=[Sample(input=word, target='yes'), Sample(input='b', target='no')], scorer=match())\n"
    )
    with answering(lambda request: Reply("yes")) as server:
        outcome = cli(
            "eval", server.url, "--task", tmp_path / "mine.py", "--arg", "word=ho", "--out", tmp_path / "out", "--json"
        )
    assert outcome.code == 0, outcome.err
    assert outcome.json["scores"]["score"] == 0.5
    assert outcome.json["task"]["arguments"] == {"word": "ho"}
    assert {r["messages"][0]["content"] for r in server.asked} == {"ho", "b"}


PARTS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import solver

@solver
def twice():
    async def solve(state, generate):
        state = await generate(state)
        return await generate(state)
    return solve

@scorer(metrics=[mean()])
def each():
    async def score(state, target):
        return Score(value={f"{state.sample_id}.1": 1.0, f"{state.sample_id}.2": 0.0})
    return score

@task
def parts():
    return Task(dataset=[Sample(input="a", id="A"), Sample(input="b", id="B")], solver=twice(), scorer=each())
"""


def test_parts_of_a_sample_are_problems_of_its_cluster(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)

    def says(request: dict[str, Any]) -> Reply:
        return Reply("ok") if len(request["messages"]) == 1 else Reply("", "length", 77)

    with answering(says) as server:
        outcome = cli("eval", server.url, "--task", tmp_path / "parts.py@parts", "--out", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.err
    record = outcome.json
    assert [(p["id"], p["cluster"]) for p in record["problems"]] == [
        ("A.1", "A"),
        ("A.2", "A"),
        ("B.1", "B"),
        ("B.2", "B"),
    ]
    assert [p["samples"][0]["truncated"] for p in record["problems"]] == [False, True, False, True]
    assert (record["scores"]["clusters"], record["scores"]["score"], record["scores"]["truncated"]) == (2, 0.5, 0.5)


def test_a_prompt_longer_than_the_context_is_an_error_not_a_wrong_answer(cli: Cli, sums: list[object]) -> None:
    long = Reply("too long for me", status=400, code="context_length_exceeded")
    with answering(lambda request: long if number(request) == 2 else right(request)) as server:
        outcome = cli("eval", server.url, *sums)
    assert outcome.code == 1
    assert outcome.json["scores"]["score"] == 1
    assert "does not fit: too long for me" in outcome.json["problems"][1]["samples"][0]["error"]


NO_ANSWERS = {
    "the connection ends in the middle": (Reply("\\boxed{1}", breaks=True), "onnection"),
    "no finish_reason": (Reply("\\boxed{1}", finish=None), "finish_reason"),
    "no choices": (
        Reply(body=b'{"id": "x", "object": "chat.completion", "model": "toy", "choices": []}'),
        "cannot be read or scored",
    ),
    "not JSON": (Reply(body=b"<html>gateway</html>"), ""),
    "null": (Reply(body=b"null"), ""),
    "a refusal that inspect takes for an answer": (
        Reply("\\boxed{1} is blocked", status=400, code="x"),
        "a filter of the server ended it: \\boxed{1} is blocked",
    ),
    "a filter": (Reply("\\boxed{1}", finish="content_filter"), "a filter of the server ended it"),
    "forbidden": (Reply("not for you", status=403), "not for you"),
    "too large": (Reply("too large", status=413), "too large"),
    "rate": (Reply("slow down", status=429), "slow down"),
}


def test_what_is_no_answer_is_an_error_and_never_wrong(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("truecast.evals.running.RETRIES", 0)
    faults = list(NO_ANSWERS.values())
    rows = [{"id": n, "problem": f"{n}+1", "answer": str(n + 1)} for n in range(len(faults) + 2)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "prompt.txt").write_text(TEMPLATE)
    with answering(lambda r: faults[number(r)][0] if number(r) < len(faults) else right(r)) as server:
        outcome = cli(
            *("eval", server.url, "--task", "aime25", "--data", tmp_path / "rows.jsonl", "--samples", 1, "--json"),
            *("--prompt", tmp_path / "prompt.txt", "--out", tmp_path / "out"),
        )
    assert outcome.code == 1, outcome.err
    found = outcome.json
    errors = [p["samples"][0]["error"] for p in found["problems"]]
    for (name, (_, words)), error in zip(NO_ANSWERS.items(), errors, strict=False):
        assert error is not None and words in error, (name, error)
    assert errors[len(faults) :] == [None, None]
    assert (found["scores"]["score"], found["scores"]["answers"], found["scores"]["errors"]) == (1, 2, len(faults))


def test_reasoning_is_no_answer_and_calls_are_not_carried_out(cli: Cli, sums: list[object]) -> None:
    def says(request: dict[str, Any]) -> Reply:
        return {
            1: Reply("", reasoning="\\boxed{2}"),
            2: Reply("<think>so \\boxed{3}</think>"),
            3: Reply("<think>no \\boxed{7}</think> \\boxed{4}"),
            4: Reply("", "tool_calls", calls=("python",)),
        }[number(request)]

    with answering(says) as server:
        outcome = cli("eval", server.url, *sums)
    assert outcome.code == 0, outcome.err
    assert len(server.asked) == 8
    first = [p["samples"][0] for p in outcome.json["problems"]]
    assert [(s["correct"], s["empty"]) for s in first] == [(0, True), (0, True), (1, False), (0, False)]


def test_a_call_stands_in_the_record(cli: Cli, tmp_path: Path) -> None:
    item = {"id": "a", "messages": [{"role": "user", "content": "Now."}], "tools": None, "thinking": False}
    item |= {"effort": None, "expect": {"kind": "call", "name": "go", "arguments": {}}}
    data = tmp_path / "items.jsonl"
    data.write_text(json.dumps(item) + "\n")
    with answering(lambda request: Reply("So:", "tool_calls", calls=("go",))) as server:
        outcome = cli(
            "eval",
            server.url,
            "--task",
            "dialogues",
            "--data",
            data,
            "--samples",
            1,
            "--out",
            tmp_path / "out",
            "--json",
        )
    assert outcome.code == 0, outcome.err
    answer = outcome.json["problems"][0]["samples"][0]
    assert (answer["correct"], answer["empty"], answer["answer"]) == (1, False, "So:\ngo({})"), (
        "who reads it can judge it"
    )


def test_a_server_that_goes_away_is_not_asked_on(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truecast.evals.running.RETRIES", 0)
    rows = [{"problem": f"{n}+1", "answer": str(n + 1)} for n in range(24)]
    (tmp_path / "many.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "prompt.txt").write_text(TEMPLATE)
    with answering(lambda request: right(request) if number(request) < 5 else Reply("gone", status=503)) as server:
        outcome = cli(
            *("eval", server.url, "--task", "aime25", "--data", tmp_path / "many.jsonl", "--samples", 1, "--json"),
            *("--prompt", tmp_path / "prompt.txt", "--out", tmp_path / "out", "--concurrency", 1),
        )
    assert outcome.code == 1
    errors = [s["error"] for p in outcome.json["problems"] for s in p["samples"] if s["error"]]
    assert len(errors) == 19
    assert any("not asked" in error for error in errors)
    assert len(server.asked) < 18


def test_an_end_in_the_middle_changes_nothing(
    cli: Cli, sums: list[object], tmp_path: Path, command: Callable[..., list[str]], environment: dict[str, str]
) -> None:
    kept, stops = tmp_path / "out/aime25/answers.jsonl", [0]

    def lines() -> list[bytes]:
        return kept.read_bytes().splitlines() if kept.exists() else []

    with answering(lambda request: Reply()) as server:

        def says(request: dict[str, Any]) -> Reply:
            time.sleep(0.1)
            if len(server.asked) == stops[0]:
                os.kill(os.getpid(), signal.SIGINT)
            return right(request) if number(request) < 4 else Reply("", "length", 50)

        server.says = says
        with Process(
            command("eval", server.url, *sums, "--concurrency", 1), env=environment, stdout=subprocess.DEVNULL
        ) as process:
            while not lines() and process.poll() is None:
                time.sleep(0.02)
            process.kill()
        killed = lines()
        assert 0 < len(killed) < 5
        stops[0] = len(server.asked) + 3
        assert cli("eval", server.url, *sums, "--concurrency", 1).code == 130
        interrupted = lines()
        assert interrupted[:1] == killed
        asked = len(server.asked)
        after = cli("eval", server.url, *sums)
        again = len(server.asked) - asked
        whole = cli("eval", server.url, *sums, "--out", tmp_path / "whole")
    assert len(killed) < len(interrupted) < 8
    assert again == 8 - len(interrupted)
    assert lines()[: len(interrupted)] == interrupted
    differ = {key for key, value in whole.json.items() if after.json[key] != value}
    assert differ <= {"date", "command"}
