"""Tasks: data, prompts and rules, without a server."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")

from truecast.errors import InputError, UsageError
from truecast.evals.tasks.choices import letter_of
from truecast.evals.tasks.data import packaged
from truecast.evals.tasks.find import find_task

SGL_EVAL = pytest.mark.skipif(packaged("sgl_eval", "__init__.py") is None, reason="sgl-eval is not installed")
HELD_OUT = Path(__file__).parents[2] / "examples" / "nano_k3" / "heldout_dialogues.jsonl"


@SGL_EVAL
@pytest.mark.parametrize(("task", "name", "count"), [("aime25", "aime25", 30), ("aime", "aime26", 30)])
def test_aime_of_the_package(task: str, name: str, count: int) -> None:
    found = find_task(task)
    assert (found.name, len(found.dataset), found.samples, found.max_tokens) == (name, count, 8, 65536)
    assert all(str(s.target).isdigit() and "\\boxed{}" in s.input[-1].text for s in found.dataset)
    assert found.identity["data"][name]["rows"] == count


@SGL_EVAL
def test_two_contests_as_one_task(tmp_path: Path) -> None:
    (tmp_path / "h.jsonl").write_text(json.dumps({"problem_idx": 1, "problem": "?", "answer": "\\frac{1}{2}"}))
    aime = packaged("sgl_eval", "_vendored/nemo_skills/dataset/aime26/test.txt")
    assert aime is not None
    both = find_task("aime+hmmt", [aime, tmp_path / "h.jsonl"])
    assert (both.name, len(both.dataset)) == ("aime26+hmmt_feb26", 31)
    assert both.dataset[30].id == "hmmt_feb26/1"
    with pytest.raises(InputError, match="1 files for 2 contests"):
        find_task("aime+hmmt", [aime])


@SGL_EVAL
def test_gpqa_is_asked_in_the_order_and_words_of_nemo_skills(tmp_path: Path) -> None:
    keys = ["Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3", "Correct Answer"]
    rows = [{"Question": f"Q{n}?\n", **{key: f"{key} {n}" for key in keys}} for n in range(20)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = find_task("gpqa-diamond", [tmp_path / "q.jsonl"])
    random.seed(42)
    for row, sample in zip(rows, found.dataset, strict=True):
        choices = [row[key] for key in keys]
        random.shuffle(choices)
        listed = "\n".join(f"{letter}) {text}" for letter, text in zip("ABCD", choices, strict=True))
        assert sample.input[-1].text.endswith(f"\n\n{row['Question'].strip()}\n\n{listed}")
        assert choices["ABCD".index(str(sample.target))] == row["Correct Answer"]
    assert {found.sampling(seed)["temperature"] for seed in range(3)} == {0.0, 0.6}


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("Reasons.\nAnswer: C", "C"),
        ("**Answer: b**", "B"),
        ("Answer: **b**", None),
        ("Answer: A, no.\nAnswer: D", "D"),
        ("\\boxed{A}\nAnswer: B", "A"),
        ("The final answer is (C)", "C"),
        ("Answer: Apples", None),
        ("", None),
    ],
)
def test_letter(reply: str, letter: str | None) -> None:
    assert letter_of(reply) == letter


LETTERS = [
    "", " ", "\n", "A", "B", "C", "d", "Answer:", "Answer: ", "**Answer:** ", "The final answer is ", "\\boxed{", "}", "(", "x",
    "\u0628", "\u0985", "\uff24", "_", ".", ":", "\\text{",
]  # fmt: skip


@SGL_EVAL
def test_letters_are_those_of_nemo_skills(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    from sgl_eval._vendored.nemo_skills.evaluator.mcq import eval_mcq

    chosen = random.Random(0)
    replies = ["".join(chosen.choice(LETTERS) for _ in range(chosen.randint(1, 9))) for _ in range(3000)]
    rows = [json.dumps({"generation": reply, "expected_answer": "A"}) for reply in replies]
    (tmp_path / "r.jsonl").write_text("".join(f"{row}\n" for row in rows))
    eval_mcq({"input_file": str(tmp_path / "r.jsonl")})
    theirs = [json.loads(line)["predicted_answer"] for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [letter_of(reply) for reply in replies] == theirs
    assert len(set(theirs)) > 4


def test_ids_from_zero_are_ids(tmp_path: Path) -> None:
    rows = [{"id": n, "problem": "?", "answer": 1} for n in (1, 0)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "p.txt").write_text("{problem}")
    assert [s.id for s in find_task("aime25", [tmp_path / "r.jsonl"], tmp_path / "p.txt").dataset] == [
        "aime25/1",
        "aime25/0",
    ]


@pytest.mark.parametrize(("name", "text"), [("a.csv", 'problem,answer\n"' + "x" * 200_000), ("a.jsonl", "[" * 100_000)])
def test_data_that_python_cannot_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=r"is no CSV|is no JSON object"):
        find_task("aime25", [tmp_path / name])


def test_dialogues_are_the_held_out_ones() -> None:
    found = find_task("dialogues", [HELD_OUT])
    assert (len(found.dataset), found.samples) == (320, 8)
    assert found.dataset[0].metadata is not None
    assert found.dataset[0].metadata["messages"] == json.loads(HELD_OUT.read_text().splitlines()[0])["messages"]


@pytest.mark.parametrize(
    ("task", "row", "words"),
    [
        ("aime25", {"problem": "?"}, "row 1: has no answer or expected_answer"),
        ("aime25", {"problem": "?", "answer": "1/2"}, "'1/2' is no whole number from 0 to 999"),
        ("gpqa-diamond", {"Question": "?"}, "row 1: has no Correct Answer"),
        ("dialogues", {"id": "a", "thinking": True, "messages": [{}], "expect": {"kind": "joke"}}, "expect is none of"),
        ("dialogues", {"id": "a", "thinking": 1, "messages": [], "expect": {"kind": "text", "value": ""}}, "thinking"),
    ],
)
def test_a_row_that_is_not_as_it_must_be(tmp_path: Path, task: str, row: dict[str, object], words: str) -> None:
    (tmp_path / "d.jsonl").write_text(json.dumps(row))
    (tmp_path / "p.txt").write_text("{problem}")
    prompt = None if task == "dialogues" else tmp_path / "p.txt"
    with pytest.raises(InputError) as error:
        find_task(task, [tmp_path / "d.jsonl"], prompt)
    assert words in str(error.value)
    assert "d.jsonl" in str(error.value)


@pytest.mark.parametrize(("content", "words"), [("", "holds no rows"), ("{}\n[1]", "line 2: is no JSON object")])
def test_a_file_that_is_none(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "d.jsonl").write_text(content)
    with pytest.raises(InputError, match=words):
        find_task("dialogues", [tmp_path / "d.jsonl"])


def test_what_cannot_be_had_says_what_a_file_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    (tmp_path / "p.txt").write_text("{problem}")
    for task, words in (("hmmt", '"problem" and "answer"'), ("gpqa-diamond", '"Correct Answer"')):
        with pytest.raises(InputError, match="hub, is not installed") as error:
            find_task(task, (), tmp_path / "p.txt")
        assert words in str(error.value)
    with pytest.raises(InputError, match="no data of its own"):
        find_task("dialogues")


def test_a_prompt_without_a_place_for_the_problem(tmp_path: Path) -> None:
    for text in ("solve it", "{problem} in \\boxed{}"):
        (tmp_path / "p.txt").write_text(text)
        with pytest.raises(InputError, match="no template"):
            find_task("aime", (), tmp_path / "p.txt")


def test_options_that_a_task_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no --arg"):
        find_task("aime", arguments={"x": 1})
    with pytest.raises(UsageError, match="no --prompt"):
        find_task("dialogues", [HELD_OUT], tmp_path)
    with pytest.raises(InputError, match="is no task; truecast's own"):
        find_task("gsm9k")
