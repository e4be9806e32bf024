"""What ``truecast eval`` prints of a record."""

from __future__ import annotations

import pytest
from rich.console import Console

from truecast.cli.eval import _render
from truecast.evals.scores import scores


@pytest.mark.parametrize(
    ("engine", "version", "said"),
    [("sglang", "0.5.20", "sglang 0.5.20"), ("sglang", None, "sglang"), ("unknown", None, "engine not named")],
)
def test_the_engine_in_words(engine: str, version: str | None, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"correct": True, "truncated": False, "empty": False, "error": None, "tokens": 9, "most": 9, "seed": 0}
    record = {
        "task": {"name": "aime"},
        "server": {"model": "k3", "engine": engine, "version": version},
        "scores": scores([{"id": "a", "samples": [answer]}], 10),
    }
    _render(Console(width=200), [record])
    assert f"aime  k3 ({said})\n" in capsys.readouterr().out
