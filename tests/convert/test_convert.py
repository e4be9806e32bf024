"""Whole conversions: what travels along, round trips between dialects, what is not exact."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.convert.test_plan import mxfp4, write
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert, plan, scan
from truecast.errors import InexactError
from truecast.report.card import render_card
from truecast.verify import verify


def stored(folder: Path) -> dict[str, bytes]:
    """Every tensor's bytes by name."""
    return {t.name: (folder / t.file).read_bytes()[t.start : t.end] for t in open_checkpoint(folder).tensors.values()}


def test_auxiliary_files_travel_as_real_files(sources: dict[str, Path], tmp_path: Path) -> None:
    """A hub cache is a farm of symlinks; the output holds files, and nothing points back into the source."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    for i, path in enumerate(sorted(p for p in sources["kimi_k3"].rglob("*") if p.is_file())):
        blob = blobs / str(i)
        blob.write_bytes(path.read_bytes())
        link = snapshot / path.relative_to(sources["kimi_k3"])
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (snapshot / "pytorch_model.bin").write_bytes(b"not to be carried")
    (snapshot / "assets").mkdir()
    (snapshot / "assets" / "figure.svg").write_text("<svg/>")
    manifest = convert(snapshot, tmp_path / "out", Target("nvfp4", fix_code=False), card=render_card)
    out = tmp_path / "out"
    assert not [p for p in out.rglob("*") if p.is_symlink()]
    assert (out / "assets" / "figure.svg").read_text() == "<svg/>"
    assert not (out / "pytorch_model.bin").exists()
    source_files = {p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()}
    carried = {n for n in source_files if not n.endswith((".safetensors", ".bin", ".index.json"))}
    for name in carried - {"config.json", "README.md"}:
        assert (out / name).read_bytes() == (snapshot / name).read_bytes(), name
    assert (out / "README.source.md").read_bytes() == (snapshot / "README.md").read_bytes()
    written = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert set(manifest["files"]) == {n for n in written if n != "truecast.json" and not n.startswith(".truecast/")}
    assert verify(snapshot, out).ok


def test_the_card_says_what_the_manifest_says(sources: dict[str, Path], tmp_path: Path) -> None:
    manifest = convert(sources["kimi_k3"], tmp_path / "out", Target("nvfp4"), card=render_card)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "every weight equals the source's weight exactly" in text
    assert manifest["source"]["fingerprint"] in text
    for row in manifest["classes"]:
        assert f"`{row['class']}` | {row['matrices']:,}" in text


@pytest.mark.parametrize("name", ["kimi_k3", "gpt_oss", "deepseek_v4"])
def test_dialects_round_trip(sources: dict[str, Path], tmp_path: Path, name: str) -> None:
    """modelopt -> compressed-tensors -> modelopt and back to where it was, byte for byte in every tensor."""
    a, b, c, direct = (tmp_path / x for x in ("a", "b", "c", "direct"))
    convert(sources[name], a, Target("nvfp4", "modelopt", activations=True))
    convert(a, b, Target("nvfp4", "compressed-tensors"))
    convert(sources[name], direct, Target("nvfp4", "compressed-tensors", activations=True))
    if name == "kimi_k3":
        assert stored(b) == stored(direct)
        convert(b, c, Target("nvfp4", "modelopt"))
        assert stored(c) == stored(a)
    assert verify(a, b).ok
    assert verify(sources[name], b).ok


@pytest.mark.parametrize(
    ("name", "home"), [("kimi_k3", "compressed-tensors"), ("gpt_oss", "gpt-oss"), ("deepseek_v4", "deepseek")]
)
def test_mxfp4_relayout_round_trips(sources: dict[str, Path], tmp_path: Path, name: str, home: str) -> None:
    for dialect in {"compressed-tensors", "gpt-oss", "deepseek"} - {home}:
        there, back = tmp_path / f"{dialect}", tmp_path / f"{dialect}-back"
        convert(sources[name], there, Target("mxfp4", dialect))
        assert verify(sources[name], there).ok
        convert(there, back, Target("mxfp4", home))
        if dialect == "gpt-oss":  # banks know no spelling of an expert's leaves: w1 comes back as gate_proj
            assert any(n.endswith((".gate_proj.weight", ".gate_proj.weight_packed")) for n in stored(back))
        else:
            assert verify(sources[name], back).ok
            assert stored(back) == stored(sources[name])


def test_activation_scales_are_kept_or_dropped_on_purpose(sources: dict[str, Path], tmp_path: Path) -> None:
    convert(sources["kimi_k3"], tmp_path / "a", Target("nvfp4", activations=True))
    kept = plan(open_checkpoint(tmp_path / "a"), Target("nvfp4", "compressed-tensors"))
    assert kept.activations
    assert not kept.dropped
    dropped = plan(open_checkpoint(tmp_path / "a"), Target("nvfp4", "compressed-tensors", activations=False))
    assert len(dropped.dropped) == len(dropped.cast)
    convert(tmp_path / "a", tmp_path / "b", Target("nvfp4", "compressed-tensors", activations=False))
    assert verify(tmp_path / "a", tmp_path / "b").ok


def test_activation_scales_have_no_place_in_bf16(sources: dict[str, Path], tmp_path: Path) -> None:
    convert(sources["kimi_k3"], tmp_path / "a", Target("nvfp4", activations=True))
    manifest = convert(tmp_path / "a", tmp_path / "b", Target("bf16"))
    assert len(manifest["dropped"]) == 96
    assert verify(tmp_path / "a", tmp_path / "b").ok


def wide(tmp_path: Path, low: int, code: int) -> Path:
    """Two matrices with twins apart by more than E4M3's window: k = 0 above, ``low`` below."""
    bank = "model.layers.1.block_sparse_moe.experts.0."
    tensors = mxfp4(bank + "w1", 4, 64, 127, code=0x77) + mxfp4(bank + "w3", 4, 64, 127 + low, code=code)
    return write(tmp_path / "src", {"model.safetensors": tensors}, json.dumps({"model_type": "kimi_k3"}))


