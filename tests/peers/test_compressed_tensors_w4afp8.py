"""compressed-tensors as judge of W4AFP8 in words and of channelwise FP8: its packer, its decoder, its config classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load, save_file

from truecast.casts import fp8
from truecast.checkpoint.header import encode_header
from truecast.checkpoint.source import open_checkpoint
from truecast.formats import e4m3, int4
from truecast.layouts import fp8_compressed_tensors, w4afp8_compressed_tensors
from truecast.layouts.base import Matrix, OutTensor, View, read_view
from truecast.layouts.recognise import recognise

W4AFP8 = preset_name_to_scheme("W4AFP8", ["Linear"])
SHAPES = st.tuples(st.integers(1, 5), st.sampled_from([128, 256, 384]))
VALUES = hnp.arrays(np.int8, SHAPES, elements=st.integers(-8, 7))


def bf16_scales(rows: int, groups: int, seed: int) -> torch.Tensor:
    """Normal BF16 of both signs, over many exponents."""
    random = np.random.default_rng(seed)
    magnitude = random.standard_normal((rows, groups)) * np.exp2(random.integers(-100, 100, (rows, groups)))
    return torch.from_numpy(magnitude).to(torch.bfloat16)


def our_values(codes: np.ndarray, scale: torch.Tensor) -> np.ndarray:
    """What we say that packed two's-complement codes mean, in float64."""
    return int4.unpack(codes) * np.repeat(scale.to(torch.float64).numpy(), 128, axis=1)


@given(VALUES)
@settings(deadline=None)
def test_their_packer_writes_our_words(values: np.ndarray) -> None:
    theirs = pack_to_int32(torch.from_numpy(values), 4).numpy().view(np.uint8)
    np.testing.assert_array_equal(int4.swap_forms(int4.pack(values)), theirs)


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.sampled_from([4, 64, 128]))))
@settings(deadline=None)
def test_their_unpacker_reads_any_bytes_as_we_do(words: np.ndarray) -> None:
    shape = torch.Size((words.shape[0], words.shape[1] * 2))
    theirs = unpack_from_int32(torch.from_numpy(words.view(np.int32)), 4, shape).numpy()
    np.testing.assert_array_equal(int4.unpack(int4.swap_forms(words)), theirs)


