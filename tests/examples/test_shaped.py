from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.shaped import deepseek_v4, gpt_oss, kimi_k3
from examples.shaped.contents import Spec
from examples.shaped.shards import library_order
from truecast.checkpoint.source import Checkpoint, open_checkpoint
from truecast.errors import RefusedError
from truecast.families import find_family
from truecast.layouts.recognise import recognise

MAKERS = {"kimi_k3": kimi_k3, "gpt_oss": gpt_oss, "deepseek_v4": deepseek_v4}


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("shaped") / request.param
    MAKERS[request.param].make(out)
    return request.param, out


def values(checkpoint: Checkpoint, name: str) -> NDArray[np.uint8]:
    tensor = checkpoint.tensors[name]
    file = checkpoint.opener(tensor.file)
    try:
        return np.frombuffer(file.read(tensor.start, tensor.end), dtype=np.uint8)
    finally:
        file.close()


def tree(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def test_opens_and_index_agrees(made: tuple[str, Path]) -> None:
    family, out = made
    checkpoint = open_checkpoint(out)  # raises where index and headers differ
    assert checkpoint.index is not None
    assert checkpoint.index["metadata"] == {"total_size": checkpoint.total_bytes}
    assert find_family(checkpoint.config, checkpoint.tensors).name == family


def test_every_expert_is_recognised_and_nothing_else(made: tuple[str, Path]) -> None:
    family, out = made
    contents = recognise(open_checkpoint(out).tensors)
    shape = {"kimi_k3": kimi_k3.K3Shape(), "gpt_oss": gpt_oss.GptOssShape(), "deepseek_v4": deepseek_v4.V4Shape()}[
        family
    ]
    layers = {"kimi_k3": shape.layers - 1, "gpt_oss": shape.layers, "deepseek_v4": shape.layers + 1}[family]
    assert len(contents.matrices) == layers * shape.experts * 3
    assert all("experts." in name and "shared" not in name for name in contents.matrices)
    assert len(contents.layouts) == 1


def test_contents_are_plausible(made: tuple[str, Path]) -> None:
    _, out = made
    checkpoint = open_checkpoint(out)
    seen: Counter[int] = Counter()
    for matrix in recognise(checkpoint.tensors).matrices.values():
        codes, scales = matrix.codes.tensor.name, matrix.scale.tensor.name
        packed, scale = values(checkpoint, codes).reshape(-1, 16), values(checkpoint, scales)
        assert ((packed & 0x77).any(axis=-1) == (scale != 0)).all()  # byte 0 exactly where a block is all zero
        seen.update(scale.tolist())
    live = [byte for byte in seen if byte]
    assert min(live) >= 116 and max(live) <= 125
    assert seen[0] > 0
    for tensor in checkpoint.tensors.values():
        if tensor.dtype == "F8_E4M3":
            assert not np.isin(values(checkpoint, tensor.name), (0x7F, 0xFF)).any()


def test_seed_decides_the_bytes(made: tuple[str, Path], tmp_path: Path) -> None:
    family, out = made
    MAKERS[family].make(tmp_path / "again")
    MAKERS[family].make(tmp_path / "other", seed=1)
    assert tree(tmp_path / "again") == tree(out)
    other = tree(tmp_path / "other")
    changed = {name for name in other if other[name] != tree(out)[name]}
    assert changed == {p.name for p in out.glob("*.safetensors")}


def test_refuses_a_folder_in_use(made: tuple[str, Path]) -> None:
    family, out = made
    with pytest.raises(RefusedError, match="not empty"):
        MAKERS[family].make(out)


@pytest.mark.parametrize(
    ("maker", "tensors", "total_bytes", "shards", "first", "last"),
    [
        (kimi_k3, 497_220, 1_560_860_324_864, 96, "model-00001-of-000096", "model-00096-of-000096"),
        (gpt_oss, 459, 13_761_264_768, 3, "model-00000-of-00002", "model-00002-of-00002"),
        (deepseek_v4, 69_187, 159_609_485_896, 46, "model-00001-of-00046", "model-00046-of-00046"),
    ],
    ids=list(MAKERS),
)
def test_full_size(
    maker: ModuleType,
    tensors: int,
    total_bytes: int,
    shards: int,
    first: str,
    last: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    full = request.getfixturevalue("full_k3") if maker is kimi_k3 else tmp_path / "full"
    if maker is not kimi_k3:
        maker.make(full, shape=maker.FULL, sparse=True)
    checkpoint = open_checkpoint(full)
    assert len(checkpoint.tensors) == tensors
    assert checkpoint.total_bytes == total_bytes
    names = sorted(checkpoint.shards)
    assert (len(names), names[0], names[-1]) == (shards, f"{first}.safetensors", f"{last}.safetensors")
    if maker is kimi_k3:
        check_k3_files(checkpoint, full)


def check_k3_files(checkpoint: Checkpoint, out: Path) -> None:
    """Sizes that are known of the released files."""
    assert checkpoint.shards["model-00002-of-000096.safetensors"] == 16_990_911_504
    assert sum(checkpoint.shards.values()) == 1_560_936_091_448
    assert (out / "model.safetensors.index.json").stat().st_size == 59_764_096
    second = [t for t in checkpoint.tensors.values() if t.file == "model-00002-of-000096.safetensors"]
    assert second[0].start == 818_704
    leaves = [t.name.removeprefix("language_model.model.layers.1.") for t in second]
    assert leaves[:3] == ["block_sparse_moe.gate.e_score_correction_bias", "self_attn.A_log", "self_attn.dt_bias"]
    expert = leaves.index("block_sparse_moe.experts.0.w1.weight_packed")
    parts = ("w1.weight_packed", "w1.weight_scale", "w2.weight_packed", "w2.weight_scale")
    assert leaves[expert : expert + 4] == [f"block_sparse_moe.experts.0.{part}" for part in parts]
    shapes = {t.name: (t.dtype, t.shape) for t in checkpoint.tensors.values()}
    layer = "language_model.model.layers."
    assert shapes[f"{layer}92.block_sparse_moe.experts.895.w2.weight_scale"] == ("U8", (3584, 96))
    assert shapes[f"{layer}91.self_attn.q_b_proj.weight"] == ("BF16", (18432, 1536))
    assert shapes[f"{layer}90.self_attn.A_log"] == ("F32", (128,))


def test_k3_name_classes(tmp_path: Path) -> None:
    kimi_k3.make(tmp_path / "k3", sparse=True)
    names = open_checkpoint(tmp_path / "k3").tensors
    assert len({re.sub(r"\.\d+(?=\.)", ".N", name) for name in names}) == 59  # layers, experts, blocks folded
    text = json.loads((tmp_path / "k3" / "config.json").read_text())["text_config"]
    assert text["linear_attn_config"]["full_attn_layers"] == [4, 5]
    assert text["quantization_config"]["format"] == "mxfp4-pack-quantized"


def test_k3_layer_pattern_of_the_release() -> None:
    mla = [layer for layer in range(93) if kimi_k3.FULL.is_mla(layer)]
    assert mla == [*range(3, 88, 4), 91, 92]
    assert len(mla) == 24


def test_k3_a_log_ends_in_zeros(tmp_path: Path) -> None:
    kimi_k3.make(tmp_path / "k3")
    checkpoint = open_checkpoint(tmp_path / "k3")
    a_log = values(checkpoint, "language_model.model.layers.0.self_attn.A_log").view(np.float32)
    heads = kimi_k3.K3Shape().heads
    assert (a_log[:heads] > 0).all()
    assert not a_log[heads:].any()


def test_deepseek_layers_differ_as_released(tmp_path: Path) -> None:
    deepseek_v4.make(tmp_path / "v4")
    checkpoint = open_checkpoint(tmp_path / "v4")
    kinds = {n.removeprefix("layers.") for n in checkpoint.tensors if n.endswith(("tid2eid", "gate.bias", ".ape"))}
    assert {"0.ffn.gate.tid2eid", "3.ffn.gate.bias", "2.attn.indexer.compressor.ape", "3.attn.compressor.ape"} <= kinds
    assert "0.ffn.gate.bias" not in kinds and "3.attn.indexer.compressor.ape" not in kinds
    table = values(checkpoint, "layers.0.ffn.gate.tid2eid").view(np.int64).reshape(512, 2)
    assert ((table >= 0) & (table < 8)).all() and (table[:, 0] != table[:, 1]).all()


def test_order_is_that_of_the_safetensors_library(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    dtypes = {
        "U8": torch.uint8,
        "I8": torch.int8,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E8M0": torch.float8_e8m0fnu,
        "BF16": torch.bfloat16,
        "F32": torch.float32,
        "I64": torch.int64,
    }
    specs = [Spec(f"{name}{i}", dtype, (2,)) for i, dtype in enumerate(dtypes) for name in "ba"]
    save_file(
        {s.name: torch.zeros(2, dtype=torch.uint8).to(dtypes[s.dtype]) for s in specs}, tmp_path / "x.safetensors"
    )
    stored = open_checkpoint(tmp_path / "x.safetensors").tensors
    assert list(stored) == [spec.name for spec in library_order(specs)]
