from __future__ import annotations

import importlib.util

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
    ],
)
def test_last_boxed(text: str, found: str | None) -> None:
    assert last_boxed(text) == found


def test_no_box_is_wrong() -> None:
    assert not equal("1", None)
