"""``verify`` and ``check`` as a user sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def done(tiny: Path, tmp_path: Path, cli: Cli) -> Path:
    out = tmp_path / "done"
    assert cli("convert", tiny, out, "--to", "nvfp4", "--jobs", 1).code == 0
    return out


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_verify(tiny: Path, done: Path, cli: Cli) -> None:
    outcome = cli("verify", tiny, done, "--jobs", 1)
    assert (outcome.code, outcome.err) == (0, "")
    last = outcome.out.splitlines()[-1]
    assert last.startswith("PASS  6 matrices, 320 half blocks, 5,120 elements compared; 4 tensors byte for byte; ")
    assert last.endswith(" kB read")
    assert cli("verify", tiny, done, "--jobs", 2) == outcome
    assert cli("verify", tiny, done, "--quiet", "--jobs", 1) == outcome


def test_verify_json(tiny: Path, done: Path, cli: Cli) -> None:
    outcome = cli("verify", tiny, done, "--jobs", 1, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    document = outcome.json
    assert (document["schema"], document["ok"], document["failures"]) == ("truecast.verify/1", True, [])
    assert document["counts"]["half_blocks"] == 320
    assert document["manifest_checked"] is True


def test_verify_fails(tiny: Path, done: Path, cli: Cli, stamps: Callable[[Path], Any]) -> None:
    """A flipped bit of a code: exit 1, and the place."""
    header = int.from_bytes((done / SHARD).read_bytes()[:8], "little")
    _flip(done / SHARD, 8 + header)
    before = stamps(done)
    outcome = cli("verify", tiny, done, "--jobs", 1)
    assert (outcome.code, outcome.err) == (1, "")
    lines = outcome.out.splitlines()
    assert lines[0].startswith("FAIL  ") and lines[-1].startswith("FAIL  ")
    assert any(SHARD in line for line in lines)
    assert any("model.layers.1.mlp." in line for line in lines)
    document = cli("verify", tiny, done, "--jobs", 1, "--json")
    assert document.code == 1
    assert document.json["ok"] is False
    assert document.json["failures_total"] >= 1
    assert stamps(done) == before


def test_verify_certificate(tiny: Path, done: Path, tmp_path: Path, cli: Cli) -> None:
    certificate = tmp_path / "certificate.json"
    assert cli("verify", tiny, done, "--jobs", 1, "--certificate", certificate).code == 0
    json.loads(certificate.read_bytes())
    for side in (tiny, done):
        outcome = cli("verify", side, "--against", certificate, "--jobs", 1)
        assert (outcome.code, outcome.err) == (0, "")
    name = "model.layers.1.mlp.experts.0.w2"
    assert cli("verify", done, "--against", certificate, "--tensor", name, "--jobs", 1).code == 0
    _flip(done / SHARD, -1)
    assert cli("verify", done, "--against", certificate, "--jobs", 1).code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "SRC"], "verify needs SRC and OUT; or one checkpoint and --against FILE"),
        (["verify", "SRC", "OUT", "--tensor", "x"], "--tensor goes with --against"),
        (["verify", "SRC", "OUT", "--against", "FILE"], "--against takes one checkpoint and no --certificate"),
        (["verify", "SRC", "--against", "FILE"], "FILE: "),
        (["verify", "SRC", "ABSENT"], "ABSENT: no such file or folder"),
        (["verify", "ABSENT", "OUT"], "ABSENT: no such file or folder"),
        (["check", "ABSENT"], "ABSENT: no such file or folder"),
    ],
)
def test_bad_usage(
    arguments: list[str],
    message: str,
    tiny: Path,
    done: Path,
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    filled = [{"SRC": str(tiny), "OUT": str(done)}.get(a, a) for a in arguments]
    outcome = cli(*filled)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"truecast {arguments[0]}: {message}")
    document = cli(*filled, "--json")
    assert (document.code, document.json["exit_code"]) == (2, 2)
    assert document.json["schema"] == f"truecast.{arguments[0]}/1"


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"schema": "other"}'])
def test_bad_certificate(content: bytes, tiny: Path, tmp_path: Path, cli: Cli) -> None:
    certificate = tmp_path / "certificate.json"
    certificate.write_bytes(content)
    outcome = cli("verify", tiny, "--against", certificate)
    assert (outcome.code, outcome.out) == (2, "")
    assert str(certificate) in outcome.err


def test_certificate_cannot_be_written(tiny: Path, done: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").write_text("")
    outcome = cli("verify", tiny, done, "--jobs", 1, "--certificate", tmp_path / "file" / "certificate.json")
    assert outcome.code == 2
    assert "cannot write" in outcome.err


def test_damaged_output_is_no_traceback(tiny: Path, done: Path, cli: Cli) -> None:
    """Whatever is wrong with OUT, verify says that the claim fails or that it cannot read it."""
    for name in ("config.json", "truecast.json", "model.safetensors.index.json", SHARD, "hf_quant_config.json"):
        content = (done / name).read_bytes()
        for damaged in (b"", b"{}", b"[]", content[:-1], content[: len(content) // 2]):
            (done / name).write_bytes(damaged)
            assert cli("verify", tiny, done, "--jobs", 1).code in (1, 2), (name, damaged)
            assert cli("check", done, "--jobs", 1).code in (0, 1, 2), (name, damaged)
        (done / name).unlink()
        assert cli("verify", tiny, done, "--jobs", 1).code in ((0, 1, 2) if name == "truecast.json" else (1, 2)), name
        (done / name).write_bytes(content)
    assert cli("verify", tiny, done, "--jobs", 1).code == 0


def test_check(done: Path, cli: Cli) -> None:
    outcome = cli("check", done)
    assert (outcome.code, outcome.out, outcome.err) == (0, "PASS  0 errors, 0 warnings\n", "")
    assert cli("check", done, "--quiet") == outcome
    document = cli("check", done, "--json")
    assert document.code == 0
    assert document.json["schema"] == "truecast.check/1"


def test_check_finds(done: Path, cli: Cli) -> None:
    (done / SHARD).unlink()
    outcome = cli("check", done)
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.startswith("ERROR ")
    for part in (SHARD, "why: ", "remedy: ", "\nFAIL  "):
        assert part in outcome.out
    assert cli("check", done, "--json").code == 1


def test_the_two_sides_swapped(tiny: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out"
    assert cli("convert", tiny, out, "--to", "nvfp4").code == 0
    outcome = cli("verify", out, tiny)
    note = f"note  {out} says that it was made from {tiny}: are the two swapped?"
    assert outcome.code == 0, "both hold the same values"
    assert note in outcome.out.splitlines()[:-1], "before the verdict"
    assert "swapped" not in cli("verify", tiny, out).out
