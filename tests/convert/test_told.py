"""What a user is told where the outcome is not the plain one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.convert.test_convert import wide
from tests.convert.test_hostile import simple
from truecast.checkpoint.source import open_checkpoint
from truecast.cli.main import main
from truecast.convert import Target, convert, plan
from truecast.errors import RefusedError


def test_the_verdict_names_a_declared_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = wide(tmp_path, -18, 0x11)
    convert(source, tmp_path / "out", Target("nvfp4", allow_inexact=True))
    assert main(["verify", str(source), str(tmp_path / "out"), "--jobs", "1", "--quiet"]) == 0
    assert "PASS, NOT EXACT: 16 half blocks changed as the manifest declares" in capsys.readouterr().out


def test_a_complete_run_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = simple(tmp_path / "src")
    first = convert(source, tmp_path / "out", Target("nvfp4"))
    assert not caplog.text
    assert convert(source, tmp_path / "out", Target("nvfp4")) == first
    assert "is complete already: nothing was written" in caplog.text


def test_bf16_experts_are_not_called_fp4(sources: dict[str, Path], tmp_path: Path) -> None:
    manifest = convert(sources["deepseek_v4"], tmp_path / "out", Target("bf16"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["expert_dtype"] == "bf16"
    assert config["quantization_config"]["quant_method"] == "fp8", "the FP8 modules are still there"
    assert "no engine is known" in manifest["notes"][0]


def test_a_foreign_dialect_is_noted(sources: dict[str, Path]) -> None:
    work = plan(open_checkpoint(sources["kimi_k3"]), Target("mxfp4", "deepseek"))
    assert work.notes == ["no engine is known to read kimi_k3 in this dialect; its own is compressed-tensors"]


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("file", ["truecast.json", ".truecast/journal.json"])
@pytest.mark.parametrize("spoil", [as_folder, lambda p: p.write_text("[" * 100_000)], ids=["folder", "deep"])
def test_spoilt_notes_are_refused(tmp_path: Path, file: str, spoil: Callable[[Path], object]) -> None:
    source = simple(tmp_path / "src")
    convert(source, tmp_path / "out", Target("nvfp4"))
    spoil(tmp_path / "out" / file)
    with pytest.raises(RefusedError, match="damaged"):
        convert(source, tmp_path / "out", Target("nvfp4"))
