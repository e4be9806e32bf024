"""An assertion is read, never run."""

from __future__ import annotations

import ast

import pytest

from truecast.engines.sglang.guard import holds

NAMES = {"activation": "situ", "LIST": ("silu", "gelu")}


def ask(text: str, backend: str = "marlin") -> bool:
    return holds(ast.parse(text, mode="eval").body, NAMES, "backend", backend)


@pytest.mark.parametrize(
    ("text", "on_marlin", "on_trtllm"),
    [
        ("activation in LIST", False, False),
        ("activation not in LIST", True, True),
        ("activation in LIST or (activation == 'situ' and backend.is_trtllm())", False, True),
        ("activation != 'situ' or not backend.is_trtllm()", True, False),
        ("activation in ('silu', 'situ')", True, True),
    ],
)
def test_what_is_understood(text: str, on_marlin: bool, on_trtllm: bool) -> None:
    assert ask(text) is on_marlin
    assert ask(text, "trtllm") is on_trtllm


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true') or activation in LIST",
        "activation in LIST or backend.is_marlin(print('run'))",
        "other.is_marlin()",
        "activation in OTHER",
        "activation in LIST.copy()",
        "activation < 'b'",
        "activation in 'situation'",
        "activation == 'situ' == 'situ'",
    ],
)
def test_anything_else_is_not_run_but_said(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LookupError, match="assertion"):
        ask(text)
    assert capsys.readouterr().out == ""
