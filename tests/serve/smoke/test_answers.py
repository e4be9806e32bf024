"""An answer that is so short that a budget of eight tokens holds its thinking, or all of it."""

from __future__ import annotations

import pytest

from truecast.serve.smoke import answers
from truecast.serve.smoke.answers import truncation
from truecast.serve.smoke.chat import Reply
from truecast.serve.smoke.http import Server

SHORT = Reply("51", "17*3", (), "stop", 5, 7, 12)
LONG = Reply("It is 51, I think.", "17*3", (), "stop", 5, 20, 25)


@pytest.mark.parametrize(
    ("whole", "cut", "status"),
    [
        (SHORT, SHORT, "PASS"),
        (LONG, Reply("It is", "17*3", (), "length", 5, 8, 13), "PASS"),
        (LONG, Reply("17*3", "", (), "length", 5, 8, 13), "FAIL"),
        (LONG, Reply("17*3", "17*3", (), "length", 5, 8, 13), "FAIL"),
        (LONG, Reply("It is", "", (), "length", 5, 8, 13), "FAIL"),
        (LONG, Reply("It is</think>", "17*3", (), "length", 5, 8, 13), "FAIL"),
    ],
    ids=["whole", "begun", "thinking", "both", "no thinking", "marker"],
)
def test_thinking_that_ends_within_the_cut(
    whole: Reply, cut: Reply, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "ask", lambda *_, **__: cut)
    found = truncation(Server("http://127.0.0.1:1", seconds=1), whole)
    assert found.status == status
    assert ("unfinished thinking" in found.evidence) == (status == "FAIL")
