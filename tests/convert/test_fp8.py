"""``--to fp8``: E4M3 under power-of-two scales, without any change of value, or refused."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.convert import decoding
from tests.convert.decoding import load
from tests.convert.w4afp8_sources import EXPERT, LEAVES, experts, make_all, one_file, packed, plain, replaced
from truecast.convert import Target, convert
from truecast.errors import InexactError
from truecast.report.card import render_card

DIALECTS = ("deepseek", "compressed-tensors")
FAMILIES = ("kimi_k3", "deepseek_v4", "gpt_oss", "generic")
SUFFIX = {"deepseek": "weight_scale_inv", "compressed-tensors": "weight_scale"}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a source (no dialect), or of its FP8 form."""
    folder = tmp_path_factory.mktemp("fp8")
    sources = make_all(folder / "sources")

    @functools.cache
    def get(family: str, dialect: str = "") -> Path:
        if not dialect:
            return sources[family]
        out = folder / f"{family}-{dialect}"
        convert(sources[family], out, Target("fp8", dialect), card=render_card)
        return out

    return get


def scale_shape(dialect: str, rows: int, cols: int) -> tuple[int, int]:
    return (-(-rows // 128), -(-cols // 128)) if dialect == "deepseek" else (rows, 1)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_value_changes(made: Callable[..., Path], family: str, dialect: str) -> None:
    source, out = load(made(family)), load(made(family, dialect))
    matrices = decoding.mxfp4_sources(source)
    for module, (codes, scales) in matrices.items():
        weight, scale = out[f"{module}.weight"], out[f"{module}.{SUFFIX[dialect]}"]
        rows, cols = codes.shape[0], codes.shape[1] * 2
        assert (weight.dtype, weight.shape) == ("F8_E4M3", (rows, cols))
        assert (scale.dtype, scale.shape) == ("F32", scale_shape(dialect, rows, cols))
        assert (np.frexp(scale.array)[0] == 0.5).all(), "powers of two"
        values = decoding.mxfp4(codes, scales)
        assert np.array_equal(decoding.fp8(out, module), values)
        assert np.array_equal(np.signbit(weight.array.astype(np.float32)), np.signbit(values))
    expected = {f"{module}.{leaf}" for module in matrices for leaf in ("weight", SUFFIX[dialect])}
    assert {n for n in out if "experts." in n and ".shared_" not in n and not n.endswith(".bias")} <= expected
    untouched = source.keys() & out.keys() - expected
    assert untouched and all(source[n].data == out[n].data for n in untouched)
    manifest = json.loads((made(family, dialect) / "truecast.json").read_text())
    assert manifest["inexact_matrices"] == {}
    assert "every weight equals the source's weight exactly" in (made(family, dialect) / "README.md").read_text()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_config(made: Callable[..., Path], family: str, dialect: str) -> None:
    folder = made(family, dialect)
    config = json.loads((folder / "config.json").read_text())
    block = config["quantization_config"]
    assert config.get("expert_dtype") in ("fp8", None)
    assert not (folder / "hf_quant_config.json").exists()
    if dialect == "deepseek":
        assert (block["quant_method"], block["weight_block_size"]) == ("fp8", [128, 128])
        hit: Callable[[str], Any] = set(block["modules_to_not_convert"]).__contains__
    else:
        assert block["format"] == "float-quantized"
        patterns = [re.compile(p.removeprefix("re:")) for p in block["ignore"]]
        hit = lambda module: any(p.match(module) for p in patterns)  # noqa: E731
    ours = decoding.mxfp4_sources(load(made(family))).keys()
    for name, tensor in load(folder).items():
        module = name.removesuffix(".weight")
        if module == name or len(tensor.shape) != 2:
            continue
        fp8 = module in ours or (dialect == "deepseek" and tensor.dtype == "F8_E4M3")
        assert bool(hit(module)) != fp8, name


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_back_to_bf16_is_what_the_source_gives(
    made: Callable[..., Path], tmp_path: Path, family: str, dialect: str
) -> None:
    convert(made(family, dialect), tmp_path / "via", Target("bf16"))
    convert(made(family), tmp_path / "direct", Target("bf16"))
    via, direct = load(tmp_path / "via"), load(tmp_path / "direct")
    if family == "gpt_oss":  # banks come back as banks only from banks
        for module, (codes, scales) in decoding.mxfp4_sources(load(made(family))).items():
            assert np.array_equal(via[f"{module}.weight"].array.astype(np.float64), decoding.mxfp4(codes, scales))
        return
    assert {n: (t.dtype, t.shape, t.data) for n, t in via.items()} == {
        n: (t.dtype, t.shape, t.data) for n, t in direct.items()
    }


@pytest.mark.parametrize("shape", [(1, 32), (129, 96), (200, 160)])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_ragged_tiles(tmp_path: Path, shape: tuple[int, int], dialect: str) -> None:
    """Neither rows nor columns need fill a block."""
    source = one_file(tmp_path / "src", packed("model.layers.0.mlp.down_proj", *shape))
    convert(source, tmp_path / "out", Target("fp8", dialect))
    out = load(tmp_path / "out")
    ((module, (codes, scales)),) = decoding.mxfp4_sources(load(source)).items()
    assert out[f"{module}.{SUFFIX[dialect]}"].shape == scale_shape(dialect, *shape)
    assert np.array_equal(decoding.fp8(out, module), decoding.mxfp4(codes, scales))
    convert(tmp_path / "out", tmp_path / "bf16", Target("bf16"))
    plain_values = load(tmp_path / "bf16")[f"{module}.weight"].array.astype(np.float64)
    assert np.array_equal(plain_values, decoding.mxfp4(codes, scales))


def wide(folder: Path) -> Path:
    """An expert of which one matrix has blocks 2^20 apart in a row, another in different rows of a tile."""
    far = np.full((128, 4), 120)
    far[5, 2] = 140
    rows = np.full((128, 4), 120)
    rows[9] = 140
    tensors = replaced(
        experts(),
        *packed(EXPERT + "gate_proj", 128, 128, scale=far),
        *packed(EXPERT + "up_proj", 128, 128, scale=rows),
    )
    return one_file(folder, tensors)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_tiles_that_are_too_wide(tmp_path: Path, dialect: str) -> None:
    """Refused; with leave, the nearest values under the least scale that holds the largest, and counted."""
    source = wide(tmp_path / "src")
    with pytest.raises(InexactError, match=rf"elements cannot be exact in fp8-{dialect}") as caught:
        convert(source, tmp_path / "out", Target("fp8", dialect))
    assert caught.value.exit_code == 3
    assert caught.value.where == f"{EXPERT}gate_proj.weight_packed in model.safetensors"
    assert "--inexact allow" in caught.value.fix
    assert not (tmp_path / "out").exists()
    manifest = convert(source, tmp_path / "out", Target("fp8", dialect, allow_inexact=True), card=render_card)
    stored, out = load(source), load(tmp_path / "out")
    lost = {}
    for module, (codes, scales) in decoding.mxfp4_sources(stored).items():
        values, result = decoding.mxfp4(codes, scales), decoding.fp8(out, module)
        scale = out[f"{module}.{SUFFIX[dialect]}"].array.astype(np.float64)
        tile = np.broadcast_to(scale, (128, 1))
        # 2^-9 is E4M3's smallest step, 2^-4 the relative one
        assert (np.abs(values - result) <= np.maximum(tile * 2.0**-10, np.abs(values) * 2.0**-4)).all()
        if count := int((values != result).sum()):
            lost[module] = count
    assert manifest["inexact_matrices"] == lost
    both = {EXPERT + "gate_proj", EXPERT + "up_proj"}
    assert lost.keys() == (both if dialect == "deepseek" else {EXPERT + "gate_proj"}), "up_proj's rows are each narrow"
    assert "Not exact throughout" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_somebody_elses_scales_to_bf16(tmp_path: Path, dialect: str) -> None:
    """Scales of 24 bits: each product is rounded once, to the nearest BF16."""
    rng = np.random.default_rng(3)
    tensors = []
    for leaf in LEAVES:
        codes = rng.integers(0, 127, (200, 160), dtype=np.uint8) | rng.integers(0, 2, (200, 160), dtype=np.uint8) << 7
        scales = (rng.random(scale_shape(dialect, 200, 160)) * 0.01 + 0.001).astype("<f4")
        tensors += [
            (f"{EXPERT}{leaf}.weight", "F8_E4M3", (200, 160), codes.tobytes()),
            (f"{EXPERT}{leaf}.{SUFFIX[dialect]}", "F32", scales.shape, scales.tobytes()),
        ]
    source = one_file(tmp_path / "src", [*tensors, plain("model.norm.weight", 8)])
    with pytest.raises(InexactError, match="elements cannot be exact in bf16"):
        convert(source, tmp_path / "out", Target("bf16"))
    manifest = convert(source, tmp_path / "out", Target("bf16", allow_inexact=True))
    stored, out = load(source), load(tmp_path / "out")
    for leaf in LEAVES:
        values = decoding.fp8(stored, EXPERT + leaf)
        rounded = decoding.to_bf16(values)
        assert np.array_equal(out[f"{EXPERT}{leaf}.weight"].array.astype(np.float64), rounded)
        assert manifest["inexact_matrices"][EXPERT + leaf] == (rounded != values).sum() > 0


def test_bf16_is_rounded_once(tmp_path: Path) -> None:
    """Products of 28 bits that lie past the middle of two BF16 numbers by less than float32 can tell."""
    fifteenth = pow(15, -1, 1 << 20)
    mantissas = [fifteenth * ((1 << 19) + r) % (1 << 20) + (j << 20) for r in range(1, 8) for j in range(9, 16)]
    mantissas = [m for m in mantissas if not 15 * m >> 20 & 1]  # a tie would go down
    assert len(mantissas) > 20
    scales = np.ldexp(np.array(mantissas, "<f4"), -30).reshape(-1, 1)
    module = "model.layers.0.mlp.down_proj"
    tensors = [
        (f"{module}.weight_scale", "F32", scales.shape, scales.tobytes()),
        (f"{module}.weight", "F8_E4M3", (len(scales), 32), bytes([0x3F]) * 32 * len(scales)),  # 15/8
    ]
    source = one_file(tmp_path / "src", tensors)
    convert(source, tmp_path / "out", Target("bf16", allow_inexact=True))
    values = decoding.fp8(load(source), module)
    out = load(tmp_path / "out")[f"{module}.weight"].array.astype(np.float64)
    assert (out > values).all()
    assert np.array_equal(out, decoding.to_bf16(values))
