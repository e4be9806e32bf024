"""``truecast compare`` as a user sees it: words, ``--json``, exit codes, and files that are none of ours."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audit.test_paired import A as POSITIONS
from tests.audit.test_paired import B as OTHER_POSITIONS
from tests.audit.test_paired import folder
from tests.bench import test_compare as loads
from tests.evals.records import document, sample

Cli = Callable[..., Any]


def written(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def evals(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(3)
    chances = rng.beta(1, 0.25, 60)
    drawn = [[[sample(bool(rng.random() < p)) for _ in range(8)] for p in chances] for _ in range(2)]
    native, cast = (document(d, server={"model": name}) for d, name in zip(drawn, ("native", "w4a8"), strict=True))
    return written(tmp_path / "a" / "eval.json", native), written(tmp_path / "b" / "eval.json", cast)


def test_evals_in_words(cli: Cli, evals: tuple[Path, Path]) -> None:
    outcome = cli("compare", evals[0].parent, evals[1])
    assert (outcome.code, outcome.err) == (0, "")
    for words in ("A  native", "B  w4a8", "Neither is shown to be better", "would have been found with 80% power"):
        assert words in outcome.out
    assert "Equivalence is shown for margins above" in outcome.out
    assert "Parts of the SE, which add up as squares: " in outcome.out
    assert "not significant" not in outcome.out


def test_a_margin_is_a_claim(cli: Cli, evals: tuple[Path, Path]) -> None:
    outcome = cli("compare", *evals, "--margin", "0.2")
    assert outcome.code == 0 and "EQUIVALENT within 20.0 points" in outcome.out
    outcome = cli("compare", *evals, "--margin", "0.001")
    assert outcome.code == 1 and "NOT SHOWN to be equivalent within 0.1 points" in outcome.out


def test_every_margin_above_the_one_printed_is_shown(cli: Cli, evals: tuple[Path, Path]) -> None:
    told = re.search(r"margins above ([0-9.]+) points", cli("compare", *evals).out)
    assert told
    assert cli("compare", *evals, "--margin", str(float(told[1]) / 100 + 1e-9)).code == 0


def test_a_part_of_the_error_is_not_told_as_more_than_all_of_it(cli: Cli, tmp_path: Path) -> None:
    """Problems of one chance, on which both sides got four of eight right: the answers alone could differ by more."""
    drawn = [[sample(i % 2 == 0) for i in range(8)] for _ in range(40)]
    a, b = (written(tmp_path / name / "eval.json", document(d, server={})) for name, d in (("a", drawn), ("b", drawn)))
    told = cli("compare", a, b).out
    assert "All of the SE can come from the answers" in told and "Parts of the SE" not in told


def test_json(cli: Cli, evals: tuple[Path, Path]) -> None:
    outcome = cli("compare", *evals, "--json", "--margin", "0.001")
    assert outcome.code == 1
    found = outcome.json
    assert (found["schema"], found["kind"], found["problems"]) == ("truecast.compare/1", "eval", 60)
    assert found["equivalence"]["margin"] == 0.001 and found["a"]["server"] == {"model": "native"}


def test_common_problems(cli: Cli, tmp_path: Path, evals: tuple[Path, Path]) -> None:
    fewer = json.loads(evals[1].read_text())
    fewer["problems"].pop()
    other = written(tmp_path / "c.json", fewer)
    assert cli("compare", evals[0], other).code == 2
    outcome = cli("compare", evals[0], other, "--common")
    assert outcome.code == 0 and "warning  left out, as one run lacks them: 1 of the problems" in outcome.out


def test_load_tests_in_words(cli: Cli, tmp_path: Path) -> None:
    a, b = (written(tmp_path / name / "bench.json", loads.document(x)) for name, x in (("a", loads.A), ("b", loads.B)))
    outcome = cli("compare", a, b, "--margin", "0.05")
    assert outcome.code == 1
    assert "stream at 50 streams: B is 1.15 times A (95% interval 1.13 to 1.17" in outcome.out
    assert "NOT SHOWN to be equivalent within 5.00%" in outcome.out
    assert cli("compare", a, b).code == 0
    assert "EQUIVALENT within" in cli("compare", a, a, "--margin", "0.05").out
    assert cli("compare", a, b, "--common").code == 2


def test_it_names_the_files_that_it_compared(cli: Cli, evals: tuple[Path, Path]) -> None:
    found = cli("compare", *evals, "--json").json
    assert [found[side]["sha256"] for side in ("a", "b")] == [
        hashlib.sha256(file.read_bytes()).hexdigest() for file in evals
    ]


def test_audits_in_words(cli: Cli, tmp_path: Path) -> None:
    floor = {"mean": float(POSITIONS.kl.mean()) * 0.9, "sd": None}
    a, b = (
        folder(tmp_path / name, positions, schema="truecast.audit/1", floor=floor)
        for name, positions in (("a", POSITIONS), ("b", OTHER_POSITIONS))
    )
    outcome = cli("compare", a, b)
    assert outcome.code == 0
    assert "B: It costs" in outcome.out and "nats per token less than a" in outcome.out
    assert "A's KL is within twice its noise floor" in outcome.out
    assert "nats per token would have been found with 80% power" in outcome.out
    refused = cli("compare", a, b, "--margin", "0.01")
    assert refused.code == 2 and "--margin is for scores and rates" in refused.err


def test_different_kinds(cli: Cli, tmp_path: Path, evals: tuple[Path, Path]) -> None:
    other = written(tmp_path / "bench.json", loads.document(loads.A))
    outcome = cli("compare", evals[0], other)
    assert outcome.code == 2 and "one is of eval, the other of bench" in outcome.err


BAD = {
    "no such file": None,
    "is no JSON that can be read": b"{",
    "is no JSON object": b"[]",
    "'schema' stands twice in an object": b'{"schema": "truecast.eval/1", "schema": "truecast.eval/1"}',
    "NaN is no JSON number": b'{"schema": NaN}',
    "is no JSON that can be read: maximum recursion depth": b"[" * 100_000,
    "is no JSON that can be read: Exceeds the limit": b'{"n": ' + b"9" * 5000 + b"}",
    "is no JSON that can be read: 'utf-8'": b"\xff\xfe",
    "schema is 'truecast.verify/1', none of": b'{"schema": "truecast.verify/1"}',
    "schema is None, none of": b"{}",
    "schema is ['truecast.eval/1'], none of": b'{"schema": ["truecast.eval/1"]}',
}


@pytest.mark.parametrize("message", BAD)
def test_files_that_are_none_of_ours(cli: Cli, tmp_path: Path, evals: tuple[Path, Path], message: str) -> None:
    bad, content = tmp_path / "bad.json", BAD[message]
    if content is not None:
        bad.write_bytes(content)
    for pair in ((bad, evals[0]), (evals[0], bad)):
        outcome = cli("compare", *pair, "--json")
        assert outcome.code == 2 and outcome.json["exit_code"] == 2
        assert str(bad) in outcome.err and message in outcome.err


def test_folders(cli: Cli, tmp_path: Path, evals: tuple[Path, Path]) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no eval.json" in cli("compare", tmp_path / "empty", evals[0]).err
    for number, task in enumerate(("aime", "hmmt")):  # as `truecast eval --out DIR` leaves them
        (tmp_path / "evals" / task).mkdir(parents=True)
        written(tmp_path / "evals" / task / "eval.json", json.loads(evals[number].read_text()))
        if number == 0:
            assert cli("compare", tmp_path / "evals", evals[1]).code == 0
    several = cli("compare", tmp_path / "evals", evals[0]).err
    assert "holds aime/eval.json and hmmt/eval.json; name the file" in several
    written(evals[1].parent / "bench.json", loads.document(loads.A))
    assert "holds eval.json and bench.json; name the file" in cli("compare", evals[0], evals[1].parent).err


def test_a_file_of_terabytes_is_not_read(cli: Cli, tmp_path: Path, evals: tuple[Path, Path]) -> None:
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    assert "is larger than any recorded document" in cli("compare", huge, evals[0]).err


@pytest.mark.parametrize("margin", ["0", "-1", "1", "nan", "one"])
def test_margins_that_are_none(cli: Cli, evals: tuple[Path, Path], margin: str) -> None:
    assert cli("compare", *evals, f"--margin={margin}").code == 2


def test_names_from_the_record_cannot_fake_a_line(cli: Cli, tmp_path: Path, evals: tuple[Path, Path]) -> None:
    fake = json.loads(evals[1].read_text())
    fake["server"] = {"model": "x\nEQUIVALENT\x1b[2J"}
    outcome = cli("compare", evals[0], written(tmp_path / "fake.json", fake))
    assert outcome.code == 0 and "\x1b" not in outcome.out and "\nEQUIVALENT" not in outcome.out
