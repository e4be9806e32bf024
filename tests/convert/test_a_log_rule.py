"""The copy of Kimi-K3's modelling code: with the loading rule where it lacks one, otherwise byte for byte."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from truecast.cli.main import main
from truecast.convert import Target, convert
from truecast.convert.a_log_rule import BLOCK
from truecast.errors import RefusedError
from truecast.families.delta_attention import FILE, MAX_BYTES, judge


@pytest.fixture
def source(sources: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(sources["kimi_k3"], tmp_path / "source"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_rule_follows_the_last_byte_and_the_manifest_says_so(source: Path, tmp_path: Path) -> None:
    manifest = convert(source, tmp_path / "out", Target("nvfp4"))
    written = tmp_path / "out" / FILE
    assert written.read_bytes() == (source / FILE).read_bytes() + BLOCK.encode()
    assert judge(written.read_bytes()) == "fixed"
    entry = {"file": FILE, "rule": "a_log/1", "before": sha256(source / FILE), "after": sha256(written)}
    assert manifest["code"] == [entry]
    assert manifest["files"][FILE] == {"bytes": written.stat().st_size, "sha256": sha256(written)}
    assert [note for note in manifest["notes"] if note.startswith(FILE)]


def test_a_file_with_the_rule_is_not_touched_again(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "first", Target("nvfp4"))
    manifest = convert(tmp_path / "first", tmp_path / "second", Target("bf16"))
    assert manifest["code"] == []
    assert (tmp_path / "second" / FILE).read_bytes() == (tmp_path / "first" / FILE).read_bytes()


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\n    # a comment without an end", b"\n\n\n"])
def test_whatever_the_file_ends_with_the_result_is_python(source: Path, tmp_path: Path, end: bytes) -> None:
    (source / FILE).write_bytes((source / FILE).read_bytes().rstrip() + end)
    convert(source, tmp_path / "out", Target("nvfp4"))
    assert judge((tmp_path / "out" / FILE).read_bytes()) == "fixed"


@pytest.mark.parametrize(
    "content", [b"class KimiDeltaAttention(:\n", b"#" * (MAX_BYTES + 1), b"class KimiDeltaAttention: 1\n"]
)
def test_what_cannot_be_told_is_left_and_said(source: Path, tmp_path: Path, content: bytes) -> None:
    (source / FILE).write_bytes(content)
    manifest = convert(source, tmp_path / "out", Target("nvfp4"))
    assert (tmp_path / "out" / FILE).read_bytes() == content
    assert manifest["code"] == []
    assert any("was left as it is" in note for note in manifest["notes"])


def test_the_early_fix_of_a_class_without_num_heads_is_left_and_said(source: Path, tmp_path: Path) -> None:
    text = (source / FILE).read_text()
    (source / FILE).write_text(text.replace("self.num_heads", "self.head_dim").replace('["num_heads"]', '["head_dim"]'))
    manifest = convert(source, tmp_path / "out", Target("nvfp4"))
    assert manifest["code"] == [] and any("was left as it is" in note for note in manifest["notes"])


def test_no_rule_where_the_tensor_is_as_long_as_the_heads(source: Path, tmp_path: Path) -> None:
    config = source / "config.json"
    config.write_text(config.read_text().replace('"num_heads": ', '"num_heads": 128, "was": '))
    manifest = convert(source, tmp_path / "out", Target("nvfp4"))
    assert (tmp_path / "out" / FILE).read_bytes() == (source / FILE).read_bytes()
    assert manifest["code"] == [] and not any(FILE in note for note in manifest["notes"])


def test_no_fix_code_leaves_it_byte_for_byte(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["convert", str(source), out, "--to", "nvfp4", "--no-fix-code", "--quiet"]) == 0
    assert (tmp_path / "out" / FILE).read_bytes() == (source / FILE).read_bytes()
    assert main(["verify", str(source), out, "--quiet"]) == 0
    with pytest.raises(RefusedError, match="other options"):
        convert(source, out, Target("nvfp4"))
