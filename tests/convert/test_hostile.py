"""What a hostile or odd checkpoint, or output folder, must not achieve."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from tests.convert.test_plan import mxfp4, write
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert
from truecast.convert.exclude import exclude_globs
from truecast.errors import InputError, RefusedError
from truecast.families import GENERIC
from truecast.verify import verify

BANK = "model.layers.0.mlp.experts."
LEAVES = ("gate_proj", "up_proj", "down_proj")


def simple(folder: Path, scale: int = 120) -> Path:
    return write(folder, {"model.safetensors": mxfp4("a.o_proj", 2, 64, scale)})


def test_a_finished_output_of_another_source_is_not_taken_for_ours(tmp_path: Path) -> None:
    one, other = simple(tmp_path / "one", 120), simple(tmp_path / "other", 121)
    (other / "config.json").write_text('{"x": 1}')
    convert(one, tmp_path / "out", Target("nvfp4"))
    (tmp_path / "out" / ".truecast" / "journal.json").unlink()
    with pytest.raises(RefusedError, match="another source"):
        convert(other, tmp_path / "out", Target("nvfp4"))


def test_a_source_file_inside_the_output_is_refused(tmp_path: Path) -> None:
    source = simple(tmp_path / "src")
    (source / ".truecast").mkdir()
    before = (source / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="lie in each other"):
        convert(source / "model.safetensors", source, Target("nvfp4"))
    assert (source / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("link", [".truecast", ".truecast/shards"])
def test_linked_folders_of_ours_are_refused(tmp_path: Path, link: str) -> None:
    source, victim, out = simple(tmp_path / "src"), tmp_path / "victim", tmp_path / "out"
    (victim / "shards").mkdir(parents=True)
    (victim / "shards" / "mine.json").write_text("{}")
    (out / link).parent.mkdir(parents=True)
    (out / link).symlink_to(victim)
    with pytest.raises(InputError, match="is a link"):
        convert(source, out, Target("nvfp4"))
    assert (victim / "shards" / "mine.json").exists()
    assert sorted(p.name for p in victim.iterdir()) == ["shards"]


def test_a_link_in_the_output_does_not_lead_auxiliary_files_away(tmp_path: Path) -> None:
    source, victim, out = simple(tmp_path / "src"), tmp_path / "victim", tmp_path / "out"
    (source / "sub").mkdir()
    (source / "sub" / "inner.txt").write_text("hello")
    victim.mkdir()
    (out / ".truecast").mkdir(parents=True)
    (out / "sub").symlink_to(victim)
    with pytest.raises(InputError, match="leads out of the output"):
        convert(source, out, Target("nvfp4"))
    assert not list(victim.iterdir())


def test_both_cards_of_a_source_travel(tmp_path: Path) -> None:
    source = simple(tmp_path / "src")
    (source / "README.md").write_text("one")
    (source / "README.source.md").write_text("two")
    convert(source, tmp_path / "out", Target("nvfp4"), card=lambda manifest: "card")
    texts = {p.name: p.read_text() for p in (tmp_path / "out").glob("README*")}
    assert texts.pop("README.md").startswith("card\n\n<!-- truecast.card/1\n"), "ours, with its seal"
    assert texts == {"README.source.md": "two", "README.source.2.md": "one"}


def test_files_of_a_linked_folder_travel_once(tmp_path: Path) -> None:
    source = simple(tmp_path / "src")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "code.py").write_text("x = 1")
    (source / "enc").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(source / "enc")
    convert(source, tmp_path / "out", Target("nvfp4"))
    assert (tmp_path / "out" / "enc" / "code.py").read_text() == "x = 1"
    assert not (tmp_path / "out" / "enc").is_symlink()


def test_weights_that_are_not_carried_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = simple(tmp_path / "src")
    (source / "vae").mkdir()
    shutil.copy(source / "model.safetensors", source / "vae" / "model.safetensors")
    open_checkpoint(source)
    assert "vae/model.safetensors is not carried along" in caplog.text


def experts(leaves: dict[str, str], dtype: str = "BF16") -> list[tuple[str, str, tuple[int, ...], bytes]]:
    found = []
    for expert, leaf in leaves.items():
        found += mxfp4(BANK + expert + "." + leaf, 64, 64, 120)
    return found


@pytest.mark.parametrize("extra", ["0.w1", "00.gate_proj", "9" * 5000 + ".gate_proj"])
def test_what_cannot_be_stacked_is_refused_not_lost(tmp_path: Path, extra: str) -> None:
    tensors = [t for leaf in LEAVES for t in mxfp4(f"{BANK}0.{leaf}", 64, 64, 120)] + mxfp4(BANK + extra, 64, 64, 121)
    source = write(tmp_path / "src", {"model.safetensors": tensors})
    with pytest.raises(InputError, match="cannot be stacked"):
        convert(source, tmp_path / "out", Target("mxfp4", "gpt-oss"))


def test_biases_of_different_dtype_are_not_stacked(tmp_path: Path) -> None:
    tensors = [t for e in "01" for leaf in LEAVES for t in mxfp4(f"{BANK}{e}.{leaf}", 64, 64, 120)]
    tensors += [
        (f"{BANK}{e}.{leaf}.bias", d, (64,), bytes(128)) for e, d in (("0", "BF16"), ("1", "F16")) for leaf in LEAVES
    ]
    source = write(tmp_path / "src", {"model.safetensors": tensors})
    with pytest.raises(InputError, match="differ in shape or bias"):
        convert(source, tmp_path / "out", Target("mxfp4", "gpt-oss"))


def test_a_sub_byte_bias_stays_a_plain_tensor(tmp_path: Path) -> None:
    tensors = [*mxfp4("a.o_proj", 2, 64, 120), ("a.o_proj.bias", "F4", (2,), b"x")]
    source = write(tmp_path / "src", {"model.safetensors": tensors})
    convert(source, tmp_path / "out", Target("nvfp4"))
    assert verify(source, tmp_path / "out").ok


def test_stacked_and_single_experts_are_not_mixed_up(tmp_path: Path) -> None:
    """A bank would store one global scale: experts that have their own keep it, in the layout with one a module."""
    per_expert = tmp_path / "ct"
    tensors = [t for i in (0, 1) for leaf in LEAVES for t in mxfp4(f"m.b.{i}.{leaf}", 64, 64, 100 + 10 * i)]
    convert(write(tmp_path / "mx", {"model.safetensors": tensors}), per_expert, Target("nvfp4", "compressed-tensors"))
    blocks = [("x.experts.down_proj_blocks", "U8", (1, 32, 1, 16), b"\x22" * 512)]
    blocks += [("x.experts.down_proj_scales", "U8", (1, 32, 1), bytes([120] * 32))]
    blocks += [("x.experts.gate_up_proj_blocks", "U8", (1, 64, 1, 16), b"\x22" * 1024)]
    blocks += [("x.experts.gate_up_proj_scales", "U8", (1, 64, 1), bytes([120] * 64))]
    single = {t.name: t for t in open_checkpoint(per_expert).tensors.values()}
    data = (per_expert / "model.safetensors").read_bytes()
    mixed = blocks + [(n, t.dtype, t.shape, data[t.start : t.end]) for n, t in single.items()]
    source = write(tmp_path / "src", {"model.safetensors": sorted(mixed, key=lambda t: t[1] != "F32")})
    convert(source, tmp_path / "out", Target("nvfp4"))
    assert verify(source, tmp_path / "out").ok


def test_names_cannot_make_the_exclude_list_hang() -> None:
    start = time.monotonic()
    exclude_globs(GENERIC, ["a." + "1." * 40 + "x"], ["a." + "1." * 14 + "y"])
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("config", ['{"a": "\\ud800"}', '{"a":' * 600 + "1" + "}" * 600])
def test_a_config_that_cannot_be_written_again_is_refused_at_once(tmp_path: Path, config: str) -> None:
    source = simple(tmp_path / "src")
    (source / "config.json").write_text(config)
    with pytest.raises(InputError, match=r"nested|surrogate"):
        convert(source, tmp_path / "out", Target("nvfp4"))
    assert not (tmp_path / "out").exists()


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    source = simple(tmp_path / "src")
    (source / os.fsdecode(b"bad\xff.txt")).write_text("x")
    with pytest.raises(InputError, match="holds what no text can"):
        convert(source, tmp_path / "out", Target("nvfp4"))


def test_an_empty_config_gets_its_block(tmp_path: Path) -> None:
    source = simple(tmp_path / "src")
    convert(source, tmp_path / "out", Target("nvfp4"))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["quant_algo"] == "NVFP4"


@pytest.mark.parametrize(
    "change",
    [{"sha256": "x"}, {"half_blocks": None}, {"inexact": 5}, {"file": "other"}, {"bytes": True}],
    ids=lambda c: next(iter(c)),
)
def test_an_edited_record_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    source = simple(tmp_path / "src")
    convert(source, tmp_path / "out", Target("nvfp4"))
    (tmp_path / "out" / "truecast.json").unlink()
    record = tmp_path / "out" / ".truecast" / "shards" / "model.safetensors.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    with pytest.raises(RefusedError, match="damaged"):
        convert(source, tmp_path / "out", Target("nvfp4"))


def test_folders_that_are_called_like_ours(tmp_path: Path) -> None:
    source, out = simple(tmp_path / "src"), tmp_path / "out"
    (source / "notes.partial").mkdir()
    (source / "notes.partial" / "a.txt").write_text("a")
    convert(source, out, Target("nvfp4"))
    (out / "model.safetensors").unlink()
    (out / ".truecast" / "shards" / "folder").mkdir()
    convert(source, out, Target("nvfp4"))
    assert verify(source, out).ok
    assert np.frombuffer((out / "notes.partial" / "a.txt").read_bytes(), np.uint8).size == 1
