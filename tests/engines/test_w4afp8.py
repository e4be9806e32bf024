"""SGLang 0.5.20's own constructors and loaders take our W4AFP8 form of Kimi-K3: every byte where it belongs.

The released reader drops the config's ignore list; what is built here honours it, as every patched engine does. What
the released one does instead is written down below too.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines import w4afp8_checkpoint
from tests.engines.sglang_k3 import Runtime
from tests.engines.w4afp8_checkpoint import SHAPE, Tensors, load

PREFIX = "language_model."
RANKS = [(gpus, tp, rank) for gpus, tp in ((1, 1), (2, 1), (2, 2), (4, 2)) for rank in range(gpus)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return w4afp8_checkpoint.make(tmp_path_factory.mktemp("k3") / "w4afp8")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Tensors:
    return load(folder)


@pytest.fixture(scope="module")
def config(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return document


@pytest.fixture(scope="module")
def sglang(sglang_wheel: zipfile.ZipFile) -> Runtime:
    return Runtime(sglang_wheel)


def honouring(sglang: Runtime, config: dict[str, Any]) -> Any:
    return sglang.W4AFp8Config(ignored_layers=config["quantization_config"]["ignored_layers"])


def built(sglang: Runtime, config: dict[str, Any], gpus: int, tp: int, rank: int) -> Any:
    sglang.on_rank(rank, gpus, tp)
    return sglang.model(config, honouring(sglang, config))


class Shards:
    """What one rank must hold of the checkpoint, worked out from the names alone."""

    def __init__(self, checkpoint: Tensors, gpus: int, tp: int, rank: int) -> None:
        self.tensors, self.gpus, self.tp, self.rank = checkpoint, gpus, tp, rank

    def cut(self, name: str, axis: int) -> torch.Tensor:
        return self.tensors[PREFIX + name].chunk(self.gpus, axis)[self.rank]

    def layer(self, number: int) -> Tensors:
        path = f"model.layers.{number}."
        both = ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm",
                "self_attention_res_proj", "mlp_res_proj")  # fmt: skip
        found = {f"{path}{name}.weight": self.tensors[f"{PREFIX}{path}{name}.weight"] for name in both}
        found |= self.mla(f"{path}self_attn.") if SHAPE.is_mla(number) else self.kda(f"{path}self_attn.")
        if number == 0:
            return found | self.mlp(f"{path}mlp.", f"{path}mlp.")
        runtime, stored = f"{path}mlp.", f"{path}block_sparse_moe."
        found |= self.mlp(f"{runtime}shared_experts.", f"{stored}shared_experts.")
        whole = ("gate.weight", "gate.e_score_correction_bias", "routed_expert_down_proj.weight",
                 "routed_expert_norm.weight", "routed_expert_up_proj.weight")  # fmt: skip
        return found | {runtime + n: self.tensors[PREFIX + stored + n] for n in whole} | self.bank(runtime, stored)

    def kda(self, path: str) -> Tensors:
        wide = [f"{path}{leaf}_proj." for leaf in "qkvg"]
        kernels = [f"{path}{leaf}_conv1d.weight" for leaf in "qkv"]
        found = {
            f"{path}fused_qkvg_proj.{part}": torch.cat([self.cut(name + part, 0) for name in wide])
            for part in ("weight", "weight_scale_inv")
        }
        found |= {f"{path}{name}": self.cut(path + name, 0) for name in ("b_proj.weight", "f_b_proj.weight", "dt_bias")}
        found |= {f"{path}{n}": self.tensors[PREFIX + path + n] for n in ("f_a_proj.weight", "o_norm.weight")}
        found |= {
            f"{path}o_proj.{part}": self.cut(f"{path}o_proj.{part}", 1) for part in ("weight", "weight_scale_inv")
        }
        found[f"{path}qkv_conv1d.weight"] = torch.cat([self.cut(name, 0) for name in kernels])
        decay = self.tensors[f"{PREFIX}{path}A_log"][: SHAPE.heads].chunk(self.gpus)[self.rank]
        return found | {f"{path}A_log": decay.view(1, 1, -1, 1)}

    def mla(self, path: str) -> Tensors:
        low_rank = [self.tensors[f"{PREFIX}{path}{name}.weight"] for name in ("q_a_proj", "kv_a_proj_with_mqa")]
        found = {f"{path}fused_qkv_a_proj_with_mqa.weight": torch.cat(low_rank)}
        for name, axis in (("q_b_proj", 0), ("kv_b_proj", 0), ("g_proj", 0), ("o_proj", 1)):
            for part in ("weight", "weight_scale_inv")[: 2 if name in ("g_proj", "o_proj") else 1]:
                found[f"{path}{name}.{part}"] = self.cut(f"{path}{name}.{part}", axis)
        norms = ("q_a_layernorm.weight", "kv_a_layernorm.weight")
        return found | {path + name: self.tensors[PREFIX + path + name] for name in norms}

    def mlp(self, runtime: str, stored: str) -> Tensors:
        gate_up = torch.cat([self.cut(f"{stored}{name}_proj.weight", 0) for name in ("gate", "up")])
        return {f"{runtime}gate_up_proj.weight": gate_up,
                f"{runtime}down_proj.weight": self.cut(f"{stored}down_proj.weight", 1)}  # fmt: skip

    def bank(self, runtime: str, stored: str) -> Tensors:
        local = SHAPE.experts // (self.gpus // self.tp)
        first, part = self.rank // self.tp * local, self.rank % self.tp

        def cut(expert: int, leaf: str, kind: str, axis: int) -> torch.Tensor:
            return self.tensors[f"{PREFIX}{stored}experts.{expert}.{leaf}.{kind}"].chunk(self.tp, axis)[part]

        experts = range(first, first + local)
        found = {}
        for kind in ("weight", "weight_scale_inv"):
            up = [torch.cat([cut(e, leaf, kind, 0) for leaf in ("w1", "w3")]) for e in experts]
            found[f"{runtime}experts.w13_{kind}"] = torch.stack(up)
            found[f"{runtime}experts.w2_{kind}"] = torch.stack([cut(e, "w2", kind, 1) for e in experts])
        scales = {
            leaf: torch.stack([self.tensors[f"{PREFIX}{stored}experts.{e}.{leaf}.input_scale"] for e in experts])
            for leaf in ("w1", "w3", "w2")
        }
        found[f"{runtime}experts.w13_input_scale"] = torch.stack([scales["w1"], scales["w3"]], 1)
        return found | {f"{runtime}experts.w2_input_scale": scales["w2"]}


@pytest.mark.parametrize(("gpus", "tp", "rank"), RANKS)
def test_every_parameter_gets_its_bytes(
    sglang: Runtime, config: dict[str, Any], checkpoint: Tensors, gpus: int, tp: int, rank: int
) -> None:
    model = built(sglang, config, gpus, tp, rank)
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if not name.endswith("input_scale"):  # the loader takes what it finds there, if not 1, for a twin's
            parameter.data.view(torch.uint8).fill_(0x5A)
    model.load_weights(sglang.renamed(checkpoint.items()))
    shards = Shards(checkpoint, gpus, tp, rank)
    expected = {name.removeprefix(PREFIX): t for name, t in checkpoint.items() if name.startswith(PREFIX)}
    expected = {name: t for name, t in expected.items() if ".layers." not in name}
    for layer in range(SHAPE.layers):
        expected |= shards.layer(layer)
    assert parameters.keys() == expected.keys()
    for name, parameter in parameters.items():
        want = expected[name]
        # group scales go through float32 and activation scales through BF16; nothing else changes its type
        kept = name.endswith(("experts.w13_weight_scale_inv", "experts.w2_weight_scale_inv", "_input_scale"))
        assert parameter.dtype == want.dtype or kept, name
        got = parameter.data.to(want.dtype)
        assert torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8)), name


def test_no_tensor_of_the_checkpoint_is_passed_over(
    sglang: Runtime, config: dict[str, Any], checkpoint: Tensors
) -> None:
    model = built(sglang, config, 1, 1, 0)
    model.post_load_weights = lambda: None  # once for every tensor would only take time
    parameters = {name for name, _ in model.named_parameters()}
    for name, tensor in sglang.renamed(checkpoint.items()):
        taken = model.load_weights([(name, tensor)])
        assert taken and taken <= parameters, name


def test_exactly_the_chosen_projections_are_fp8(sglang: Runtime, config: dict[str, Any]) -> None:
    model = built(sglang, config, 1, 1, 0)
    kinds: dict[str, set[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, sglang.LinearBase) and "conv1d" not in name:
            kinds.setdefault(type(module.quant_method).__name__, set()).add(name.split(".", 3)[-1])
    assert kinds["Fp8LinearMethod"] == {"self_attn.fused_qkvg_proj", "self_attn.o_proj", "self_attn.g_proj"}
    assert "self_attn.fused_qkv_a_proj_with_mqa" in kinds["UnquantizedLinearMethod"]
    assert not kinds["Fp8LinearMethod"] & kinds["UnquantizedLinearMethod"]


@pytest.mark.parametrize("tp", [1, 2])
def test_bf16_group_scales_of_both_signs_reach_the_kernel_unchanged(
    sglang: Runtime, config: dict[str, Any], checkpoint: Tensors, tp: int
) -> None:
    """The kernel's order is ``[E, G/a, N*a]`` with a = 4 where the groups divide by four, else 1."""
    model = built(sglang, config, tp, tp, 0)
    model.load_weights(sglang.renamed(checkpoint.items()))
    bank = model.model.layers[1].mlp.experts
    stored = {name: getattr(bank, f"{name}_weight_scale_inv").data.clone() for name in ("w13", "w2")}
    bank.quant_method.process_weights_after_loading(bank)
    for name, before in stored.items():
        after = getattr(bank, f"{name}_weight_scale_inv")
        experts, rows, groups = before.shape
        step = 4 if groups % 4 == 0 else 1
        order = after.reshape(experts, groups // step, rows, step).permute(0, 2, 1, 3).reshape(before.shape)
        assert after.dtype == torch.bfloat16
        assert torch.equal(order.float(), before)
        assert (before < 0).any() and (before > 0).any()
        leaf = {"w13": "w1", "w2": "w2"}[name]
        activation = checkpoint[f"{PREFIX}model.layers.1.block_sparse_moe.experts.0.{leaf}.input_scale"]
        assert getattr(bank, f"{name}_input_scale").tolist() == [activation.item()]


def test_twins_share_an_activation_scale_that_bf16_holds(
    sglang: Runtime, config: dict[str, Any], checkpoint: Tensors
) -> None:
    def given(first: float, third: float) -> None:
        model = built(sglang, config, 1, 1, 0)
        path = "model.layers.1.mlp.experts.0."
        model.post_load_weights = lambda: None
        model.load_weights(
            [(f"{path}w1.input_scale", torch.tensor(first)), (f"{path}w3.input_scale", torch.tensor([third]))]
        )
        assert model.model.layers[1].mlp.experts.w13_input_scale[0].tolist() == [third, third]

    given(0.375, 0.375)
    with pytest.raises(ValueError, match="must be equal"):
        given(0.375, 0.5)
    with pytest.raises(ValueError, match="must be equal"):
        given(0.3, 0.3)  # the parameter is BF16, and 0.3 is not


def test_the_released_reader_drops_the_ignore_list(
    sglang: Runtime, config: dict[str, Any], checkpoint: Tensors
) -> None:
    stock = sglang.W4AFp8Config.from_config(config["quantization_config"])
    assert config["quantization_config"]["ignored_layers"] and stock.ignored_layers == []
    sglang.on_rank(0, gpus=2, tp=1)
    with pytest.raises(ValueError, match="output_partition_size"):
        sglang.model(config, stock)
    sglang.on_rank(0, gpus=1, tp=1)
    with pytest.raises(ValueError, match="Downcasting not allowed"):
        sglang.model(config, stock).load_weights(sglang.renamed(checkpoint.items()))
