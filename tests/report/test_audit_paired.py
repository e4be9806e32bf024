"""The sentence and the section of a paired comparison."""

from __future__ import annotations

from typing import Any

import pytest

from truecast.report.audit_paired import paired_section, paired_verdict


def paired(mean: float, interval: list[float] | None, excludes: bool | None) -> dict[str, Any]:
    return {
        "candidates": [{"location": "/x/a"}, {"location": "/x/<b>"}],
        "a": 0.02 + mean,
        "b": 0.02,
        "ratio": 1 + 50 * mean,
        "ratio_interval": [0.5, 0.9],
        "difference": {"mean": mean, "interval": interval},
        "excludes_zero": excludes,
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (paired(-0.01, [-0.02, -0.005], True), "It costs 0.0100 nats per token less than <b> (95% interval"),
        (paired(0.01, [0.005, 0.02], True), "It costs 0.0100 nats per token more than <b>"),
        (paired(0.01, [-0.02, 0.03], False), "It cannot be told from <b>: 95% interval of the difference -0.0200 to 0.0300"),
        (paired(0.01, None, None), "One document gives no interval."),
    ],
)  # fmt: skip
def test_the_sentence(given: dict[str, Any], words: str) -> None:
    assert words in paired_verdict(given)


def test_the_section_escapes_names() -> None:
    html = paired_section(paired(-0.01, [-0.02, -0.005], True))
    assert "/x/&lt;b&gt;" in html
    assert "<b>" not in html
    assert paired_section(None) == ""


def test_one_checkpoint_served_in_two_ways_says_which_is_which() -> None:
    given = paired(0.01, [0.005, 0.02], True)
    given["candidates"] = [{"location": "/x/a", "activations": "fp8-tensor", "kv": "none"}, {"location": "/x/a"}]
    assert "more than a (activations none, KV none)" in paired_verdict(given)
    assert "/x/a (activations fp8-tensor, KV none)" in paired_section(given)
    given["candidates"] = [{"location": "/x/a", "activations": "fp8-tensor", "kv": "none"}] * 2
    assert "activations" not in paired_section(given), "that is no difference, and stands on the page already"
