"""compressed-tensors, nvidia-modelopt, transformers and safetensors as judges of our files.

The source is decoded here with fractions of our own (a table lookup in float64), the outputs by the peers' own code.
"""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from examples.shaped import deepseek_v4, gpt_oss, kimi_k3
from truecast.convert import Target, convert

E2M1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            assert file.metadata() in ({"format": "pt"}, None)
            loaded |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return loaded


def decode_mxfp4(packed: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float64]:
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return E2M1[codes] * np.repeat(np.ldexp(1.0, scales.astype(int) - 127), 32, axis=-1)


def u8(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return np.asarray(tensor.view(torch.uint8).numpy())


def source_matrices(family: str, folder: Path) -> dict[str, NDArray[np.float64]]:
    """Every MXFP4 matrix of a source, one module per expert, by name."""
    loaded = tensors_of(folder)
    found: dict[str, NDArray[np.float64]] = {}
    for name, tensor in loaded.items():
        if family == "kimi_k3" and name.endswith(".weight_packed"):
            base = name.removesuffix("_packed")
            found[base.removesuffix(".weight")] = decode_mxfp4(u8(tensor), u8(loaded[base + "_scale"]))
        elif family == "deepseek_v4" and name.endswith(".weight") and tensor.dtype == torch.int8:
            base = name.removesuffix(".weight")
            if not base.startswith("mtp."):
                found[base] = decode_mxfp4(u8(tensor), u8(loaded[base + ".scale"]))
        elif family == "gpt_oss" and name.endswith("_blocks"):
            bank, _, projection = name.removesuffix("_blocks").rpartition(".")
            blocks, scales = u8(tensor), u8(loaded[name.removesuffix("_blocks") + "_scales"])
            for expert in range(len(blocks)):
                values = decode_mxfp4(blocks[expert].reshape(blocks.shape[1], -1), scales[expert])
                if projection == "gate_up_proj":
                    found[f"{bank}.{expert}.gate_proj"], found[f"{bank}.{expert}.up_proj"] = values[0::2], values[1::2]
                else:
                    found[f"{bank}.{expert}.down_proj"] = values
    assert found
    return found


MAKERS = {"kimi_k3": kimi_k3.make, "gpt_oss": gpt_oss.make, "deepseek_v4": deepseek_v4.make}


@pytest.fixture(scope="module", params=sorted(MAKERS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param) / "source"
    MAKERS[request.param](folder)
    return request.param, folder


def test_compressed_tensors_decodes_our_nvfp4(made: tuple[str, Path], tmp_path: Path) -> None:
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    family, source = made
    convert(source, tmp_path / "out", Target("nvfp4", "compressed-tensors"))
    ours = tensors_of(tmp_path / "out")
    block = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    weights = QuantizationArgs.model_validate(block["config_groups"]["group_0"]["weights"])
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    for name, expected in source_matrices(family, source).items():
        state = {s: ours[f"{name}.{s}"] for s in ("weight_packed", "weight_scale", "weight_global_scale")}
        decoded = NVFP4PackedCompressor.decompress(state, scheme)["weight"]
        assert np.array_equal(decoded.to(torch.float64).numpy(), expected), name


def test_modelopt_decodes_our_nvfp4(made: tuple[str, Path], tmp_path: Path) -> None:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    family, source = made
    convert(source, tmp_path / "out", Target("nvfp4", "modelopt"))
    ours = tensors_of(tmp_path / "out")
    for name, expected in source_matrices(family, source).items():
        codes, scale, scale_2 = modelopt_parts(family, name, ours)
        quantized = NVFP4QTensor(torch.Size(expected.shape), torch.float32, codes)
        decoded = quantized.dequantize(dtype=torch.float32, scale=scale, double_scale=scale_2, block_sizes={-1: 16})
        assert np.array_equal(decoded.to(torch.float64).numpy(), expected), name


def modelopt_parts(family: str, name: str, ours: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    if family != "gpt_oss":
        return ours[f"{name}.weight"], ours[f"{name}.weight_scale"], ours[f"{name}.weight_scale_2"]
    bank, expert, leaf = name.rsplit(".", 2)
    stem = f"{bank}.{'down_proj' if leaf == 'down_proj' else 'gate_up_proj'}"
    rows = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2), "down_proj": slice(None)}[leaf]
    codes = ours[stem][int(expert)].T[rows].contiguous()  # exported [in, out]
    scale = ours[f"{stem}_weight_scale"][int(expert)].view(torch.uint8).T[rows].contiguous().view(torch.float8_e4m3fn)
    return codes, scale, ours[f"{stem}_weight_scale_2"]


def test_compressed_tensors_decodes_our_mxfp4_relayout(made: tuple[str, Path], tmp_path: Path) -> None:
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    family, source = made
    folder = source
    if family != "kimi_k3":
        folder = tmp_path / "out"
        convert(source, folder, Target("mxfp4", "compressed-tensors"))
    ours = tensors_of(folder)
    args = QuantizationArgs(num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8)
    for name, expected in source_matrices(family, source).items():
        state = {s: ours[f"{name}.{s}"] for s in ("weight_packed", "weight_scale")}
        decoded = MXFP4PackedCompressor.decompress(state, QuantizationScheme(targets=["Linear"], weights=args))[
            "weight"
        ]
        assert np.array_equal(decoded.to(torch.float64).numpy(), expected), name


def test_transformers_decodes_the_same_gpt_oss(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    gpt_oss.make(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "bf16", Target("bf16"))
    source, ours = tensors_of(tmp_path / "source"), tensors_of(tmp_path / "bf16")
    banks = [n.removesuffix("_blocks") for n in source if n.endswith("_blocks")]
    assert banks
    for bank in banks:
        theirs = convert_moe_packed_tensors(source[bank + "_blocks"], source[bank + "_scales"], dtype=torch.bfloat16)
        assert torch.equal(ours[bank], theirs), bank
        assert torch.equal(ours[bank + "_bias"], source[bank + "_bias"])
