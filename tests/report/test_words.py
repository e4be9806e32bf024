"""Numbers for people."""

from __future__ import annotations

import pytest

from truecast.report.words import figure, percent, points, points_up, upward


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (0.00889572, "0.00890"),
        (12.34, "12.3"),
        (1234.5, "1,234"),
        (-0.5, "-0.500"),
        (1.234e-5, "1.23e-05"),
        (2e7, "2.00e+07"),
    ],
)
def test_three_digits(number: float, words: str) -> None:
    assert figure(number) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0, "0%"),
        (1, "100%"),
        (0.0043, "0.430%"),
        (0.9642, "96.4%"),
        (0.99973, "99.973%"),
        (0.999999999, "99.9999999%"),
        (9e-10, "< 0.001%"),
        (1.5e-5, "0.00150%"),
    ],
)
def test_shares_near_all_keep_what_is_missing(share: float, words: str) -> None:
    assert percent(share) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (1.2864, "1.29"),
        (1.28, "1.28"),
        (9.991, "10.0"),
        (0.0061044, "0.00611"),
        (1234.5, "1,235"),
        (1.231e-5, "1.24e-05"),
    ],
)
def test_what_is_claimed_of_all_above_is_rounded_up(number: float, words: str) -> None:
    assert upward(number) == words


@pytest.mark.parametrize(("share", "words"), [(0.0061044, "0.7"), (0.006, "0.6"), (0.0000123, "0.00123"), (0, "0")])
def test_points_are_rounded_up(share: float, words: str) -> None:
    assert points_up(share) == words


@pytest.mark.parametrize(
    ("share", "signed"),
    [(0.0, "+0.0"), (0.00610442, "+0.6"), (0.0004, "+0.040"), (0.00000123, "+0.00012"), (1.0, "+100.0")],
)
def test_points_do_not_round_to_nothing(share: float, signed: str) -> None:
    assert points(share) == signed
    assert points(-share) == (signed.replace("+", "-") if share else "+0.0")
