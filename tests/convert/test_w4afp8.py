"""``--to w4afp8``: every byte that is written, against decoders that share nothing with truecast."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.convert import decoding
from tests.convert.decoding import Stored, load
from tests.convert.w4afp8_sources import EXPERT, LEAVES, experts, make_all, one_file, packed, plain
from truecast.casts import int4
from truecast.convert import Target, convert
from truecast.errors import InexactError, InputError, UsageError
from truecast.report.card import render_card

FAMILIES = ("kimi_k3", "deepseek_v4", "gpt_oss", "generic")
DIALECTS = ("sglang", "compressed-tensors")

FP8 = {
    "kimi_k3": {
        f"language_model.model.layers.{layer}.self_attn.{leaf}_proj"
        for layer in range(5)
        for leaf in ("go" if layer in (3, 4) else "qkvgo")  # MLA has neither q_proj nor k_proj
    },
    "deepseek_v4": set(),  # FP8 already, under names of its own
    "gpt_oss": {f"model.layers.{layer}.self_attn.o_proj" for layer in range(2)},  # k and v have 32 rows
    "generic": {f"model.layers.0.self_attn.{leaf}_proj" for leaf in "qkvo"} | {"model.layers.1.self_attn.o_proj"},
}
"""What becomes FP8: what the engine takes, in whole blocks, fused projections together."""

Made = Callable[..., Path]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The folder of a source (no dialect), or of its W4AFP8 form. Converted once, never changed."""
    folder = tmp_path_factory.mktemp("w4afp8")
    sources = make_all(folder / "sources")

    @functools.cache
    def get(family: str, dialect: str = "", attention: str | None = None) -> Path:
        if not dialect:
            return sources[family]
        out = folder / f"{family}-{dialect}-{attention}"
        convert(sources[family], out, Target("w4afp8", dialect, attention=attention), card=render_card)
        return out

    return get


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "truecast.json").read_text())


def raw(tensor: Stored) -> tuple[str, tuple[int, ...], bytes]:
    return tensor.dtype, tensor.shape, tensor.data