def written(tensors: list[OutTensor], parts: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """A file as the layout lays it out, read back by the safetensors library."""
    for tensor in tensors:
        assert parts[tensor.role].nbytes, tensor
    header = encode_header([(t.name, t.dtype, t.shape) for t in tensors], {"format": "pt"})
    return load(header + b"".join(parts[t.role].tobytes() for t in tensors))


def matrix_of(rows: int, cols: int) -> Matrix:
    nowhere: Any = View(None)  # type: ignore[arg-type]  # emitting asks for name and size only
    return Matrix("m.w1", "any", rows, cols, nowhere, nowhere)


@given(VALUES, st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=50)
def test_their_decoder_reads_a_file_of_ours(values: np.ndarray, seed: int) -> None:
    rows, cols = values.shape
    codes, scale = int4.pack(values), bf16_scales(rows, cols // 128, seed)
    parts = {
        "codes": int4.swap_forms(codes),
        "scale": scale.view(torch.int16).numpy(),
        "shape": np.array([rows, cols], "<i8"),
    }
    emitted = list(w4afp8_compressed_tensors.emit([matrix_of(rows, cols)], False))
    state = {name.removeprefix("m.w1."): tensor for name, tensor in written(emitted, parts).items()}
    expected = our_values(codes, scale)
    rounded = PackedQuantizationCompressor.decompress(state, W4AFP8)["weight"]  # in the scale's own dtype
    assert torch.equal(rounded, torch.from_numpy(expected).to(torch.bfloat16))
    state["weight_scale"] = state["weight_scale"].to(torch.float32)  # which holds the products
    exact = PackedQuantizationCompressor.decompress(state, W4AFP8)["weight"]
    np.testing.assert_array_equal(exact.to(torch.float64).numpy(), expected)


@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_we_read_a_file_of_theirs(tmp_path: Path, scale_dtype: torch.dtype) -> None:
    weight = torch.randn(6, 384, generator=torch.Generator().manual_seed(4), dtype=torch.float32)
    scale = (weight.reshape(6, 3, 128).abs().amax(-1) / 7).to(scale_dtype)
    scale = scale * torch.tensor([1, -1, 1], dtype=scale_dtype)
    state = PackedQuantizationCompressor.compress({"weight": weight, "weight_scale": scale.to(torch.float32)}, W4AFP8)
    state["weight_scale"] = scale
    save_file({f"m.w1.{name}": tensor.contiguous() for name, tensor in state.items()}, tmp_path / "model.safetensors")

    checkpoint = open_checkpoint(tmp_path)
    matrix = recognise(checkpoint.tensors).matrices["m.w1"]
    assert (matrix.layout, matrix.rows, matrix.cols) == ("w4afp8-compressed-tensors", 6, 384)
    file = checkpoint.opener(matrix.codes.tensor.file)
    w4afp8_compressed_tensors.check_stored_shape(matrix, file)
    words, stored = read_view(matrix.codes, file), read_view(matrix.scale, file)
    file.close()
    np.testing.assert_array_equal(stored, scale.view(torch.uint8).numpy())
    state["weight_scale"] = scale.to(torch.float32)
    theirs = PackedQuantizationCompressor.decompress(state, W4AFP8)["weight"].numpy()  # rounded to float32
    np.testing.assert_array_equal(our_values(int4.swap_forms(words), scale).astype(np.float32), theirs)


def test_their_decoder_reads_our_channelwise_fp8() -> None:
    random = np.random.default_rng(5)
    packed, scales = random.integers(0, 256, (9, 96), np.uint8), random.integers(80, 94, (9, 6), np.uint8)
    bases, inexact = fp8.exact_bases(packed, scales, fp8.CHANNEL)
    assert inexact == 0
    scale = np.ldexp(np.float32(1), bases)
    codes = fp8.from_mxfp4(packed, scales, bases, fp8.CHANNEL)
    emitted = list(fp8_compressed_tensors.emit([matrix_of(9, 192)], False))
    state = written(emitted, {"codes": codes, "scale": scale})
    state = {name.removeprefix("m.w1."): tensor for name, tensor in state.items()}
    decoded = FloatQuantizationCompressor.decompress(state, preset_name_to_scheme("FP8_DYNAMIC", ["Linear"]))["weight"]
    np.testing.assert_array_equal(decoded.to(torch.float64).numpy(), e4m3.decode(codes) * scale.astype(np.float64))


@pytest.mark.parametrize(
    ("config", "preset", "packing"),
    [
        (w4afp8_compressed_tensors.quantization_config, "W4AFP8", "pack-quantized"),
        (fp8_compressed_tensors.quantization_config, "FP8_DYNAMIC", "float-quantized"),
    ],
)
def test_their_config_class_takes_ours_for_their_preset(config: Any, preset: str, packing: str) -> None:
    block = config([r"re:.*\.self_attn\..*"], False)
    parsed = QuantizationConfig.model_validate(block)
    assert parsed.format == packing
    assert parsed.quant_method == "compressed-tensors"
    assert parsed.ignore == [r"re:.*\.self_attn\..*"]
    (group,) = parsed.config_groups.values()
    assert isinstance(group, QuantizationScheme)
    wanted = preset_name_to_scheme(preset, ["Linear"])
    for ours, theirs in ((group.weights, wanted.weights), (group.input_activations, wanted.input_activations)):
        assert ours is not None
        assert theirs is not None
        for key in ("num_bits", "type", "strategy", "group_size", "symmetric", "dynamic", "actorder"):
            assert getattr(ours, key) == getattr(theirs, key), key
