"""Small MXFP4 sources and W4AFP8, FP8 and BF16 outputs of them, made slowly, by trying, with none of truecast's casts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from verify_checkpoints import Tensors, load_shard, rewrite_shards, write_checkpoint

from truecast.checkpoint.source import open_checkpoint

U8 = NDArray[np.uint8]
F64 = NDArray[np.float64]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
EXPERTS = "model.layers.1.mlp.experts"
SHAPES = {"gate_proj": (6, 256), "up_proj": (6, 256), "down_proj": (4, 384)}
ATTENTION = "model.layers.0.self_attn.q_proj"
CONFIG = {"model_type": "toy_moe"}


def unpack(packed: U8) -> U8:
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


def pack(codes: NDArray[np.integer]) -> U8:
    low, high = codes[:, ::2] & 15, codes[:, 1::2] & 15
    return (low | high << 4).astype(np.uint8)


def mxfp4_values(packed: U8, scales: U8) -> F64:
    return np.ldexp(E2M1[unpack(packed)], np.repeat(scales.astype(int) - 127, 32, axis=1))


def bf16(values: Any) -> NDArray[np.float64]:
    return np.asarray(values).astype(ml_dtypes.bfloat16).astype(np.float64)


def bf16_scales(low: float, high: float) -> F64:
    """Every normal BF16 number of either sign whose magnitude lies between."""
    every = np.arange(0x0080, 0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    every = every[(every >= low) & (every <= high)]
    return np.concatenate([every, -every])


def nearest_codes(values: F64, scale: Any) -> F64:
    return np.clip(np.rint(values / scale), -8, 7)


def quantize_group(values: F64, method: str, weights: F64 | None = None) -> tuple[F64, float]:
    """Codes and scale of one group of 128 values, by trying every scale there is."""
    largest = np.abs(values).max()
    if largest == 0:
        return np.zeros(128), 1.0
    if method == "amax":
        scale = float(bf16(largest / 7))
    elif method == "signed":
        scale = float(bf16((largest if values.max() < largest else -largest) / 8))
    else:
        tried = bf16_scales(largest / 64 if weights is not None else largest / 9, largest / 3.4)
        codes = nearest_codes(values[None, :], tried[:, None])
        errors = (np.square(values - codes * tried[:, None]) * (1 if weights is None else weights)).sum(axis=1)
        order = np.lexsort((tried < 0, np.abs(tried), errors))
        scale = float(tried[order[0]])
    return nearest_codes(values, scale), scale


def quantize(values: F64, method: str, weights: F64 | None = None) -> tuple[NDArray[np.int64], F64]:
    """Codes ``[rows, cols]`` and scales ``[rows, cols/128]``."""
    rows, cols = values.shape
    codes, scales = np.empty((rows, cols), np.int64), np.empty((rows, cols // 128))
    for row in range(rows):
        for group in range(cols // 128):
            part = slice(128 * group, 128 * group + 128)
            own = None if weights is None else weights[part]
            codes[row, part], scales[row, group] = quantize_group(values[row, part], method, own)
    return codes, scales


def figures_of(values: F64, codes: NDArray[np.int64], scales: F64) -> dict[str, Any]:
    error = np.square(values - codes * np.repeat(scales, 128, axis=1)).reshape(len(values), -1, 128).sum(axis=2)
    energy = np.square(values).reshape(len(values), -1, 128).sum(axis=2)
    return {
        "squared_error": float(error.sum()),
        "squared_sum": float(energy.sum()),
        "groups": int(error.size),
        "exact_groups": int((error == 0).sum()),
        "zero_groups": int((energy == 0).sum()),
        "negative_scales": int((scales < 0).sum()),
    }


def plain_bf16(rng: np.random.Generator, rows: int, cols: int) -> NDArray[np.uint16]:
    values = rng.standard_normal((rows, cols)) * np.exp(rng.standard_normal((rows, cols)))
    values[:, -1] = 0
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def mxfp4_source(folder: Path, seed: int = 0) -> Path:
    """Two experts of groups of all kinds, an attention weight with ragged tiles, a norm."""
    rng = np.random.default_rng(seed)
    shard: Tensors = {}
    for expert in range(2):
        for leaf, (rows, cols) in SHAPES.items():
            codes = rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
            scales = rng.integers(116, 122, (rows, cols // 32), dtype=np.uint8)
            codes[0, :64] = np.resize([0, 8, 0x80, 0x88], 64)  # a group of zeros of either sign
            scales[0, :4] = [3, 250, 0, 127]
            codes[1, :64] &= 0x33  # magnitudes up to 1.5 under one exponent: exact
            scales[1, :4] = 119
            name = f"{EXPERTS}.{expert}.{leaf}"
            shard[name + ".weight_packed"] = "U8", codes.shape, codes.tobytes()
            shard[name + ".weight_scale"] = "U8", scales.shape, scales.tobytes()
    bits = plain_bf16(rng, 150, 200)
    bits[128:, :128] = 0  # a tile of zeros
    shard[ATTENTION + ".weight"] = "BF16", bits.shape, bits.tobytes()
    shard["model.norm.weight"] = "BF16", (64,), rng.integers(0, 120, 128, dtype=np.uint8).tobytes()
    return write_checkpoint(folder, [shard], CONFIG)


def source_matrix(tensors: Tensors, name: str) -> tuple[U8, U8]:
    (_, shape, codes), (_, scale_shape, scales) = tensors[name + ".weight_packed"], tensors[name + ".weight_scale"]
    return np.frombuffer(codes, np.uint8).reshape(shape), np.frombuffer(scales, np.uint8).reshape(scale_shape)


def int4_tensors(
    name: str, codes: NDArray[np.int64], scales: F64, dialect: str = "sglang", scale_dtype: str = "BF16"
) -> Tensors:
    """One INT4 matrix as a dialect stores it."""
    dtype = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}[scale_dtype]
    stored = scale_dtype, scales.shape, scales.astype(dtype).tobytes()
    rows, cols = codes.shape
    if dialect == "sglang":
        return {
            name + ".input_scale": ("F32", (), np.float32(1).tobytes()),
            name + ".weight_scale_inv": stored,
            name + ".weight": ("I8", (rows, cols // 2), pack(codes).tobytes()),
        }
    return {
        name + ".weight_shape": ("I64", (2,), np.array([rows, cols], np.int64).tobytes()),
        name + ".weight_packed": ("I32", (rows, cols // 8), pack(codes + 8).tobytes()),
        name + ".weight_scale": stored,
    }


def fp8_nearest(values: NDArray[np.float32]) -> U8:
    """E4M3 by trying all: the nearest, of two the even one."""
    finite = E4M3[:127]
    distance = np.abs(np.minimum(np.abs(values.astype(np.float64)), 448)[..., None] - finite)
    best = distance == distance.min(axis=-1, keepdims=True)
    even = best & (np.arange(127) % 2 == 0)
    code = np.where(even.any(axis=-1), even.argmax(axis=-1), best.argmax(axis=-1))
    return (code | np.signbit(values) << 7).astype(np.uint8)


def fp8_of(bits: NDArray[np.uint16]) -> tuple[U8, NDArray[np.float32]]:
    """FP8 by blocks of a BF16 tensor."""
    values = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    rows, cols = values.shape
    codes = np.empty((rows, cols), np.uint8)
    scales = np.empty((-(-rows // 128), -(-cols // 128)), np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            largest = np.abs(values[part]).max()
            scales[i, j] = largest / np.float32(448) if largest else np.float32(1)
            codes[part] = fp8_nearest(values[part] / scales[i, j])
    return codes, scales


def fp8_values(codes: U8, scales: NDArray[np.float32]) -> F64:
    rows, cols = codes.shape
    return E4M3[codes] * np.repeat(np.repeat(scales.astype(np.float64), 128, 0), 128, 1)[:rows, :cols]


def w4afp8_output(
    src: Path, out: Path, dialect: str = "sglang", method: str = "exact", weights: dict[str, F64] | None = None
) -> Path:
    """The W4AFP8 form of a source, with a manifest."""
    tensors: Tensors = {}
    source = load_shard(next(src.glob("*.safetensors")))
    claims: dict[str, Any] = {"int4": {}, "fp8": {}}
    for name in sorted(n.removesuffix(".weight_packed") for n in source if n.endswith(".weight_packed")):
        values = mxfp4_values(*source_matrix(source, name))
        codes, scales = quantize(values, method, weights[name] if weights else None)
        tensors |= int4_tensors(name, codes, scales, dialect)
        claims["int4"][name] = figures_of(values, codes, scales)
    _, shape, data = source[ATTENTION + ".weight"]
    bits = np.frombuffer(data, np.uint16).reshape(shape)
    codes8, scales8 = fp8_of(bits)
    values = bits.view(ml_dtypes.bfloat16).astype(np.float64)
    claims["fp8"][ATTENTION] = {
        "squared_error": float(np.square(values - fp8_values(codes8, scales8)).sum()),
        "squared_sum": float(np.square(values).sum()),
    }
    tensors[ATTENTION + ".weight_scale_inv"] = "F32", scales8.shape, scales8.tobytes()
    tensors["model.norm.weight"] = source["model.norm.weight"]
    tensors[ATTENTION + ".weight"] = "F8_E4M3", codes8.shape, codes8.tobytes()
    write_checkpoint(out, [aligned(tensors)], CONFIG)
    weighed = None if weights is None else {"file": "weights.safetensors", "sha256": "0" * 64, "tensors": len(weights)}
    write_manifest(src, out, "w4afp8", dialect, method, weighed, claims)
    return out


def aligned(tensors: Tensors) -> Tensors:
    width = {"I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2}
    return dict(sorted(tensors.items(), key=lambda item: -width.get(item[1][0], 1)))


def write_manifest(
    src: Path, out: Path, form: str, dialect: str, method: str, weights: Any, claims: dict[str, Any], **more: Any
) -> None:
    body: dict[str, Any] = {
        "schema": "truecast.manifest/1",
        "source": {"fingerprint": open_checkpoint(src).fingerprint()},
        "target": {"format": form, "dialect": dialect, "inexact": "error"},
        "blocks": {"renormalised": 0},
        "inexact": [],
        "inexact_matrices": {},
        "dropped": {},
        "int4": {"method": method, "signs": "both", "weights": weights, "matrices": claims.get("int4", {})},
        "fp8": {"matrices": claims.get("fp8", {})},
    } | more
    seal(out, body)


def seal(out: Path, body: dict[str, Any]) -> None:
    """Write the manifest with the hashes that the files now have."""
    body = {k: v for k, v in body.items() if k != "sha256"}
    body["files"] = {
        p.name: {"bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in sorted(out.iterdir())
        if p.name != "truecast.json"
    }
    body["sha256"] = hashlib.sha256(encode(body)).hexdigest()
    (out / "truecast.json").write_bytes(encode(body))


def encode(body: dict[str, Any]) -> bytes:
    return json.dumps(body, indent=1, ensure_ascii=False).encode() + b"\n"


def manifest_of(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / "truecast.json").read_bytes())
    return document


def change(out: Path, edit: Callable[[Tensors], None], claims: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Change tensors and claims, and write header, index and manifest to match: nothing but the values can tell."""
    body = manifest_of(out)
    rewrite_shards(out, edit)
    if claims:
        claims(body)
    seal(out, body)


def edited(tensors: Tensors, name: str, dtype: Any, edit: Callable[[NDArray[Any]], None]) -> None:
    """Change one tensor as an array of this dtype and the tensor's shape (of bytes along the last axis)."""
    kind, shape, data = tensors[name]
    array = np.frombuffer(data, dtype).copy()
    array = array.reshape(*shape[:-1], -1) if shape else array
    edit(array)
    tensors[name] = kind, shape, array.tobytes()


def names(values: Iterable[Any]) -> set[str]:
    return {f.kind for f in values}
