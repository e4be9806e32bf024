"""The Kimi-K3 reference model against the independent float64 one, block by block and whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.k3_checkpoint import edit_config, rewrite
from tests.models.reference_k3 import Reference, read_tensors
from truecast.models import open_model
from truecast.models.generate import Resident, logits
from truecast.models.hidden import Hidden
from truecast.models.kimi_k3 import kda, mla, moe
from truecast.models.kimi_k3.attn_res import mix
from truecast.models.kimi_k3.layer import K3Layer
from truecast.models.linear import Linear
from truecast.models.rows import Rows
from truecast.models.taps import PLAIN, Taps

TOKENS = [int(t) for t in np.random.default_rng(0).integers(0, 320, 37)]
TIGHT: dict[str, Any] = {"rtol": 0, "atol": 1e-10}


def random(*shape: int, seed: int = 0, size: float = 1.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape) * size)


def load(folder: Path, layer: int) -> K3Layer:
    found: K3Layer = open_model(folder, dtype=torch.float64).load_layer(layer)  # type: ignore[assignment]
    return found


def close(ours: Tensor, wanted: Any) -> None:
    torch.testing.assert_close(ours, torch.as_tensor(wanted), **TIGHT)


@pytest.mark.parametrize("tokens", [1, 2, 16, 37])
def test_kda(k3: Path, reference: Reference, tokens: int) -> None:
    layer, x = load(k3, 1), random(tokens, 64)
    ours = kda.attention(x, layer.attention, layer.config, Rows((tokens,)), PLAIN, None)
    close(ours, reference.kda(1, x.numpy()))


def test_kda_without_a_lower_bound(own_k3: Path) -> None:
    linear = {**edit_config(own_k3)["linear_attn_config"]}
    del linear["gate_lower_bound"]
    text = edit_config(own_k3, linear_attn_config=linear)
    layer, x = load(own_k3, 1), random(37, 64, size=3)
    ours = kda.attention(x, layer.attention, layer.config, Rows((37,)), PLAIN, None)
    close(ours, Reference(read_tensors(own_k3), text).kda(1, x.numpy()))


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_mla(k3: Path, reference: Reference, size: float) -> None:
    """At a thousandth, the epsilon of the norms inside (1e-6, not rms_norm_eps) decides a third of the result."""
    layer, x = load(k3, 3), random(21, 64, size=size)
    close(mla.attention(x, layer.attention, layer.config, 3, Rows((21,)), PLAIN, None), reference.mla(3, x.numpy()))


def test_padding_enters_no_matrix_of_mla(k3: Path) -> None:
    """A calibration would take it for tokens, all zero."""

    @dataclass(frozen=True)
    class Counted:
        inside: Linear
        rows: list[int]

        def __call__(self, x: Tensor, taps: Taps) -> Tensor:
            self.rows.append(x.shape[0])
            return self.inside(x, taps)

        def weight(self) -> Tensor:
            return self.inside.weight()

        @property
        def nbytes(self) -> int:
            return self.inside.nbytes

    layer, rows = load(k3, 3), Rows((3, 9, 6))
    seen: dict[str, list[int]] = {name: [] for name in ("q_a", "q_b", "kv_a", "kv_b", "gate", "out")}
    counted = {name: Counted(getattr(layer.attention, name), seen[name]) for name in seen}
    mla.attention(random(18, 64), replace(layer.attention, **counted), layer.config, 3, rows, PLAIN, None)
    assert {name: sum(counts) for name, counts in seen.items()} == dict.fromkeys(seen, 18)


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_attn_res(k3: Path, reference: Reference, size: float) -> None:
    """At a thousandth, the norm's epsilon outweighs the mean square."""
    layer = load(k3, 3)
    sources = [random(9, 64, seed=i, size=size) for i in range(3)]
    names = ("mlp_res_norm.weight", "mlp_res_proj.weight")
    arrays = [s.numpy() for s in sources]
    wanted = reference.mix(arrays[2], arrays[:2], *(reference.layer_tensor(3, n) for n in names))
    close(mix(sources[2], sources[:2], layer.mlp_res, layer.config.eps), wanted)
    other = mix(sources[2], sources[:2], layer.mlp_res, 1e-6).numpy()
    assert size == 1 or np.abs(other - wanted).max() > 0.01 * size


def test_router(k3: Path, reference: Reference) -> None:
    """Its weights themselves: the norm after the sum hides a mistake in them."""
    layer, x = load(k3, 2), random(30, 64)
    assert isinstance(layer.feed_forward, moe.Moe)
    ids, shares = moe.route(x, layer.feed_forward, layer.config)
    order = ids.argsort(-1)
    wanted = reference.route(2, x.numpy())
    assert ids.gather(-1, order).tolist() == [[e for e, _ in row] for row in wanted]
    close(shares.gather(-1, order), [[w for _, w in row] for row in wanted])
    close(shares.sum(-1), torch.full((30,), 1.5, dtype=torch.float64))
    unbiased = torch.sigmoid(x @ layer.feed_forward.router.double().T).topk(3).indices
    assert (unbiased.sort().values != ids.sort().values).any(), "the bias changes no choice"


