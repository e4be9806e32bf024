"""Forged manifests, hostile certificates, and files where none should be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_failures import EXPERT, NORM, NVFP4, f32, forge, only, wide
from verify_checkpoints import Tensors, kimi_k3, load_shard, poke, rewrite

from truecast.convert import Target, convert
from truecast.errors import InputError, RefusedError, UsageError
from truecast.formats import e2m1, e4m3, packing
from truecast.verify import verify, verify_against
from truecast.verify.inexact import best_possible

SHARD = "model-00001-of-00003.safetensors"
ALLOW = Target("nvfp4", "modelopt", allow_inexact=True)


@pytest.fixture
def k3(tmp_path: Path) -> tuple[Path, Path]:
    src = kimi_k3(tmp_path / "src")
    convert(src, tmp_path / "out", NVFP4)
    return src, tmp_path / "out"


@pytest.fixture
def proven(k3: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path, Path]:
    assert verify(*k3, certificate=tmp_path / "c.json").ok
    return (*k3, tmp_path / "c.json")


def requantize(src: Path, out: Path, g: float, block: int, zero: bool) -> None:
    """Both twins anew under a forged global scale, each half block with the nearest codes under one block scale."""
    before, listed = load_shard(src / SHARD), []
    for leaf in ("w1", "w3"):
        name = f"{EXPERT}.{leaf}"
        codes = packing.unpack_nibbles(np.frombuffer(before[f"{name}.weight_packed"][2], np.uint8)).reshape(32, 4, 16)
        k = np.frombuffer(before[f"{name}.weight_scale"][2], np.uint8).astype(int).reshape(32, 2) - 127
        values = e2m1.decode(codes).astype(float) * 2.0 ** np.repeat(k, 2, 1)[:, :, None]
        step = float(e4m3.VALUES[block]) * g
        new = (codes & 8) if zero else (e2m1.encode_nearest_even(values / step) & 7) | (codes & 8)
        errors = np.square(e2m1.decode(new) * step - values).sum(axis=2)
        poke(out, f"{name}.weight", 0, packing.pack_nibbles(new.reshape(32, 64)).tobytes())
        poke(out, f"{name}.weight_scale", 0, bytes([block]) * 128)
        poke(out, f"{name}.weight_scale_2", 0, f32(g))
        for row, half in np.argwhere(errors > 0).tolist():
            error = float(errors[row, half])
            listed.append({"matrix": name, "row": row, "column": 16 * half, "squared_error": error})

    def edit(manifest: dict[str, Any]) -> None:
        manifest["target"]["inexact"] = "allow"
        manifest["inexact"] = listed

    forge(out, edit)


@pytest.mark.parametrize(
    ("g", "block", "zero", "says"),
    [
        (1.0, 0x7E, True, "could be exact"),
        (2.0**40, 0x01, True, "larger than any half block needs"),
        (2.0**-100, 0x7E, False, "clipped"),
    ],
)
def test_loss_that_a_forged_manifest_excuses(
    k3: tuple[Path, Path], g: float, block: int, zero: bool, says: str
) -> None:
    requantize(*k3, g, block, zero)
    report = verify(*k3)
    assert not report.ok and any(says in f.message for f in report.failures.kept)


def test_listed_half_block_with_a_scale_that_is_not_the_best(tmp_path: Path) -> None:
    def edit(codes: Any, scales: Any) -> None:
        wide(codes, scales)
        scales[3, 1] = 103

    src, out = kimi_k3(tmp_path / "src", edit=edit), tmp_path / "out"
    convert(src, out, ALLOW)
    assert verify(src, out).ok
    tensors = load_shard(out / SHARD)
    codes = packing.unpack_nibbles(np.frombuffer(tensors[f"{EXPERT}.w1.weight"][2], np.uint8)).reshape(32, 4, 16)[3, 3]
    poke(out, f"{EXPERT}.w1.weight", 32 * 3 + 24, packing.pack_nibbles(codes & 8).tobytes())
    poke(out, f"{EXPERT}.w1.weight_scale", 4 * 3 + 3, b"\x7e")
    error = float(np.square(e2m1.VALUES[packing.unpack_nibbles(np.full(8, 0x75, np.uint8))] * 2.0**-24).sum())
    forge(out, lambda m: m["inexact"][1].update(squared_error=error))
    assert "smaller error" in only(verify(src, out), "inexact").message


def test_global_scale_needed_by_the_twin_alone(tmp_path: Path) -> None:
    def edit(codes: Any, scales: Any) -> None:
        wide(codes, scales)
        scales[:] = np.minimum(scales, 100)

    src, out = kimi_k3(tmp_path / "src", edit=edit), tmp_path / "out"
    convert(src, out, ALLOW)
    report = verify(src, out)
    assert report.ok and report.counts.inexact_half_blocks


def test_best_possible_against_one_by_one() -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (300, 16), dtype=np.uint8)
    codes[::3] = codes[::3] & 8 | rng.choice([0, 4, 6], (100, 16))
    d = rng.integers(-14, 14, 300)
    exact, least = best_possible(codes, d)
    scales = e4m3.VALUES[1:0x7F].astype(float)
    for c, power, possible, error in zip(codes, d, exact, least, strict=True):
        value = np.abs(e2m1.VALUES[c].astype(float)) * 2.0**power
        grid = scales[:, None, None] * e2m1.VALUES[:8].astype(float)
        off = np.abs(grid - value[None, :, None]).min(axis=2)
        assert possible == bool((off == 0).all(axis=1).any())
        assert error == pytest.approx(np.square(off).sum(axis=1).min(), rel=1e-12)


@pytest.mark.parametrize("name", [NORM, f"{EXPERT}.w1.weight_scale", "nothing"])
def test_only_activation_scales_may_be_dropped(k3: tuple[Path, Path], name: str) -> None:
    forge(k3[1], lambda m: m["dropped"].update({name: "x"}))
    assert only(verify(*k3), "manifest").tensor == name


def test_dropped_plain_tensor_is_missing(k3: tuple[Path, Path]) -> None:
    manifest = (k3[1] / "truecast.json").read_bytes()
    rewrite(k3[1], lambda t: t.pop(NORM, None))
    (k3[1] / "truecast.json").write_bytes(manifest)
    forge(k3[1], lambda m: m["dropped"].update({NORM: "x"}))
    assert {f.kind for f in verify(*k3).failures.kept} == {"missing", "manifest"}


def test_certificate_overwrites_nothing(k3: tuple[Path, Path], tmp_path: Path) -> None:
    src, out = k3
    for path in (src / "config.json", src / "new.json", out / "config.json"):
        with pytest.raises(UsageError):
            verify(src, out, certificate=path)
    (tmp_path / "mine.txt").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "mine.txt", tmp_path / "pipe", tmp_path):
        with pytest.raises(RefusedError):
            verify(src, out, certificate=path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    for _ in range(2):
        assert verify(src, out, certificate=tmp_path / "c.json").ok


def test_certificate_that_the_manifest_lists(k3: tuple[Path, Path]) -> None:
    path = k3[1] / "truecast.certificate.json"
    path.write_text('{"schema": "truecast.certificate/1"}')
    forge(k3[1], lambda m: m["files"].update({path.name: {}}))
    with pytest.raises(UsageError, match="lists"):
        verify(*k3, certificate=path)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "huge", "deep", "overflow"])
def test_manifest_that_cannot_be_read(k3: tuple[Path, Path], kind: str) -> None:
    path = k3[1] / "truecast.json"
    if kind == "overflow":
        forge(k3[1], lambda m: m["blocks"].update(renormalised=float("inf")))
    elif kind == "huge":
        os.truncate(path, 300 << 30)
    else:
        path.unlink()
        make: dict[str, Callable[[], Any]] = {
            "folder": path.mkdir,
            "pipe": lambda: os.mkfifo(path),
            "link": lambda: path.symlink_to("nowhere"),
            "deep": lambda: path.write_text("[" * 100_000),
        }
        make[kind]()
    assert only(verify(*k3), "manifest").file == "truecast.json"


def test_linked_folder_is_extra(k3: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (k3[1] / "code").symlink_to(tmp_path / "code")
    assert only(verify(*k3), "extra").file == "code"


@pytest.mark.parametrize("kind", ["folder", "pipe", "huge", "deep"])
def test_certificate_that_cannot_be_read(proven: tuple[Path, Path, Path], kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("[" * 100_000)
        if kind == "huge":
            os.truncate(path, 300 << 30)
    with pytest.raises(InputError):
        verify_against(proven[1], path)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": "x"},
        {"rows": 0},
        {"cols": True},
        {"name": 3},
        {"bias": []},
        {"canonical": []},
        {"source": {"layout": "none", "sha256": ""}},
        {"out": {"tensor": [], "layout": "bf16", "sha256": ""}},
        {"out": {"tensor": "x", "layout": "bf16", "sha256": "", "entry": 0, "row_step": 0}},
        {"out": {"tensor": "x", "layout": "bf16", "sha256": "", "entry": -1}},
        {"out": {"tensor": NORM, "layout": "nvfp4-modelopt", "sha256": ""}},
        {"out": {"layout": "bf16", "sha256": ""}},
        {"out": "x"},
    ],
    ids=str,
)
def test_certificate_of_wrong_types(proven: tuple[Path, Path, Path], change: dict[str, Any]) -> None:
    document = json.loads(proven[2].read_text())
    document["matrices"][0] |= change
    proven[2].write_text(json.dumps(document))
    with pytest.raises(InputError, match="no certificate"):
        verify_against(proven[1], proven[2])


@pytest.mark.parametrize("section", ["matrices", "tensors"])
def test_certificate_with_a_name_twice(proven: tuple[Path, Path, Path], section: str) -> None:
    document = json.loads(proven[2].read_text())
    document[section].append(document[section][0])
    proven[2].write_text(json.dumps(document))
    with pytest.raises(InputError, match="two entries"):
        verify_against(proven[1], proven[2])


@pytest.mark.parametrize("place", [{"entry": 0}, {"row_step": 2}, {"transposed": True}, {"bias_tensor": NORM}], ids=str)
def test_certified_place_that_does_not_fit(tmp_path: Path, place: dict[str, Any]) -> None:
    src, out, certificate = kimi_k3(tmp_path / "src"), tmp_path / "out", tmp_path / "c.json"
    convert(src, out, Target("bf16"))
    assert verify(src, out, certificate=certificate).ok
    document = json.loads(certificate.read_text())
    for entry in document["matrices"]:
        entry["out"] |= place
    certificate.write_text(json.dumps(document))
    assert not verify_against(out, certificate).ok


def test_bias_of_half_bytes(proven: tuple[Path, Path, Path]) -> None:
    """It is no bias to any layout, so it is a tensor that nothing explains, on either side."""

    def invent(tensors: Tensors) -> None:
        if f"{EXPERT}.w1.weight" in tensors:
            tensors[f"{EXPERT}.w1.bias"] = "F4", (32,), bytes(16)

    rewrite(proven[1], invent)
    assert only(verify(*proven[:2]), "extra").tensor == f"{EXPERT}.w1.bias"
    assert {f.kind for f in verify_against(proven[1], proven[2]).failures.kept} == {"extra"}
    assert only(verify(proven[1], proven[0]), "missing").tensor == f"{EXPERT}.w1.bias"
