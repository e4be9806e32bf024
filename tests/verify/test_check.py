"""A sound checkpoint of every layout gives no finding, and every rule of the catalogue has a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkmaking import moe

from truecast.verify.check import check
from truecast.verify.check.rules import RULES

LAYOUTS = ("nvfp4-modelopt", "nvfp4-compressed-tensors", "mxfp4-compressed-tensors")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("input_scale", [False, True])
def test_sound_checkpoint(tmp_path, layout, input_scale):
    made = moe(tmp_path / "m", layout, input_scale=input_scale and layout != "mxfp4-compressed-tensors")
    report = made.check()
    assert report.findings == [] and report.ok
    assert report.layouts == [layout]
    assert report.counts["matrices"] == 18 and report.counts["shards"] == 2


def test_progress_adds_up(tmp_path):
    seen: list[tuple[str, int, int]] = []
    report = check(moe(tmp_path / "m").write(), progress=lambda *told: seen.append(told))
    scales = report.counts["scales"]
    assert sum(done for _, done, _ in seen) == scales and {total for _, _, total in seen} == {scales}


def test_codes_of_a_sound_checkpoint_are_not_read(tmp_path):
    report = moe(tmp_path / "m").check()
    assert report.counts["bytes_read"] == 18 * (32 + 4)


def test_every_rule_has_a_test():
    text = "".join(p.read_text() for p in Path(__file__).parent.glob("test_check_*.py"))
    assert [rule for rule in RULES if f'"{rule}"' not in text] == []


def test_rules_say_why_and_what_to_do():
    for name, rule in RULES.items():
        assert rule.severity in ("error", "warning") and rule.why and rule.remedy, name