@pytest.mark.parametrize("text", [{}, {"moe_renormalize": False}, {"routed_scaling_factor": 0.01}])
def test_moe(own_k3: Path, text: dict[str, Any]) -> None:
    """With small sums the norm's epsilon shows whether the weights were renormalised and scaled."""
    text = edit_config(own_k3, **text)
    layer, x = load(own_k3, 2), random(30, 64, size=0.1)
    assert isinstance(layer.feed_forward, moe.Moe)
    ours = moe.moe(x, layer.feed_forward, layer.config, PLAIN)
    close(ours, Reference(read_tensors(own_k3), text).moe(2, x.numpy()))
    if text["routed_scaling_factor"] == 1.5:
        scaled = edit_config(own_k3, routed_scaling_factor=1.0, moe_renormalize=text["moe_renormalize"])
        assert np.abs(Reference(read_tensors(own_k3), scaled).moe(2, x.numpy()) - ours.numpy()).max() > 1e-6


@pytest.mark.parametrize("index", range(4))
def test_layer(k3: Path, reference: Reference, index: int) -> None:
    stream, blocks = random(19, 64), [random(19, 64, seed=1)] if index else []
    ours = load(k3, index)(Hidden(stream, tuple(blocks)), Rows((19,)))
    wanted, wanted_blocks = reference.layer(index, stream.numpy(), [b.numpy() for b in blocks])
    close(ours.stream, wanted)
    assert len(ours.snapshots) == len(wanted_blocks) == len(blocks) + (index % 2 == 0)
    assert all(torch.equal(a, torch.from_numpy(b)) for a, b in zip(ours.snapshots, wanted_blocks, strict=True))


def test_whole_model(k3: Path, reference: Reference) -> None:
    wanted = torch.from_numpy(reference.logits(TOKENS))
    spread = float(wanted.std())
    assert spread > 0.5
    tokens = torch.tensor(TOKENS)
    close(logits(open_model(k3, dtype=torch.float64), tokens), wanted)
    single = logits(open_model(k3), tokens)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), wanted, rtol=0, atol=1e-4 * spread)
    half = logits(open_model(k3, dtype=torch.bfloat16), tokens)
    assert float((half - wanted).square().mean().sqrt()) < 0.3 * spread


@pytest.mark.parametrize("cuts", [(1, 2, 20), (20, 37), (36,)])
def test_steps_with_caches_are_the_whole(k3: Path, cuts: tuple[int, ...]) -> None:
    """A prompt in pieces, then single tokens: absorbed MLA, recurrent KDA, convolution tails."""
    model = open_model(k3, dtype=torch.float64)
    session = Resident(model).session()
    ends = [*cuts, *range(cuts[-1] + 1, 38)]  # single tokens from the last cut on
    pieces = [session.logits_all(TOKENS[a:b]) for a, b in zip([0, *ends], ends, strict=False) if a < b]
    close(torch.cat(pieces), logits(model, torch.tensor(TOKENS)))


def test_layer_0_uses_no_residual_weights(own_k3: Path) -> None:
    tokens = torch.tensor(TOKENS)
    before = logits(open_model(own_k3), tokens)
    for layer, same in ((0, True), (1, False)):
        name = f"language_model.model.layers.{layer}.self_attention_res_proj.weight"
        rewrite(own_k3, name, np.full(64, 0x4040, "<u2"))
        assert torch.equal(logits(open_model(own_k3), tokens), before) is same
    names = {t.name for t in open_model(own_k3).layer_tensors(0)}
    assert not [n for n in names if "self_attention_res" in n]


def test_a_plain_kimi_linear_config_and_names_without_prefix(k3: Path, tmp_path: Path) -> None:
    import json

    from safetensors.torch import load_file, save_file

    tensors = {}
    for path in k3.glob("*.safetensors"):
        tensors |= {n.removeprefix("language_model."): t for n, t in load_file(path).items() if "lang" in n}
    save_file(tensors, tmp_path / "model.safetensors")
    text = json.loads((k3 / "config.json").read_text())["text_config"]
    (tmp_path / "config.json").write_text(json.dumps(text))
    tokens = torch.tensor(TOKENS)
    assert torch.equal(logits(open_model(tmp_path), tokens), logits(open_model(k3), tokens))


def test_documents_do_not_see_each_other(k3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed and ragged, in groups and pieces of any size, each document comes out as it does alone."""
    model = open_model(k3, dtype=torch.float64)
    lengths = (1, 20, 3, 37, 19, 18)
    tokens = torch.from_numpy(np.random.default_rng(5).integers(0, 320, sum(lengths)))
    alone = torch.cat([logits(model, piece) for piece in torch.split(tokens, lengths)])
    head = model.load_head()
    for elements in (1 << 28, 32 * 40, 32):
        monkeypatch.setattr(kda, "_ELEMENTS", elements)
        monkeypatch.setattr(mla, "_ELEMENTS", elements)
        hidden = model.embed(tokens)
        for i in range(model.layers):
            hidden = model.load_layer(i)(hidden, Rows(lengths))
        close(head.final(hidden) @ head.weight.T, alone)
