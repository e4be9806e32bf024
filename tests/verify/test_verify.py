from __future__ import annotations

import json
from pathlib import Path

import pytest
from verify_checkpoints import SOURCES, kimi_k3

from truecast.convert import Target, convert
from truecast.verify import verify, verify_against

TARGETS = [
    ("nvfp4", "modelopt"),
    ("nvfp4", "compressed-tensors"),
    ("mxfp4", "compressed-tensors"),
    ("mxfp4", "gpt-oss"),
    ("mxfp4", "deepseek"),
    ("bf16", "bf16"),
]
OWN = {"kimi_k3": "compressed-tensors", "gpt_oss": "gpt-oss", "deepseek_v4": "deepseek"}
CASES = [(s, t) for s in SOURCES for t in TARGETS if t != ("mxfp4", OWN[s])]
MATRICES = {"kimi_k3": 6, "gpt_oss": 9, "deepseek_v4": 12}


@pytest.mark.parametrize(("source", "target"), CASES, ids=[f"{s}-{'-'.join(t)}" for s, t in CASES])
def test_what_convert_writes_is_proven(source: str, target: tuple[str, str], tmp_path: Path) -> None:
    src = SOURCES[source](tmp_path / "src")
    convert(src, tmp_path / "out", Target(*target), card=lambda m: "# card\n")
    certificate = tmp_path / "certificate.json"
    report = verify(src, tmp_path / "out", certificate=certificate)
    assert report.failures.kept == []
    assert report.ok and report.manifest_checked and report.notes == []
    assert report.counts.matrices == MATRICES[source]
    assert report.counts.elements == MATRICES[source] * 32 * 64
    assert report.counts.half_blocks == (0 if target[0] == "bf16" else report.counts.elements // 16)
    assert json.loads(json.dumps(report.document()))["ok"] is True
    for side in (src, tmp_path / "out"):
        again = verify_against(side, certificate)
        assert again.failures.kept == []
        assert again.counts.matrices == MATRICES[source]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("back", [("nvfp4", "compressed-tensors"), ("bf16", "bf16")], ids=["relayout", "bf16"])
def test_second_step_from_nvfp4(source: str, back: tuple[str, str], tmp_path: Path) -> None:
    src = SOURCES[source](tmp_path / "src")
    convert(src, tmp_path / "nvfp4", Target("nvfp4", "modelopt"))
    convert(tmp_path / "nvfp4", tmp_path / "out", Target(*back))
    assert verify(tmp_path / "nvfp4", tmp_path / "out").failures.kept == []


def test_the_other_way_between_nvfp4_dialects(tmp_path: Path) -> None:
    src = kimi_k3(tmp_path / "src")
    convert(src, tmp_path / "ct", Target("nvfp4", "compressed-tensors", activations=True))
    assert verify(src, tmp_path / "ct").failures.kept == []
    convert(tmp_path / "ct", tmp_path / "modelopt", Target("nvfp4", "modelopt"))
    assert verify(tmp_path / "ct", tmp_path / "modelopt").failures.kept == []
    convert(tmp_path / "ct", tmp_path / "dropped", Target("nvfp4", "modelopt", activations=False))
    assert verify(tmp_path / "ct", tmp_path / "dropped").failures.kept == []
    (tmp_path / "dropped" / "truecast.json").unlink()
    report = verify(tmp_path / "ct", tmp_path / "dropped")
    assert {f.kind for f in report.failures.kept} == {"missing"}


@pytest.mark.parametrize("source", SOURCES)
def test_other_sharding_and_several_processes(source: str, tmp_path: Path) -> None:
    src = SOURCES[source](tmp_path / "src")
    convert(src, tmp_path / "out", Target("nvfp4", "modelopt", max_shard_bytes=4000))
    seen = []
    report = verify(src, tmp_path / "out", jobs=2, progress=lambda *a: seen.append(a))
    assert report.failures.kept == []
    assert sum(done for _, done, _ in seen) == seen[0][2]


def test_one_pass_over_the_output(tmp_path: Path) -> None:
    src = kimi_k3(tmp_path / "src", rows=128, cols=256)
    convert(src, tmp_path / "out", Target("nvfp4", "modelopt"))
    report = verify(src, tmp_path / "out")
    out = sum(p.stat().st_size for p in (tmp_path / "out").iterdir() if p.is_file())
    have = sum(p.stat().st_size for p in src.glob("*.safetensors"))
    looks = 16 * report.counts.matrices  # is it all zero?
    again = report.counts.matrices * 128 * 256  # the all-zero block at the end makes codes be looked at again
    assert report.counts.bytes_read <= out + have + looks + again


def test_without_manifest_values_are_proven(tmp_path: Path) -> None:
    src = kimi_k3(tmp_path / "src")
    convert(src, tmp_path / "out", Target("nvfp4", "modelopt"))
    (tmp_path / "out" / "truecast.json").unlink()
    report = verify(src, tmp_path / "out")
    assert report.ok and not report.manifest_checked
    assert "no truecast.json" in report.notes[0]


def test_a_plain_copy_is_proven(tmp_path: Path) -> None:
    src = kimi_k3(tmp_path / "src")
    assert verify(src, src).ok


def test_the_report_is_deterministic(tmp_path: Path) -> None:
    src = kimi_k3(tmp_path / "src")
    convert(src, tmp_path / "out", Target("nvfp4", "modelopt"))
    first = verify(src, tmp_path / "out", certificate=tmp_path / "a.json").document()
    second = verify(src, tmp_path / "out", jobs=2, certificate=tmp_path / "b.json").document()
    assert first == second
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
