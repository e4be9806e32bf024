"""docs/model-cards.md has a row for each thing that both cards ask for, and names only what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from truecast.cli.main import VERBS
from truecast.engines.sglang.fixes import FIXES
from truecast.serve.doctor.catalogue import CHECKS
from truecast.serve.launch.published import PUBLISHED, Published
from truecast.serve.smoke.smoke import CHECKS as QUESTIONS
from truecast.verify.check.rules import RULES

PAGE = (Path(__file__).parents[1] / "docs" / "model-cards.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", PAGE, re.MULTILINE))

CARDS = {
    "N, the cast": """kept-modules data-free global-scale seventeen-binades every-block no-gain bf16-size card-config
        exclude-list w4a4-branch""",
    "N, five requirements": "1-marlin 2-assertion 3-barrier 4-dist-timeout 5-dcp",
    "N, the deployment": """branch two-nodes same-command host-ip situ-parameters 1.6-tb w4a16 as-native fast-path
        cuda-13""",
    "N, questions": "arithmetic channels efforts cut-thinking",
    "N, evaluation": "ifbench scicode gpqa answer-budget",
    "N, modelling code": "a-log-tail a-log-code a-log-early a-log-sglang",
    "W, the cast": "int4 lower-error licence whole-card",
    "W, two configurations": "w4a16-column w4a8-column patches-used which-to-pick two-replicas",
    "W, the table's rows": "tokens-per-stream aggregate kl kl-text kl-vessl aime-hmmt",
    "W, set-up": "image clone-patches method draft-download",
    "W, five patches": "01-sm90a 02-load-filter 03-kv-gather 04-ep-tile 05-count",
    "W, launch": """nccl patch-variables engine-variables names ranks caches memory attention batch experts speculation
        parsers address start ready endpoint""",
    "on neither": "beyond-patches added",
}
"""What the cards say, in words of our own: the keys of the rows."""

NOT_YET: set[str] = set()
"""Rows without any command."""
FILES = (".json", ".md", ".py", ".sh", ".slurm", ".yaml")


@pytest.mark.parametrize("part", CARDS)
def test_each_thing_on_the_cards_has_a_row(part: str) -> None:
    assert [key for key in CARDS[part].split() if key not in ROWS] == []


def test_no_row_stands_for_nothing() -> None:
    keys = [key for part in CARDS.values() for key in part.split()]
    assert sorted(keys) == sorted(re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE))


def test_a_row_without_a_command_says_not_yet() -> None:
    bare = {key for key, row in ROWS.items() if row.split(" | ")[1] == "not yet"}
    assert bare == NOT_YET


def test_the_card_itself_has_a_row() -> None:
    assert "`truecast card Kimi-K3-W4AFP8 --verify " in ROWS["whole-card"] and "not yet for K3" in ROWS["whole-card"]


@pytest.mark.parametrize(
    ("key", "where"),
    [("tokens-per-stream", "not with K3"), ("aggregate", "not with K3"), ("two-replicas", "not yet run")],
)
def test_a_measured_speed_names_the_command_that_measures_it(key: str, where: str) -> None:
    assert "`truecast bench http" in ROWS[key]
    assert where in ROWS[key], "what was run and what was not"


@pytest.mark.parametrize("key", [key for key in ROWS if key not in NOT_YET])
def test_a_row_names_a_command_or_the_section_does(key: str) -> None:
    section = PAGE[: PAGE.index(f"| `{key}` |")].rpartition("\n## ")[2]
    assert re.search(r"`truecast [a-z-]+ ", ROWS[key]) or re.search(r"^All by `truecast launch ", section, re.MULTILINE)


def test_each_command_exists() -> None:
    assert set(re.findall(r"truecast ([a-z-]+) \S", " ".join(re.findall(r"`(truecast[^`]+)`", PAGE)))) <= set(VERBS)


def _after(word: str) -> set[str]:
    """Names in code behind ``word`` or its plural: ``fixes `a`, `b` and `c```."""
    found = re.findall(rf"\b{word}(?:s|es)? ((?:`[a-z0-9-]+`(?:, | and )?)+)", PAGE)
    return {name for names in found for name in re.findall(r"`([^`]+)`", names)}


def test_each_fix_is_named_and_exists() -> None:
    assert _after("fix") == {fix.name for fix in FIXES}


def test_each_rule_and_question_exists() -> None:
    assert len(_after("rule")) > 8 and _after("rule") <= set(RULES)
    assert len(_after("question")) > 6 and _after("question") <= set(QUESTIONS)


def test_each_check_of_the_doctor_exists() -> None:
    named = set(re.findall(r"`([a-z0-9]+\.[a-z0-9-]+)`", PAGE.partition("## N: five")[2]))
    named = {name for name in named if not name.endswith(FILES) and name not in ROWS}
    assert len(named) > 30
    assert named <= {check.id for check in CHECKS}


@pytest.mark.parametrize("card", PUBLISHED, ids=["W4A8", "W4A16"])
def test_each_flag_and_variable_of_the_published_commands_is_named(card: Published) -> None:
    names = {*card.environment, *card.arguments}
    assert [name for name in names if f"`{name}`" not in PAGE] == []
