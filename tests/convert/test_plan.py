"""Plans from headers: accounting of every tensor, sharding, alignment, twins."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from examples.shaped import kimi_k3
from truecast.checkpoint.header import TensorInfo, alignment_of, encode_header
from truecast.checkpoint.index import encode_index
from truecast.checkpoint.source import open_checkpoint, open_shards
from truecast.convert import Target, convert, plan
from truecast.errors import InputError, UsageError

E2M1_ONE = 0x22  # two codes of value 1.0


def write(folder: Path, files: dict[str, list[tuple[str, str, tuple[int, ...], bytes]]], config: str = "{}") -> Path:
    folder.mkdir()
    for name, tensors in files.items():
        header = encode_header([(n, d, s) for n, d, s, _ in tensors], {"format": "pt"})
        (folder / name).write_bytes(header + b"".join(data for *_, data in tensors))
    if len(files) > 1:
        (folder / "model.safetensors.index.json").write_bytes(encode_index(open_shards(folder, files).tensors))
    (folder / "config.json").write_text(config)
    return folder


def mxfp4(
    name: str, rows: int, cols: int, scale: int, code: int = E2M1_ONE
) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [
        (f"{name}.weight_packed", "U8", (rows, cols // 2), bytes([code]) * (rows * cols // 2)),
        (f"{name}.weight_scale", "U8", (rows, cols // 32), bytes([scale]) * (rows * cols // 32)),
    ]


def global_scales(out: Path) -> dict[str, float]:
    written = open_checkpoint(out).tensors
    read = lambda t: (out / t.file).read_bytes()[t.start : t.end]  # noqa: E731
    return {
        t.name.removesuffix(".weight_scale_2"): float(np.frombuffer(read(t), "<f4")[0])
        for t in written.values()
        if t.name.endswith(".weight_scale_2")
    }


@pytest.mark.parametrize("name", ["kimi_k3", "gpt_oss", "deepseek_v4"])
@pytest.mark.parametrize("target", [Target("nvfp4"), Target("nvfp4", "compressed-tensors"), Target("bf16")], ids=str)
def test_every_source_tensor_is_accounted_for(sources: dict[str, Path], name: str, target: Target) -> None:
    work = plan(open_checkpoint(sources[name]), target)
    copied = {t.source.name for s in work.shards for t in s.tensors if t.source is not None}
    cast = {view.tensor.name for m in work.cast for view in m.parts.values()}
    assert copied.isdisjoint(cast)
    assert copied | cast | set(work.dropped) == set(work.source.tensors)


def test_the_planned_layout_is_the_written_one(sources: dict[str, Path], tmp_path: Path) -> None:
    work = plan(open_checkpoint(sources["kimi_k3"]), Target("nvfp4"))
    convert(sources["kimi_k3"], tmp_path / "out", Target("nvfp4"))
    for shard in work.shards:
        path = tmp_path / "out" / shard.file
        assert path.stat().st_size == work.shard_bytes(shard)
        if shard.verbatim:
            assert path.read_bytes() == (sources["kimi_k3"] / shard.verbatim).read_bytes()
        else:
            assert path.read_bytes().startswith(shard.header)


def test_kimi_k3_at_true_size(tmp_path: Path) -> None:
    """All 93 layers and true matrices, with 8 of the 896 experts; benchmarks/convert.py plans the whole."""
    kimi_k3.make(tmp_path / "k3", shape=dataclasses.replace(kimi_k3.FULL, experts=8), sparse=True)
    source = open_checkpoint(tmp_path / "k3")
    matrices = 92 * 8 * 3
    work = plan(source, Target("nvfp4"))
    assert len(work.cast) == matrices
    assert len(work.twin_groups) == matrices * 2 // 3, "w1 and w3 of an expert share a global scale"
    assert sum(len(s.tensors) for s in work.shards) == len(source.tensors) + matrices
    assert sum(s.data_bytes for s in work.shards) == source.total_bytes + matrices * (344_064 + 4)


def test_twins_in_different_shards_share_a_global_scale(tmp_path: Path) -> None:
    bank = "model.layers.1.block_sparse_moe.experts.0."
    source = write(
        tmp_path / "src",
        {
            "model-00001-of-00002.safetensors": mxfp4(bank + "w1", 4, 64, 127),
            "model-00002-of-00002.safetensors": mxfp4(bank + "w3", 4, 64, 120) + mxfp4(bank + "w2", 64, 32, 110),
        },
        json.dumps({"model_type": "kimi_k3"}),
    )
    convert(source, tmp_path / "out", Target("nvfp4"), jobs=2)
    scales = global_scales(tmp_path / "out")
    assert scales[bank + "w1"] == scales[bank + "w3"] == 2.0**-8, "k_max = 0 of w1 decides for both"
    assert scales[bank + "w2"] == 2.0 ** (110 - 127 - 8)


@pytest.mark.parametrize("leaves", [("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"), ("w1", "w3")])
def test_generic_twins(tmp_path: Path, leaves: tuple[str, ...]) -> None:
    tensors = [t for i, leaf in enumerate(leaves) for t in mxfp4(f"model.layers.0.x.{leaf}", 2, 32, 120 + i)]
    source = write(tmp_path / "src", {"model.safetensors": tensors})
    convert(source, tmp_path / "out", Target("nvfp4"))
    assert set(global_scales(tmp_path / "out").values()) == {2.0 ** (120 + len(leaves) - 1 - 127 - 8)}


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_every_tensor_starts_aligned(tmp_path: Path, rows: int) -> None:
    """Scales of an odd matrix are 2 bytes long; a float32 scalar behind them would start misaligned."""
    tensors = [t for i in range(3) for t in mxfp4(f"model.layers.{i}.x.o_proj", rows, 32, 120)]
    tensors += [("model.norm.weight", "BF16", (3,), bytes(6))]
    source = write(tmp_path / "src", {"model.safetensors": tensors})
    for dialect in ("modelopt", "compressed-tensors"):
        convert(source, tmp_path / dialect, Target("nvfp4", dialect))
        written = open_checkpoint(tmp_path / dialect)
        data_start = min(t.start for t in written.tensors.values())
        assert data_start % 8 == 0
        for tensor in written.tensors.values():
            assert (tensor.start - data_start) % alignment_of(tensor.dtype) == 0, tensor


def test_max_shard_size(sources: dict[str, Path], tmp_path: Path) -> None:
    limit = 400_000
    manifest = convert(sources["kimi_k3"], tmp_path / "out", Target("nvfp4", max_shard_bytes=limit))
    written = open_checkpoint(tmp_path / "out")
    count = len(written.shards)
    assert set(written.shards) == {f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)}
    for name in written.shards:
        tensors = [t for t in written.tensors.values() if t.file == name]
        assert sum(t.nbytes for t in tensors) <= limit or len({anchor(t) for t in tensors}) == 1
    assert manifest["tensors"] == len(written.tensors)


def anchor(tensor: TensorInfo) -> str:
    return tensor.name.rsplit(".", 1)[0]


def test_verbatim_copies_keep_their_header(sources: dict[str, Path]) -> None:
    work = plan(open_checkpoint(sources["kimi_k3"]), Target("nvfp4"))
    plain = [s for s in work.shards if s.verbatim]
    assert plain, "layer 0, the head and the vision tower hold nothing to cast"
    assert all(t.role == "copy" for s in plain for t in s.tensors)


def test_refusals(sources: dict[str, Path], tmp_path: Path) -> None:
    k3 = open_checkpoint(sources["kimi_k3"])
    with pytest.raises(UsageError, match="no target format 'int3'"):
        plan(k3, Target("int3"))
    with pytest.raises(UsageError, match="no dialect 'awq'"):
        plan(k3, Target("nvfp4", "awq"))
    with pytest.raises(UsageError, match="needs --dialect"):
        plan(k3, Target("mxfp4"))
    with pytest.raises(UsageError, match="makes no sense"):
        plan(k3, Target("bf16", activations=True))
    with pytest.raises(InputError, match="already"):
        plan(k3, Target("mxfp4", "compressed-tensors"))
    convert(sources["kimi_k3"], tmp_path / "nvfp4", Target("nvfp4"))
    with pytest.raises(UsageError, match="is nvfp4"):
        plan(open_checkpoint(tmp_path / "nvfp4"), Target("mxfp4", "gpt-oss"))
    plain = write(tmp_path / "plain", {"model.safetensors": [("a.weight", "BF16", (2, 2), bytes(8))]})
    with pytest.raises(InputError, match="nothing to cast"):
        plan(open_checkpoint(plain), Target("nvfp4"))
