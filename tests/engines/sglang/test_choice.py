"""What the environment may say: each variable takes what the page lists, and stops the server at anything else."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.engines.sglang.conftest import make_fix
from truecast.engines.sglang import plugin
from truecast.engines.sglang.choice import chosen, seconds, switch
from truecast.engines.sglang.fixes import FIXES
from truecast.engines.sglang.plugin import PREFIXES, VARIABLE
from truecast.errors import UsageError

PARSERS: dict[str, Callable[[str], object]] = {name: parse for fix in FIXES for name, parse in fix.settings.items()}
RIGHT = {
    "SGLANG_EXPERT_LOAD_FILTER": "on|off|0|[1-9][0-9]{0,5}",
    "SGLANG_MARLIN_EP_BLOCK": "auto|off|0|1|8|16|32|48|64",
    "K3_W4_SRC2DST": "count|sort",
    "SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S": r"[0-9]{1,7}(\.[0-9]{1,7})?",
    "TRUECAST_SGLANG_STABLE_ORDER": "0|1",
    "TRUECAST_SGLANG_ATOMIC_ADD": "0|1",
}
"""What the page lists, as patterns of whole values. Times have a range besides."""
ODD = [
    "", " ", "\t", "\n", "0\n", " 1", "1 ", "00", "01", "+1", "-1", "1e3", "0x10", "1_000", "1.", ".5", "nan", "inf", "-0",
    "1" * 400, "9" * 7, "\u0661", "\u00b2", "\uff11", "\ud800", "ON", "Off", "TRUE", "Count", "SORT", "AUTO", "none", "yes",
    "2592000", "2592000.1", "0.0", "16,", "count,sort",
]  # fmt: skip
texts = st.one_of(st.text(), st.from_regex(r"\A[0-9]{1,8}(\.[0-9]+)?\Z"), st.sampled_from(ODD))


def test_each_variable_has_a_pattern() -> None:
    assert set(RIGHT) == set(PARSERS)
    assert all(name.startswith(PREFIXES) for name in (VARIABLE, *PARSERS)), "a variable that is not looked for at start"


@pytest.mark.parametrize("variable", sorted(RIGHT))
@given(text=texts)
@example(text="00")
@example(text="\u0661")
@example(text="1e3")
@example(text="2592000.1")
def test_a_value_is_one_of_those_or_it_is_refused(variable: str, text: str) -> None:
    right = re.fullmatch(RIGHT[variable], text) is not None
    if right and PARSERS[variable] is seconds:
        right = 0 < float(text) <= 30 * 86400
    if right:
        PARSERS[variable](text)
        assert chosen(FIXES, {variable: text}) == {fix.name for fix in FIXES}
        return
    with pytest.raises(ValueError):
        PARSERS[variable](text)
    with pytest.raises(UsageError, match=f"^{variable}=") as error:
        chosen(FIXES, {variable: text})
    assert str(error.value).isascii() and len(str(error.value)) < 800


def test_odd_values_are_refused_by_every_variable() -> None:
    for variable in set(RIGHT) - {"SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S", "SGLANG_EXPERT_LOAD_FILTER"}:
        for text in ODD:
            with pytest.raises(ValueError):
                PARSERS[variable](text)


NAMES = ("one", "two", "three")


@given(
    text=st.one_of(
        texts,
        st.lists(st.sampled_from([*NAMES, "off", "ONE", "", " ", "\u2003one"]), max_size=4).map(",".join),
        st.sampled_from([" one , two ", ",", ",,", "one,", ",one", "off,off", "one;two", "one two", "OFF", "one\n"]),
    )
)
def test_a_choice_is_off_or_names_of_fixes(text: str) -> None:
    fixes = [make_fix(name) for name in NAMES]
    parts = text.split(",")
    if re.fullmatch(" *off *", text):
        assert chosen(fixes, {VARIABLE: text}) == frozenset()
    elif all(re.fullmatch(" *(one|two|three) *", part) for part in parts):
        assert chosen(fixes, {VARIABLE: text}) == {part.strip() for part in parts}
    else:
        with pytest.raises(UsageError, match=f"^{VARIABLE}='") as error:
            chosen(fixes, {VARIABLE: text})
        assert str(error.value).isascii()


def test_without_the_variable_it_is_all_of_them() -> None:
    fixes = [make_fix("one", settings={"ONE_SECONDS": seconds}), make_fix("two", settings={"TWO": switch})]
    assert chosen(fixes, {}) == {"one", "two"}
    for first, second in permutations(["one", "two"]):
        assert chosen(fixes, {VARIABLE: f"{first}, {second}"}) == {"one", "two"}
    with pytest.raises(UsageError, match=r"TWO='2'.*it sets the fix two"):
        chosen(fixes, {VARIABLE: "one", "TWO": "2"})  # also where that fix is left out
    assert chosen(fixes, {VARIABLE: "off", "TWO": "2"}) == frozenset()


@pytest.mark.parametrize("variable, value", [*((name, "") for name in RIGHT), (VARIABLE, ""), (VARIABLE, ",")])
def test_an_empty_value_stops_the_server(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as stop:
        plugin.register()
    assert stop.value.code == 2 and f"{variable}='{value}'" in capsys.readouterr().err
