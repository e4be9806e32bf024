from __future__ import annotations

import importlib.util
import time

import pytest

pytest.importorskip("math_verify")

from truecast.evals.tasks.boxed import equal, last_boxed

CASES = [
    ("70", "70", True),
    ("70", "070", True),
    ("70", " 70 ", True),
    ("70", "70.", True),
    ("70", "70. ", False),
    ("70", "71", False),
    ("70", "-70", False),
    ("70", "70\\%", True),
    ("70", "\\frac{140}{2}", True),
    ("70", "\\text{70}", True),
    ("70", "7 0", True),
    ("70", "", False),
    ("70", "seventy", False),
    ("\\frac{1}{2}", "0.5", True),
    ("\\frac{1}{2}", "\\dfrac12", True),
    ("\\sqrt{2}+1", "1+\\sqrt{2}", True),
    ("\\sqrt{2}+1", "2.414", False),
    ("(1, 2)", "(2, 1)", False),
    ("\\pi/4", "\\frac{\\pi}{4}", True),
    ("2^{10}", "1024", True),
    ("yes", "no", False),
    ("70", "\uff17\uff10", False),
    ("70", "+70", True),
    ("0", "-0", True),
    ("7", "-007", False),
    ("70", "70.0", True),
    ("70", "70\\text{ cm}", True),
    ("70", "n = 70", True),
    ("70", "70, 5", False),
    ("70", "70 or 5", False),
    ("1000", "1{,}000", True),
    ("70", "\\boxed{70}", True),
    ("\\frac{1}{2}", "\\{\\frac{1}{2}\\}", True),
]


@pytest.mark.parametrize(("wanted", "given", "right"), CASES)
def test_equal(wanted: str, given: str, right: bool) -> None:
    assert equal(wanted, given) is right


@pytest.mark.parametrize(("wanted", "given", "right"), CASES)
def test_the_rules_are_those_of_nemo_skills(wanted: str, given: str, right: bool) -> None:
    if importlib.util.find_spec("sgl_eval") is None:
        pytest.skip("sgl-eval is not installed")
    from sgl_eval._vendored.nemo_skills.math_grader import extract_answer, math_equal

    reply = f"so \\boxed{{{given}}}"
    assert bool(math_equal(wanted, extract_answer(reply))) is right
    assert last_boxed(reply) == extract_answer(reply)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\\boxed{1} then \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{1", None),
        ("\\boxed 1", None),
        ("none", None),
        ("\\boxed{1} but \\boxed{", None),
        ("\\boxed{}", ""),
        ("\\boxed{\\text{a {b} c}} and }", "\\text{a {b} c}"),
        ("\\boxed{1} \\boxed {2}", None),
    ],
)
def test_last_boxed(text: str, found: str | None) -> None:
    assert last_boxed(text) == found


@pytest.mark.parametrize("given", ["9" * 5_000, "1" * 100_000, "x" * 100_000, "1" * 50_000 + "\\%", "(" * 100_000])
def test_a_model_that_repeats_itself_is_wrong_at_once(given: str) -> None:
    began = time.process_time()
    assert not equal("70", given)
    assert equal(given, given)
    assert time.process_time() - began < 2


def test_no_box_is_wrong() -> None:
    assert not equal("1", None)
