from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import ml_dtypes
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from verify_checkpoints import U8, gpt_oss, kimi_k3, load_shard, poke

from truecast.convert import Target, convert
from truecast.errors import InputError
from truecast.formats import e2m1, e8m0, packing
from truecast.verify import Report, verify, verify_against

EXPERT = "language_model.model.layers.1.block_sparse_moe.experts.0"
HEAD = "language_model.lm_head.weight"
BANK = "model.layers.0.mlp.experts"


@pytest.fixture
def proven(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Source, output, certificate."""
    src, out, certificate = kimi_k3(tmp_path / "src"), tmp_path / "out", tmp_path / "certificate.json"
    convert(src, out, Target("nvfp4", "modelopt"))
    assert verify(src, out, certificate=certificate).ok
    return src, out, certificate


def entries(certificate: Path, section: str) -> dict[str, dict[str, Any]]:
    return {e["name"]: e for e in json.loads(certificate.read_text())[section]}


def kinds(report: Report) -> set[tuple[str, str]]:
    return {(f.kind, f.tensor) for f in report.failures.kept}


def test_hashes_are_what_the_documentation_says(proven: tuple[Path, Path, Path]) -> None:
    src, out, certificate = proven
    entry = entries(certificate, "matrices")[f"{EXPERT}.w1"]
    before = load_shard(src / "model-00001-of-00003.safetensors")
    after = load_shard(out / "model-00001-of-00003.safetensors")
    _, shape, codes = before[f"{EXPERT}.w1.weight_packed"]
    scale = before[f"{EXPERT}.w1.weight_scale"][2]
    stored = b"".join(after[f"{EXPERT}.w1.{part}"][2] for part in ("weight", "weight_scale", "weight_scale_2"))
    assert entry["source"] == {
        "layout": "mxfp4-compressed-tensors",
        "sha256": hashlib.sha256(codes + scale).hexdigest(),
    }
    assert entry["out"] == {"layout": "nvfp4-modelopt", "sha256": hashlib.sha256(stored).hexdigest()}
    values = e2m1.decode(packing.unpack_nibbles(np.frombuffer(codes, np.uint8))).reshape(-1, 32)
    values = values * e8m0.decode(np.frombuffer(scale, np.uint8))[:, None]
    canonical = values.astype(ml_dtypes.bfloat16).tobytes()
    assert entry["canonical"] == {"dtype": "BF16", "sha256": hashlib.sha256(canonical).hexdigest()}
    assert (entry["rows"], entry["cols"]) == (shape[0], shape[1] * 2)
    head = load_shard(src / "model-00003-of-00003.safetensors")[HEAD][2]
    assert entries(certificate, "tensors")[HEAD]["sha256"] == hashlib.sha256(head).hexdigest()


def test_certificate_travels_inside_the_output(proven: tuple[Path, Path, Path]) -> None:
    src, out, _ = proven
    inside = out / "truecast.certificate.json"
    assert verify(src, out, certificate=inside).ok
    assert verify(src, out).ok
    assert verify_against(out, inside).ok


def test_no_certificate_of_what_is_not_proven(proven: tuple[Path, Path, Path], tmp_path: Path) -> None:
    src, out, _ = proven
    poke(out, HEAD, 0, b"\xff")
    report = verify(src, out, certificate=tmp_path / "other.json")
    assert not report.ok and not (tmp_path / "other.json").exists()
    assert any("no certificate" in note for note in report.notes)


@pytest.mark.parametrize("side", [0, 1], ids=["source", "out"])
@pytest.mark.parametrize("part", ["codes", "scale", "plain"])
def test_tampering_with_either_side_is_named(proven: tuple[Path, Path, Path], side: int, part: str) -> None:
    codes = ("weight_packed", "weight")[side]
    tensor = {"codes": f"{EXPERT}.w3.{codes}", "scale": f"{EXPERT}.w3.weight_scale", "plain": HEAD}[part]
    poke(proven[side], tensor, 5, b"\x05")
    report = verify_against(proven[side], proven[2])
    assert kinds(report) == {("certificate", HEAD if part == "plain" else f"{EXPERT}.w3.{codes}")}
    others = [n for n in entries(proven[2], "matrices") if not n.endswith(".0.w3")]
    assert verify_against(proven[side], proven[2], others).ok


@pytest.mark.parametrize("side", ["source", "out", "canonical"])
def test_tampering_with_the_certificate_is_named(proven: tuple[Path, Path, Path], side: str) -> None:
    entry = entries(proven[2], "matrices")[f"{EXPERT}.w2"]
    text = proven[2].read_text()
    proven[2].write_text(text.replace(entry[side]["sha256"], "0" * 64))
    results = {name: verify_against(path, proven[2]).ok for name, path in (("source", proven[0]), ("out", proven[1]))}
    assert results == {"source": side == "out", "out": side == "source"}


def test_missing_and_extra(proven: tuple[Path, Path, Path]) -> None:
    document = json.loads(proven[2].read_text())
    document["tensors"] = [t for t in document["tensors"] if t["name"] != HEAD]
    document["matrices"][0]["name"] = "gone"
    proven[2].write_text(json.dumps(document))
    found = kinds(verify_against(proven[1], proven[2]))
    assert ("extra", HEAD) in found and ("missing", "gone") in found


@pytest.mark.parametrize("name", ["nothing", f"{EXPERT}.w9"])
def test_unknown_name(proven: tuple[Path, Path, Path], name: str) -> None:
    with pytest.raises(InputError, match="knows this name"):
        verify_against(proven[1], proven[2], [name])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "truecast.certificate/1", "matrices": [{}], "tensors": []}']
)
def test_no_certificate(proven: tuple[Path, Path, Path], text: str) -> None:
    proven[2].write_text(text)
    with pytest.raises(InputError):
        verify_against(proven[1], proven[2])


def in_memory(folder: Path, name: str) -> str:
    filesystem = fsspec.filesystem("memory")
    for path in folder.iterdir():
        if path.is_file():
            filesystem.pipe_file(f"/{name}/{path.name}", path.read_bytes())
    return f"memory://{name}"


@pytest.mark.parametrize("name", [f"{EXPERT}.w1", f"{EXPERT}.w1.weight", HEAD])
def test_one_tensor_by_range_reads(
    proven: tuple[Path, Path, Path], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, out, certificate = proven
    url = in_memory(out, tmp_path.name)
    read: list[int] = []
    original: Callable[..., bytes] = MemoryFileSystem.cat_file

    def counting(
        self: MemoryFileSystem, path: str, start: int | None = None, end: int | None = None, **more: Any
    ) -> bytes:
        data = original(self, path, start=start, end=end, **more)
        read.append(len(data))
        return data

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counting)
    report = verify_against(url, certificate, [name])
    assert report.failures.kept == []
    tensor_bytes = 48 * 64 * 2 if name == HEAD else 32 * 64 // 2 + 32 * 64 // 16 + 4
    assert report.counts.bytes_read == tensor_bytes
    small = sum((out / n).stat().st_size for n in ("config.json", "model.safetensors.index.json"))
    headers = sum(int.from_bytes(p.read_bytes()[:8], "little") + 8 for p in out.glob("*.safetensors"))
    assert sum(read) == tensor_bytes + small + headers


def test_stored_tensor_of_a_bank_stands_for_all_its_matrices(tmp_path: Path) -> None:
    src, out, certificate = gpt_oss(tmp_path / "src"), tmp_path / "out", tmp_path / "certificate.json"
    convert(src, out, Target("bf16"))
    assert verify(src, out, certificate=certificate).ok
    report = verify_against(out, certificate, [f"{BANK}.gate_up_proj"])
    assert report.ok and report.counts.matrices == 6
    poke(out, f"{BANK}.gate_up_proj_bias", 3, b"\x99")
    assert kinds(verify_against(out, certificate)) == {("certificate", f"{BANK}.gate_up_proj")}
    assert verify_against(src, certificate).ok


def test_changed_values_have_a_canonical_form_of_their_own(tmp_path: Path) -> None:
    def edit(codes: U8, scales: U8) -> None:
        scales[:] = 120
        scales[3, 1] = 95
        codes[3, 16:] = 0x75

    src, out, certificate = kimi_k3(tmp_path / "src", edit=edit), tmp_path / "out", tmp_path / "certificate.json"
    convert(src, out, Target("nvfp4", "modelopt", allow_inexact=True))
    assert verify(src, out, certificate=certificate).ok
    entry = entries(certificate, "matrices")[f"{EXPERT}.w1"]
    assert entry["out"]["canonical"]["sha256"] != entry["canonical"]["sha256"]
    assert verify_against(src, certificate).ok and verify_against(out, certificate).ok


def test_values_beyond_bf16_are_canonical_in_float64(tmp_path: Path) -> None:
    def edit(codes: U8, scales: U8) -> None:
        scales[:], codes[0, 0] = 250, 0x76
        scales[0, 0] = 254

    src, out, certificate = kimi_k3(tmp_path / "src", edit=edit), tmp_path / "out", tmp_path / "certificate.json"
    convert(src, out, Target("nvfp4", "modelopt", allow_inexact=True))
    assert verify(src, out, certificate=certificate).ok
    entry = entries(certificate, "matrices")[f"{EXPERT}.w1"]
    assert entry["canonical"]["dtype"] == "F64"
    before = load_shard(src / "model-00001-of-00003.safetensors")
    codes = np.frombuffer(before[f"{EXPERT}.w1.weight_packed"][2], np.uint8)
    scale = np.frombuffer(before[f"{EXPERT}.w1.weight_scale"][2], np.uint8)
    values = e2m1.decode(packing.unpack_nibbles(codes)).astype("<f8").reshape(-1, 32)
    values = np.ldexp(values, scale.astype(int)[:, None] - 127)
    assert entry["canonical"]["sha256"] == hashlib.sha256(values.tobytes()).hexdigest()
    assert verify_against(src, certificate).ok and verify_against(out, certificate).ok
