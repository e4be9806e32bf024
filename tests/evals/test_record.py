"""Eval records as input that nobody vouches for: each fault is named by its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.evals.records import FAILED, document, sample
from truecast.errors import InputError
from truecast.evals.record import parse_record


def test_what_is_read() -> None:
    found = parse_record(document([[sample(True), sample(0.5, truncated=True), sample(None, **FAILED)]]), "e.json")
    problem = found.problems["aime/0"]
    assert [s.correct for s in problem.samples] == [1.0, 0.5]
    assert [s.binary for s in problem.samples] == [True, False]
    assert problem.samples[1].truncated and problem.errors == 1


ONE = [[sample(True)]]
BAD: dict[str, dict[str, Any]] = {
    "schema is not": {"schema": "truecast.bench/1"},
    "task is neither": {"task": 7},
    "settings is no object": {"settings": None},
    "server is no object": {"server": "native"},
    "problems is no list": {"problems": {}},
    "problems[0] is no object": {"problems": ["x"]},
    "problems[0].id is no text": {"problems": [{"id": 3, "samples": [sample(True)]}]},
    "problems[0].cluster is no text": {"problems": [{"id": "p", "cluster": 1, "samples": [sample(True)]}]},
    "problems[0].samples is no list": {"problems": [{"id": "p"}]},
    "problems[0].samples[0] is no object": {"problems": [{"id": "p", "samples": [None]}]},
    "problems[1].id 'p' came before": {"problems": [{"id": "p", "samples": [sample(True)]}] * 2},
    "problems some have a cluster and some have none": {
        "problems": [{"id": "p", "samples": [sample(True)]}, {"id": "q", "cluster": "c", "samples": [sample(True)]}]
    },
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_refused(message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_record(document(ONE, **BAD[message]), "e.json")
    assert str(error.value).startswith(f"e.json: {message}") and "truecast eval" in str(error.value)


@pytest.mark.parametrize("correct", [None, "yes", -0.1, 1.5, 10**400, float("nan"), float("inf"), []])
def test_what_is_no_score(correct: Any) -> None:
    with pytest.raises(InputError, match=r"samples\[0\].correct is neither"):
        parse_record(document([[sample(correct)]]), "e.json")


@pytest.mark.parametrize("flag", ["truncated", "empty"])
def test_what_is_no_flag(flag: str) -> None:
    with pytest.raises(InputError, match=rf"samples\[0\].{flag} is neither true nor false"):
        parse_record(document([[sample(True, **{flag: "length"})]]), "e.json")


ODD = (None, True, 0, -1, 10**400, float("nan"), "", "\ud800", [], [[]], {}, {"id": "p"})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


def test_an_odd_value_anywhere_is_read_or_refused() -> None:
    whole = document([[sample(True), sample(0.5)], [sample(False)]], ["x", "y"])
    refused = 0
    for path in places(whole):
        for odd in ODD if path else ({},):
            try:
                parse_record(replaced(whole, path, odd), "e.json")
            except InputError:
                refused += 1
    assert refused > 150