def test_renormalised_blocks_stay_exact(tmp_path: Path) -> None:
    source = wide(tmp_path, -18, 0x22)  # codes 1.0 can be halved: d = -10
    manifest = convert(source, tmp_path / "out", Target("nvfp4"))
    assert manifest["blocks"]["renormalised"] == 16
    assert manifest["blocks"]["inexact"] == 0
    assert verify(source, tmp_path / "out").ok


@pytest.mark.parametrize("low, code, told", [(-15, 0x22, 16), (-14, 0x22, 0), (-15, 0x00, 0)])
def test_subnormal_block_scales_over_weights_are_told(tmp_path: Path, low: int, code: int, told: int) -> None:
    source = wide(tmp_path, low, code)
    manifest = convert(source, tmp_path / "out", Target("nvfp4"), card=render_card)
    assert manifest["blocks"]["inexact"] == 0
    notes = [note for note in manifest["notes"] if "subnormal" in note]
    card = (tmp_path / "out" / "README.md").read_text()
    if not told:
        assert not notes and "Marlin, which" not in card
        return
    (note,) = notes
    assert f": {told}, in 1 of the matrices: " in note and "experts.0.w3 (16)" in note and "MXFP4 form" in note
    assert note in card


def test_a_loss_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = wide(tmp_path, -18, 0x11)  # codes 0.5 cannot be halved
    with pytest.raises(InexactError, match=r"16 half blocks cannot be exact in nvfp4-modelopt"):
        convert(source, tmp_path / "out", Target("nvfp4"))
    assert not (tmp_path / "out").exists()


def test_an_allowed_loss_is_listed(tmp_path: Path) -> None:
    source = wide(tmp_path, -18, 0x11)
    found = scan(plan(open_checkpoint(source), Target("nvfp4")))
    manifest = convert(source, tmp_path / "out", Target("nvfp4", allow_inexact=True), card=render_card)
    assert found.inexact_half_blocks == manifest["blocks"]["inexact"] == len(manifest["inexact"]) == 16
    entry = manifest["inexact"][0]
    assert entry["matrix"].endswith("experts.0.w3")
    assert (entry["row"], entry["column"], entry["source_exponent"]) == (0, 0, -18)
    # 0.5 * 2^-18 under m = -8 is half of the smallest product 0.5 * 2^-9 * 2^-8: rounds to zero (ties to even)
    assert entry["squared_error"] == 16 * (2.0**-19) ** 2
    result = verify(source, tmp_path / "out")
    assert result.ok
    assert len(result.inexact) == 16
    assert "Not exact throughout" in (tmp_path / "out" / "README.md").read_text()


def test_a_global_scale_that_has_no_reciprocal(tmp_path: Path) -> None:
    """A multiplier that is no power of two cannot become a divisor exactly: refused, or nearest and said so."""
    source = tmp_path / "src"
    convert(write(tmp_path / "mx", {"model.safetensors": mxfp4("a.o_proj", 2, 64, 120)}), source, Target("nvfp4"))
    shard = source / "model.safetensors"
    data = bytearray(shard.read_bytes())
    where = open_checkpoint(source).tensors["a.o_proj.weight_scale_2"]
    data[where.start : where.end] = np.float32(0.001).tobytes()
    shard.write_bytes(data)
    for name in ("truecast.json", ".truecast/journal.json"):
        (source / name).unlink()
    with pytest.raises(InexactError, match="cannot be exact"):
        convert(source, tmp_path / "out", Target("nvfp4", "compressed-tensors"))
    with pytest.raises(InexactError, match="elements cannot be exact in bf16"):
        convert(source, tmp_path / "out", Target("bf16"))
    manifest = convert(source, tmp_path / "out", Target("bf16", allow_inexact=True))
    assert manifest["inexact_matrices"]
    assert verify(source, tmp_path / "out").ok


def test_large_values_are_warned_of(tmp_path: Path) -> None:
    source = write(tmp_path / "src", {"model.safetensors": mxfp4("a.o_proj", 2, 64, 253, code=0x11)})
    assert scan(plan(open_checkpoint(source), Target("nvfp4"))).near_overflow == ["a.o_proj"]
    convert(source, tmp_path / "out", Target("nvfp4"))
    assert verify(source, tmp_path / "out").ok


@pytest.mark.parametrize("to", ["nvfp4", "fp8", "w4afp8"])
def test_records_of_an_earlier_run_give_the_same_manifest(tmp_path: Path, to: str) -> None:
    """What the journal remembers of shards that were finished before a kill stands in the manifest byte for byte."""
    bank = "model.layers.1.block_sparse_moe.experts.0."
    tensors = mxfp4(bank + "w1", 4, 128, 127, code=0x77) + mxfp4(bank + "w3", 4, 128, 109, code=0x11)
    source = write(tmp_path / "src", {"model.safetensors": tensors}, json.dumps({"model_type": "kimi_k3"}))
    target, out = Target(to, allow_inexact=True), tmp_path / "out"
    convert(source, out, target, card=render_card)
    files = {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()}
    (out / "truecast.json").unlink()
    (out / "README.md").unlink()
    convert(source, out, target, card=render_card)
    assert {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()} == files
