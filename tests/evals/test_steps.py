"""SciCode step by step: a small problem of four steps, its programs run by Python itself, in inspect's local sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai")

from tests.evals.answering import Reply, answering
from truecast.errors import InputError
from truecast.evals.evaluate import Choices, evaluate
from truecast.evals.running import Server
from truecast.evals.tasks.other import other
from truecast.evals.tasks.prompt import prompt_of
from truecast.evals.tasks.steps import FIELDS, in_steps, script

pytestmark = pytest.mark.filterwarnings("ignore")
TASK = """
import re
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import generate
from inspect_ai.util import sandbox

def step(number, name, value):
    return {"step_number": number, "step_description_prompt": f"Write {name}.", "step_background": f"About {name}.",
            "function_header": f"def {name}():", "return_line": "    return x", "test_cases": [f"assert {name}() == {value}"]}

STEPS = [step("13.5", "a", "2.0"), step("13.6", "b", 3), step("13.7", "c", 5), step("13.8", "d", 0)]

@scorer(metrics=[mean()])
def passed():
    async def score(state, target):
        said = [m.text for m in state.messages if m.role == "assistant"]
        codes = [re.search("```python\\n(.*)```", text, re.DOTALL)[1] for text in said]
        value = {}
        for at, step in enumerate(state.metadata["sub_steps"]):
            program = "\\n".join([state.metadata["required_dependencies"], *codes[: at + 1], *step["test_cases"]])
            done = await sandbox().exec(["python3", "-c", program])
            value[step["step_number"]] = float(done.success)
        return Score(value=value)
    return score

@task
def small():
    data = [Sample(id="13", input="13", metadata={"sub_steps": STEPS, "required_dependencies": "import math"})]
    return Task(dataset=data, solver=generate(), scorer=passed(), sandbox="local")
"""
YAML = """
system: ""
user: |-
  Earlier:
  {problem_steps_str}
  Now:
  {next_step_str}
  With {dependencies}, in {{braces}}
"""
FIRST = """Earlier:

Now:
Write a.
About a.

def a():

    return x
With import math, in {braces}"""
THIRD = """Earlier:
Write a.
About a.


def a():
    return math.sqrt(4)


------

Write b.
About b.

def b():
    return 3
Now:
Write c.
About c.

def c():

    return x
With import math, in {braces}"""


def says(request: dict[str, Any]) -> Reply:
    step = request["messages"][-1]["content"].partition("Now:\nWrite ")[2][0]
    return {
        "a": Reply("So:\n```python\nimport math\ndef a():\n    return math.sqrt(4)\n```\nand ```python\na()```"),
        "c": Reply("```\ndef c():\n    return int(a()) + b()\n```"),
        "d": Reply("```python\ndef d():\n    return 0", "length", 50),
    }[step]


def test_each_step_is_asked_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.py").write_text(TASK)
    (tmp_path / "p.yaml").write_text(YAML)
    (tmp_path / "13.6.txt").write_text("class K:\n    def b():\n        return 3  # given\n")
    monkeypatch.setattr("truecast.evals.tasks.steps.packaged", lambda package, inner: tmp_path / Path(inner).name)
    definition = in_steps(other(f"{tmp_path / 'small.py'}@small", {}), prompt_of("x", tmp_path / "p.yaml", FIELDS))
    with answering(says) as server:
        found = evaluate(
            definition,
            Server(f"{server.url}/v1", "toy"),
            Choices(max_tokens=50),
            tmp_path / "out",
            {"model": "toy"},
            {},
        )
    sent = [[(m["role"], m["content"]) for m in request["messages"]] for request in server.asked]
    assert [len(messages) for messages in sent] == [2, 2, 2]
    assert sent[0] == [("system", ""), ("user", FIRST)]
    assert sent[1][1] == ("user", THIRD)
    assert {(request["seed"], request["max_tokens"]) for request in server.asked} == {(0, 50)}
    problems = {p["id"]: (p["cluster"], p["samples"][0]) for p in found["problems"]}
    assert list(problems) == ["13.5", "13.7", "13.8"]
    assert [(c, s["correct"], s["truncated"]) for c, s in problems.values()] == [
        ("13", 1.0, False),
        ("13", 1.0, False),
        ("13", 1.0, True),
    ]
    assert (found["scores"]["score"], found["scores"]["clusters"]) == (1, 1)


def test_a_given_step_without_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.py").write_text(TASK)
    (tmp_path / "p.yaml").write_text(YAML)
    monkeypatch.setattr("truecast.evals.tasks.steps.packaged", lambda package, inner: None)
    with pytest.raises(InputError, match=r"step 13\.6 of SciCode.*nvidia-scicode"):
        in_steps(other(f"{tmp_path / 'small.py'}@small", {}), prompt_of("x", tmp_path / "p.yaml", FIELDS))


@pytest.mark.parametrize("lacking", FIELDS)
def test_a_prompt_without_one_of_its_places(tmp_path: Path, lacking: str) -> None:
    (tmp_path / "p.txt").write_text(" ".join(f"{{{field}}}" for field in FIELDS if field != lacking))
    with pytest.raises(InputError, match=f"no template with .*{{{lacking}}}"):
        prompt_of("x", tmp_path / "p.txt", FIELDS)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("x = 1", "x = 1"),
        ("```python\nx = 1\n```\n```python\ny = 2\n```", "\nx = 1\n"),
        ("```\nx = 1\n``` then ```python\ny = 2\n```", "\ny = 2\n"),
        ("```python\nimport numpy as np\nfrom a.b import c, d\nx = 1\n```", "\n\nx = 1\n"),
        ("```python\ndef f():\n    import numpy\n    return importance", "\ndef f():\n\n    return importance"),
        ("```\ncut off", "\ncut off"),
        ("", ""),
    ],
)
def test_script(reply: str, code: str) -> None:
    assert script(reply) == code
