"""Numbers as they are written, arguments as JSON has them, and items that cannot be judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truecast.evals.tasks.dialogue_rules import Answer, fault_of, wrong

HELD_OUT = Path(__file__).parents[2] / "examples" / "nano_k3" / "heldout_dialogues.jsonl"


def judged(expect: dict[str, Any], content: str = "", calls: list[tuple[str, str]] | None = None) -> str:
    return wrong({"thinking": False, "effort": None, "expect": expect}, Answer(content, "", calls or []))


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("1,064", 1064),
        ("It is 1,234,567.", 1234567),
        ("3.5", 3.5),
        ("51.", 51),
        ("51.0", 51),
        ("2, 3", 3),
        ("1,2,3", 3),
        ("17-51", 51),
        ("-51", -51),
        ("x = \u221251", -51),
        ("5 + 7 = 12", 12),
    ],
)
def test_the_last_number_is_read_as_it_is_written(said: str, value: float) -> None:
    assert judged({"kind": "number", "value": value}, said) == ""


@pytest.mark.parametrize(
    ("said", "value"), [("1,064", 64), ("3.5", 5), ("17-51", -51), ("no number", 0), ("\u0665", 5)]
)
def test_a_part_of_a_number_is_another_number(said: str, value: float) -> None:
    assert judged({"kind": "number", "value": value}, said).startswith("said ")


def test_a_number_of_any_length_is_read() -> None:
    assert judged({"kind": "number", "value": 1}, "1" + "0" * 5000).startswith("said ")


@given(st.integers(-(10**9), 10**9), st.sampled_from(["{}", "{:,}", "so {}.", "= {:,}!"]))
def test_any_number_is_found(value: int, form: str) -> None:
    assert judged({"kind": "number", "value": value}, form.format(value)) == ""


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ('{"on": true, "level": 1}', True),
        ('{"level": 1.0, "on": true}', True),
        ('{"on": 1, "level": 1}', False),
        ('{"on": true, "level": true}', False),
        ('{"on": true}', False),
        ('{"on": true, "level": 1, "room": null}', False),
        ('{"on": true, "level": "1"}', False),
        ("[" * 100_000, False),
    ],
)
def test_arguments_are_equal_as_json_has_it(given: str, right: bool) -> None:
    expect = {"kind": "call", "name": "set_light", "arguments": {"on": True, "level": 1}}
    assert (judged(expect, calls=[("set_light", given)]) == "") is right


@pytest.mark.parametrize(
    "expect",
    [
        None,
        {"kind": "number"},
        {"kind": "guess", "value": 1},
        {"kind": "number", "value": True},
        {"kind": "number", "value": "5"},
        {"kind": "number", "value": float("nan")},
        {"kind": "text", "value": 5},
        {"kind": "contains", "values": "rain"},
        {"kind": "contains", "values": [5]},
        {"kind": "call", "name": "f", "arguments": "{}"},
    ],
)
def test_what_cannot_be_judged_is_no_item(expect: Any) -> None:
    assert fault_of(expect)


def test_the_held_out_items_can_be_judged() -> None:
    assert not [fault for line in HELD_OUT.read_text().splitlines() if (fault := fault_of(json.loads(line)["expect"]))]