def source_name(module: str, tensors: dict[str, Stored]) -> set[str]:
    """Tensors of the source that a packed matrix came from."""
    parent, _, leaf = module.rpartition(".")
    bank = parent.rpartition(".")[0] + (".down_proj" if leaf == "down_proj" else ".gate_up_proj")
    names = {f"{module}.{s}" for s in ("weight_packed", "weight_scale", "weight", "scale")}
    names |= {f"{bank}_{s}" for s in ("blocks", "scales", "bias")}
    return names & tensors.keys()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_names_dtypes_and_shapes(made: Made, family: str, dialect: str) -> None:
    """Every tensor of the output is one of the layout's parts, or the source's tensor byte for byte; none is lost."""
    source, out = load(made(family)), load(made(family, dialect))
    matrices = decoding.mxfp4_sources(source)
    assert matrices
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for module, (codes, _) in matrices.items():
        rows, cols = codes.shape[0], codes.shape[1] * 2
        if dialect == "sglang":
            expected[f"{module}.weight"] = "I8", (rows, cols // 2)
            expected[f"{module}.weight_scale_inv"] = "BF16", (rows, cols // 128)
            expected[f"{module}.input_scale"] = "F32", ()
        else:
            expected[f"{module}.weight_packed"] = "I32", (rows, cols // 8)
            expected[f"{module}.weight_scale"] = "BF16", (rows, cols // 128)
            expected[f"{module}.weight_shape"] = "I64", (2,)
        if family == "gpt_oss":
            expected[f"{module}.bias"] = "BF16", (rows,)
    for module in FP8[family] if dialect == "sglang" else ():
        rows, cols = source[f"{module}.weight"].shape
        expected[f"{module}.weight"] = "F8_E4M3", (rows, cols)
        expected[f"{module}.weight_scale_inv"] = "F32", (rows // 128, cols // 128)
    gone = {name for module in matrices for name in source_name(module, source)}
    kept = {name: tensor for name, tensor in source.items() if name not in gone | expected.keys()}
    assert {n: (t.dtype, t.shape) for n, t in out.items() if n in expected} == expected
    assert out.keys() == expected.keys() | kept.keys()
    assert [
        n
        for n in kept
        if (out[n].dtype, out[n].shape, out[n].data) != (source[n].dtype, source[n].shape, source[n].data)
    ] == []


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_codes_and_scales_are_those_of_the_cast(made: Made, family: str, dialect: str) -> None:
    source, out = load(made(family)), load(made(family, dialect))
    figures = manifest_of(made(family, dialect))["int4"]["matrices"]
    matrices = decoding.mxfp4_sources(source)
    assert figures.keys() == matrices.keys()
    for module, (codes, scales) in matrices.items():
        cast = int4.quantize(codes, scales)
        assert np.array_equal(decoding.int4_codes(out, module), signed(decoding.nibbles(cast.codes)))
        suffix = "weight_scale_inv" if dialect == "sglang" else "weight_scale"
        stored = out[f"{module}.{suffix}"].array
        assert np.array_equal(stored.view(np.uint16), cast.scales)
        values, result = decoding.mxfp4(codes, scales), decoding.int4(out, module)
        groups = ((values - result) ** 2).reshape(len(values), -1, 128).sum(axis=2)
        said = figures[module]
        assert said["squared_error"] == pytest.approx(groups.sum(), rel=1e-12)
        assert said["squared_sum"] == pytest.approx((values**2).sum(), rel=1e-12)
        assert 0 < said["squared_error"] < 0.02 * said["squared_sum"]  # some 20 dB
        assert said["groups"] == groups.size
        assert said["exact_groups"] == (groups == 0).sum()
        assert said["zero_groups"] == (~(values != 0).reshape(len(values), -1, 128).any(axis=2)).sum()
        assert said["negative_scales"] == (stored.astype(np.float32) < 0).sum()
        if dialect == "compressed-tensors":
            assert tuple(out[f"{module}.weight_shape"].array) == values.shape
        else:
            assert out[f"{module}.input_scale"].array == 1.0
        if family == "gpt_oss":
            leaf, expert = module.rpartition(".")[2], int(module.split(".")[-2])
            bank = source[
                f"{module.rpartition('.')[0].rpartition('.')[0]}.{'down' if leaf == 'down_proj' else 'gate_up'}_proj_bias"
            ]
            first = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2), "down_proj": slice(None)}[leaf]
            assert out[f"{module}.bias"].data == bank.array[expert, first].tobytes()


def signed(four: Any) -> Any:
    """Two's complement of four bits."""
    return (four.astype(np.int64) ^ 8) - 8


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_in_fp8_blocks(made: Made, family: str) -> None:
    """Scale amax / 448 in float32, codes the nearest of E4M3 to the float32 quotient; the manifest has the error."""
    source, out = load(made(family)), load(made(family, "sglang"))
    figures = manifest_of(made(family, "sglang"))["fp8"]["matrices"]
    assert figures.keys() == FP8[family]
    for module in FP8[family]:
        values = source[f"{module}.weight"].array.astype(np.float32)
        codes, scales = out[f"{module}.weight"].array, out[f"{module}.weight_scale_inv"].array
        for down, across in np.ndindex(scales.shape):
            at = slice(128 * down, 128 * down + 128), slice(128 * across, 128 * across + 128)
            assert scales[down, across] == np.abs(values[at]).max() / np.float32(448)
            wanted = (values[at] / scales[down, across]).astype(ml_dtypes.float8_e4m3fn)
            assert np.array_equal(codes[at].view(np.uint8), wanted.view(np.uint8))
        error = ((values - decoding.fp8(out, module)) ** 2).sum()
        assert figures[module] == {
            "squared_error": pytest.approx(error, rel=1e-12),
            "squared_sum": pytest.approx((values.astype(np.float64) ** 2).sum(), rel=1e-12),
        }


@pytest.mark.parametrize(("family", "dialect"), [(f, "sglang") for f in FAMILIES] + [("kimi_k3", "compressed-tensors")])
def test_attention_bf16_touches_nothing_but_the_experts(made: Made, family: str, dialect: str) -> None:
    source, out = load(made(family)), load(made(family, dialect, "bf16"))
    assert [n for n in out if n in source and not n.endswith("weight_scale") and "experts." not in n
            and (out[n].dtype, out[n].data) != (source[n].dtype, source[n].data)] == []  # fmt: skip
    assert not [t for n, t in out.items() if t.dtype == "F8_E4M3" and n not in source]
    assert manifest_of(made(family, dialect, "bf16"))["fp8"] == {"matrices": {}}
    block = config_of(made(family, dialect, "bf16"))["quantization_config"]
    for module in FP8[family]:
        if dialect == "sglang":
            assert module in block["ignored_layers"]
        else:
            assert any(re.match(pattern.removeprefix("re:"), module) for pattern in block["ignore"])


@pytest.mark.parametrize("family", FAMILIES)
def test_ignored_layers(made: Made, family: str) -> None:
    """Whole names, under every spelling; what is quantized, or FP8 whatever its scales are called, is not among them."""
    folder = made(family, "sglang")
    block = config_of(folder)["quantization_config"]
    ignored = set(block["ignored_layers"])
    assert block["modules_to_not_convert"] == block["ignored_layers"]
    assert (block["quant_method"], block["group_size"], block["weight_block_size"]) == ("w4afp8", 128, [128, 128])
    assert not [name for name in ignored if re.search(r"[*\\$]|^re:", name)]
    assert not (folder / "hf_quant_config.json").exists()
    for name, tensor in load(folder).items():
        module = name.removesuffix(".weight")
        if module != name and len(tensor.shape) == 2:
            assert (module in ignored) == (tensor.dtype == "BF16"), name
    spellings = {
        "kimi_k3": [
            "model.layers.1.mlp.shared_experts.gate_up_proj", "layers.0.mlp.gate_up_proj", "lm_head",
            "model.layers.3.self_attn.fused_qkv_a_proj_with_mqa", "mm_projector.linear_1",
        ],
        "deepseek_v4": ["model.layers.0.mlp.gate", "layers.0.ffn.gate", "embed"],
        "gpt_oss": ["layers.0.attn.qkv_proj", "model.layers.1.self_attn.qkv_proj", "model.layers.0.mlp.router"],
        "generic": ["layers.1.self_attn.qkv_proj", "lm_head", "embed_tokens"],
    }[family]  # fmt: skip
    assert set(spellings) <= ignored
    assert not [n for n in ignored if n.removesuffix("_proj") + "_proj" in FP8[family]]
    assert ("layers.0.self_attn.qkv_proj" in ignored) == (family == "gpt_oss")
    assert not [n for n in ignored if n.endswith(("fused_qkvg_proj", "in_proj_qkvgfab", "fused_qkv_a_g_proj"))]


@pytest.mark.parametrize("family", FAMILIES)
def test_ignore_patterns(made: Made, family: str) -> None:
    folder = made(family, "compressed-tensors")
    config = config_of(folder)
    block = config["quantization_config"]
    assert (block["quant_method"], block["format"]) == ("compressed-tensors", "pack-quantized")
    assert "quantization_config" not in config.get("text_config", {})
    (group,) = block["config_groups"].values()
    weights, activations = group["weights"], group["input_activations"]
    assert (weights["num_bits"], weights["type"], weights["group_size"], weights["symmetric"]) == (4, "int", 128, True)
    assert (activations["num_bits"], activations["type"], activations["strategy"]) == (8, "float", "token")
    patterns = [re.compile(p.removeprefix("re:")) for p in block["ignore"]]
    assert all(p.startswith("re:") for p in block["ignore"])
    for name, tensor in load(folder).items():
        module, _, leaf = name.rpartition(".")
        if len(tensor.shape) == 2 and leaf in ("weight", "weight_packed"):
            assert any(p.match(module) for p in patterns) == (leaf == "weight"), name
    assert not (folder / "hf_quant_config.json").exists()


def test_deepseek_says_no_longer_that_its_experts_are_fp4(made: Made) -> None:
    assert config_of(made("deepseek_v4"))["expert_dtype"] == "fp4"
    assert config_of(made("deepseek_v4", "sglang"))["expert_dtype"] == "int4"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_index_and_manifest_agree_with_the_files(made: Made, family: str, dialect: str) -> None:
    folder = made(family, dialect)
    tensors, manifest = load(folder), manifest_of(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: t.file for name, t in tensors.items()}
    assert index["metadata"]["total_size"] == sum(len(t.data) for t in tensors.values())
    assert manifest["tensors"] == len(tensors)
    assert manifest["int4"]["method"] == "exact"
    assert manifest["int4"]["weights"] is None
    assert manifest["target"]["layout"] == f"w4afp8-{dialect}"
    assert manifest["inexact"] == [] and manifest["inexact_matrices"] == {}


def test_the_card_has_the_figures_of_the_manifest(made: Made) -> None:
    folder = made("kimi_k3", "sglang")
    text, manifest = (folder / "README.md").read_text(), manifest_of(folder)
    assert "experts to INT4 in groups of 128, each with the BF16 scale of least squared error" in text
    assert "equals the source's weight exactly" not in text
    figures = manifest["int4"]["matrices"].values()
    decibels = 10 * np.log10(sum(f["squared_sum"] for f in figures) / sum(f["squared_error"] for f in figures))
    assert f"SQNR {decibels:.2f} dB" in text
    assert f"{sum(f['groups'] for f in figures):,} groups of 128" in text
    attention = [f for n, f in manifest["fp8"]["matrices"].items() if n.endswith(".o_proj")]
    decibels = 10 * np.log10(sum(f["squared_sum"] for f in attention) / sum(f["squared_error"] for f in attention))
    changed = next(line for line in text.splitlines() if "self_attn.o_proj.weight` |" in line)
    assert changed.endswith("| 5 | 163,840 | BF16 | FP8, 128 x 128 blocks |")
    row = next(line for line in text.splitlines() if "self_attn.o_proj` | FP8 |" in line)
    assert f"SQNR {decibels:.2f} dB" in row


@pytest.mark.parametrize("method", ["signed", "amax"])
def test_methods(made: Made, tmp_path: Path, method: str) -> None:
    manifest = convert(made("generic"), tmp_path / "out", Target("w4afp8", method=method), card=render_card)
    source, out = load(made("generic")), load(tmp_path / "out")
    best = manifest_of(made("generic", "sglang"))["int4"]["matrices"]
    for module, (codes, scales) in decoding.mxfp4_sources(source).items():
        groups = decoding.mxfp4(codes, scales).reshape(len(codes), -1, 128)
        largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[..., None], axis=2)[..., 0]
        wanted = np.abs(largest / -8) if method == "signed" else np.abs(largest) / 7
        stored = out[f"{module}.weight_scale_inv"].array.astype(np.float64)
        assert np.array_equal(np.abs(stored), decoding.to_bf16(wanted))
        assert manifest["int4"]["matrices"][module]["squared_error"] > best[module]["squared_error"]
    assert manifest["int4"]["method"] == method


# -- other people's checkpoints, and back


@pytest.mark.parametrize("first", DIALECTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_dialects_round_trip(made: Made, tmp_path: Path, family: str, first: str) -> None:
    """Into the other dialect, which has the same values, and back: every tensor as it was."""
    other = DIALECTS[first == DIALECTS[0]]
    start = made(family, first, "bf16")
    manifest = convert(
        start, tmp_path / "there", Target("w4afp8", other, attention="bf16" if other == "sglang" else None)
    )
    there, direct = load(tmp_path / "there"), load(made(family, other, "bf16"))
    assert {n: raw(t) for n, t in there.items()} == {n: raw(t) for n, t in direct.items()}
    assert manifest["int4"]["matrices"] == {}
    convert(
        tmp_path / "there", tmp_path / "back", Target("w4afp8", first, attention="bf16" if first == "sglang" else None)
    )
    back = load(tmp_path / "back")
    assert {n: t.data for n, t in back.items()} == {n: t.data for n, t in load(start).items()}
    assert config_of(tmp_path / "back") == config_of(start)


def test_attention_that_becomes_fp8_is_no_exact_recast(made: Made, tmp_path: Path) -> None:
    """INT4 groups only change their dialect, but the card must not say that every weight is the same."""
    manifest = convert(made("kimi_k3", "compressed-tensors"), tmp_path / "out", Target("w4afp8"), card=render_card)
    assert (manifest["int4"]["matrices"], manifest["fp8"]["matrices"].keys()) == ({}, FP8["kimi_k3"])
    text = (tmp_path / "out" / "README.md").read_text()
    assert "equals the source's weight exactly" not in text
    assert "INT4 groups and scales are the source's" in text
    out, direct = load(tmp_path / "out"), load(made("kimi_k3", "sglang"))
    assert {n: raw(t) for n, t in out.items()} == {n: raw(t) for n, t in direct.items()}


def test_fp8_modules_that_pack_quantized_cannot_describe(made: Made, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"5 FP8 modules, such as .* have no place in the config of this dialect"):
        convert(made("generic", "sglang"), tmp_path / "out", Target("w4afp8", "compressed-tensors"))
    assert not (tmp_path / "out").exists()
    assert manifest_of(made("generic", "compressed-tensors"))["notes"] == []


def foreign(folder: Path, scales: Any, gate: str = "gate_proj") -> Path:
    """One expert as other tools write it: F32 group scales, activation scales under w1, w2, w3."""
    rng = np.random.default_rng(5)
    tensors = []
    for leaf, spelt in zip(LEAVES, ("w1", "w3", "w2"), strict=True):
        values = np.broadcast_to(np.asarray(scales, dtype="<f4"), (128, 1))
        tensors += [
            (f"{EXPERT}{leaf}.weight", "I8", (128, 64), rng.bytes(128 * 64)),
            (f"{EXPERT}{leaf}.weight_scale_inv", "F32", (128, 1), values.tobytes()),
            (f"{EXPERT}{spelt}.input_scale", "F32", (), np.float32(0.25).tobytes()),
        ]
    tensors.append(plain("model.embed_tokens.weight", 8, 128))
    return one_file(folder, tensors)


def test_somebody_elses_checkpoint_to_bf16(tmp_path: Path) -> None:
    """F32 scales of 24 bits: every value is the nearest BF16; activation scales are dropped and said to be."""
    scales = np.random.default_rng(1).standard_normal((128, 1)) * 0.01
    source = foreign(tmp_path / "src", scales)
    with pytest.raises(InexactError, match=r"elements cannot be exact in bf16"):
        convert(source, tmp_path / "out", Target("bf16"))
    assert not (tmp_path / "out").exists()
    manifest = convert(source, tmp_path / "out", Target("bf16", allow_inexact=True))
    stored, out = load(source), load(tmp_path / "out")
    assert out.keys() == {f"{EXPERT}{leaf}.weight" for leaf in LEAVES} | {"model.embed_tokens.weight"}
    for leaf in LEAVES:
        values = decoding.int4(stored, EXPERT + leaf)
        rounded = decoding.to_bf16(values)
        assert np.array_equal(out[f"{EXPERT}{leaf}.weight"].array.astype(np.float64), rounded)
        assert manifest["inexact_matrices"][EXPERT + leaf] == (rounded != values).sum() > 0
    assert set(manifest["dropped"]) == {f"{EXPERT}{leaf}.input_scale" for leaf in ("w1", "w2", "w3")}


def test_somebody_elses_checkpoint_to_the_other_dialect(tmp_path: Path) -> None:
    """F32 scales that are BF16 numbers pass as such."""
    source = foreign(tmp_path / "src", np.array(0.0078125 * 1.5))
    convert(source, tmp_path / "out", Target("w4afp8", "compressed-tensors"))
    stored, out = load(source), load(tmp_path / "out")
    for leaf in LEAVES:
        assert out[f"{EXPERT}{leaf}.weight_scale"].dtype == "BF16"
        assert np.array_equal(decoding.int4(stored, EXPERT + leaf), decoding.int4(out, EXPERT + leaf))


def test_a_scale_that_bf16_does_not_hold(tmp_path: Path) -> None:
    scales = np.full((128, 1), 0.5)
    scales[77] = 1 + 2.0**-8
    with pytest.raises(InputError, match=r"group scale at row 77, group 0 is no BF16 number") as caught:
        convert(foreign(tmp_path / "src", scales), tmp_path / "out", Target("w4afp8", "compressed-tensors"))
    assert caught.value.where == f"{EXPERT}gate_proj.weight_scale_inv in model.safetensors"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_w4afp8_to_bf16(made: Made, tmp_path: Path, dialect: str) -> None:
    """INT4 experts and FP8 attention alike become the nearest BF16 numbers."""
    start = made("generic", dialect)
    with pytest.raises(InexactError, match=r"cannot be exact in bf16"):
        convert(start, tmp_path / "out", Target("bf16"))
    manifest = convert(start, tmp_path / "out", Target("bf16", allow_inexact=True))
    stored, out = load(start), load(tmp_path / "out")
    assert not [n for n in out if "scale" in n or "shape" in n]
    modules = decoding.mxfp4_sources(load(made("generic"))).keys()
    for module in modules | (FP8["generic"] if dialect == "sglang" else set()):
        values = (decoding.int4 if module in modules else decoding.fp8)(stored, module)
        rounded = decoding.to_bf16(values)
        assert out[f"{module}.weight"].dtype == "BF16"
        assert np.array_equal(out[f"{module}.weight"].array.astype(np.float64), rounded), module
        assert manifest["inexact_matrices"].get(module, 0) == (rounded != values).sum()
    assert "quantization_config" not in config_of(tmp_path / "out")


def test_exact_scales_need_no_leave(tmp_path: Path) -> None:
    """INT4 codes times a power of two fit BF16."""
    source = foreign(tmp_path / "src", np.array(0.25))
    convert(source, tmp_path / "out", Target("bf16"))
    stored, out = load(source), load(tmp_path / "out")
    for leaf in LEAVES:
        assert np.array_equal(
            out[f"{EXPERT}{leaf}.weight"].array.astype(np.float64), decoding.int4(stored, EXPERT + leaf)
        )


# -- the order of tensors whose sizes are odd


@pytest.mark.parametrize("dialect", DIALECTS)
def test_odd_sizes_are_quantized_once(tmp_path: Path, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales of 3 x 3 groups are 18 bytes long: what follows them may not start there, so they lie apart from their codes."""
    modules = [f"model.layers.{layer}.mlp.down_proj" for layer in range(5)]
    tensors = [t for module in modules for t in packed(module, 3, 384)] + [plain("model.norm.weight", 3)]
    source = one_file(tmp_path / "src", tensors)
    calls: list[int] = []
    original = int4.quantize

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(int4, "quantize", counted)
    convert(source, tmp_path / "out", Target("w4afp8", dialect))
    assert len(calls) == len(modules)
    out = load(tmp_path / "out")
    start = 0
    for tensor in out.values():
        assert start % tensor.array.dtype.itemsize == 0
        start += len(tensor.data)
    for module, (codes, scales) in decoding.mxfp4_sources(load(source)).items():
        cast = original(codes, scales)
        assert np.array_equal(decoding.int4_codes(out, module), signed(decoding.nibbles(cast.codes)))
        suffix = "weight_scale_inv" if dialect == "sglang" else "weight_scale"
        assert np.array_equal(out[f"{module}.{suffix}"].array.view(np.uint16), cast.scales)


def test_modules_without_a_twin_anywhere(tmp_path: Path) -> None:
    """Not every MLP has a gate, nor every q_proj a k_proj beside it (MLA): none is missed where no layer has one."""
    names = ("mlp.up_proj", "mlp.down_proj", "self_attn.q_proj", "self_attn.o_proj")
    tensors = [t for name in names for t in packed(f"model.layers.0.{name}", 128, 128)]
    manifest = convert(one_file(tmp_path / "src", tensors), tmp_path / "out", Target("w4afp8"))
    assert len(manifest["int4"]["matrices"]) == 4


def test_attention_without_elements_stays(tmp_path: Path) -> None:
    tensors = [*experts(), plain("model.layers.0.self_attn.o_proj.weight", 0, 128)]
    convert(one_file(tmp_path / "src", tensors), tmp_path / "out", Target("w4afp8"))
    assert load(tmp_path / "out")["model.layers.0.self_attn.o_proj.weight"].dtype == "BF16"


def test_experts_of_one_file(tmp_path: Path) -> None:
    """No index where the source has none."""
    convert(one_file(tmp_path / "src", experts()), tmp_path / "out", Target("w4afp8"))
    assert not (tmp_path / "out" / "model.safetensors.index.json").exists()
