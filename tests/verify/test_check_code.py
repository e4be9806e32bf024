"""What check says of the modelling code beside the weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.shaped import kimi_k3
from truecast.convert import Target, convert
from truecast.verify.check import check

FILE = "modeling_kimi_linear.py"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code") / "source"
    kimi_k3.make(folder)
    return folder


def findings(folder: Path) -> list[tuple[str, str]]:
    return [(f.id, f.severity) for f in check(folder).findings if f.id.startswith("a-log")]


def test_the_released_class_beside_a_longer_tensor(source: Path) -> None:
    assert findings(source) == [("a-log-unloadable", "warning")]
    (finding,) = (f for f in check(source).findings if f.id == "a-log-unloadable")
    assert finding.place.file == FILE
    assert "self_attn.A_log has 128 values" in finding.message and "convert" in finding.remedy


def test_with_the_rule_there_is_nothing_to_say(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", Target("nvfp4"))
    assert findings(tmp_path / "out") == []


def test_the_early_fix_is_an_error_until_it_is_converted(source: Path, tmp_path: Path) -> None:
    kimi_k3.make(tmp_path / "wide")
    path = tmp_path / "wide" / FILE
    text = path.read_text().replace("torch.zeros(self.num_heads", 'torch.zeros(config.linear_attn_config["head_dim"]')
    path.write_text(text)
    assert findings(tmp_path / "wide") == [("a-log-oversized", "error")]
    convert(tmp_path / "wide", tmp_path / "out", Target("nvfp4"))
    assert findings(tmp_path / "out") == []


def test_code_that_cannot_be_read_is_no_finding(source: Path, tmp_path: Path) -> None:
    kimi_k3.make(tmp_path / "odd")
    (tmp_path / "odd" / FILE).write_bytes(b"class KimiDeltaAttention(:\n")
    assert findings(tmp_path / "odd") == []
