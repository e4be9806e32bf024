"""FP8 outputs: of BF16 modules (judged), of MXFP4 matrices (the same values), and what BF16 becomes of both."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from lossy_checkpoints import (
    ATTENTION,
    CONFIG,
    E2M1,
    E4M3,
    EXPERTS,
    aligned,
    change,
    edited,
    fp8_nearest,
    fp8_of,
    manifest_of,
    mxfp4_source,
    mxfp4_values,
    names,
    plain_bf16,
    seal,
    source_matrix,
    unpack,
    w4afp8_output,
    write_manifest,
)
from verify_checkpoints import Tensors, load_shard, write_checkpoint

from truecast.errors import InputError
from truecast.verify import verify, verify_against

WEIGHT, SCALE = ATTENTION + ".weight", ATTENTION + ".weight_scale_inv"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    src = mxfp4_source(tmp_path / "src")
    return src, w4afp8_output(src, tmp_path / "out", method="amax")


def test_figures_of_a_bf16_module(pair: tuple[Path, Path]) -> None:
    src, out = pair
    figures = verify(src, out).quality.fp8
    assert (figures.matrices, figures.elements, figures.groups) == (1, 150 * 200, 0)
    assert figures.squared_error == pytest.approx(manifest_of(out)["fp8"]["matrices"][ATTENTION]["squared_error"])
    assert 0.999 < figures.nearest / figures.elements <= 1


@pytest.mark.parametrize(
    ("tensor", "dtype", "edit", "kind"),
    [
        (WEIGHT, np.uint8, lambda a: a.__setitem__((3, 5), a[3, 5] ^ 1), "value"),
        (WEIGHT, np.uint8, lambda a: a.__setitem__((3, 5), a[3, 5] ^ 0x80), "value"),
        (WEIGHT, np.uint8, lambda a: a.__setitem__((3, 5), 0x7F), "value"),
        (SCALE, np.float32, lambda a: a.__setitem__((0, 1), np.nextafter(a[0, 1], np.float32(9))), "scale"),
        (SCALE, np.float32, lambda a: a.__setitem__((0, 1), -a[0, 1]), "scale"),
        (SCALE, np.float32, lambda a: a.__setitem__((0, 1), np.inf), "scale"),
        (SCALE, np.float32, lambda a: a.__setitem__((1, 0), 2), "scale"),
    ],
)
def test_what_no_hash_shows(pair: tuple[Path, Path], tensor: str, dtype: Any, edit: Any, kind: str) -> None:
    src, out = pair
    change(out, lambda t: edited(t, tensor, dtype, edit))
    failures = verify(src, out).failures.kept
    assert kind in names(failures) and all(f.tensor in (tensor, WEIGHT) for f in failures)
    assert next(f for f in failures if f.kind == kind).row is not None


def test_a_changed_or_missing_claim(pair: tuple[Path, Path]) -> None:
    src, out = pair
    body = manifest_of(out)
    body["fp8"]["matrices"][ATTENTION]["squared_sum"] *= 1.00001
    seal(out, body)
    assert names(verify(src, out).failures.kept) == {"figures"}
    del body["fp8"]["matrices"][ATTENTION]
    seal(out, body)
    (failure,) = verify(src, out).failures.kept
    assert failure.kind == "manifest" and "does not say so" in failure.message
    body["fp8"]["matrices"]["model.norm"] = {"squared_error": 0.0, "squared_sum": 1.0}
    seal(out, body)
    assert any("no such module" in f.message for f in verify(src, out).failures.kept)
    (out / "truecast.json").unlink()
    report = verify(src, out)
    assert report.ok and any("1 BF16 modules are FP8" in note for note in report.notes)


def test_nan_in_the_source_is_bad_input(tmp_path: Path) -> None:
    src = mxfp4_source(tmp_path / "src")
    out = w4afp8_output(src, tmp_path / "out", method="amax")
    tensors = load_shard(next(src.glob("*.safetensors")))
    edited(tensors, WEIGHT, np.uint16, lambda a: a.__setitem__((140, 9), 0x7F80))
    write_checkpoint(tmp_path / "broken", [tensors], CONFIG)
    with pytest.raises(InputError, match="row 140, column 9 is NaN or infinite"):
        verify(tmp_path / "broken", out)


def test_nearest_codes_are_counted_by_fractions(tmp_path: Path) -> None:
    """Somebody else's codes and scales: each judged on its own."""
    rng = np.random.default_rng(3)
    bits = plain_bf16(rng, 20, 140)
    codes, scales = fp8_of(bits)
    scales *= rng.uniform(0.6, 1.5, scales.shape).astype(np.float32)
    codes ^= (rng.random(codes.shape) < 0.2) * rng.choice([1, 0x80], codes.shape).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] ^= 1
    shard: Tensors = {"a.weight": ("BF16", bits.shape, bits.tobytes()), "b": ("BF16", (1,), b"\0\0")}
    made: Tensors = {
        "a.weight_scale_inv": ("F32", scales.shape, scales.tobytes()),
        "b": shard["b"],
        "a.weight": ("F8_E4M3", codes.shape, codes.tobytes()),
    }
    src = write_checkpoint(tmp_path / "src", [shard], CONFIG)
    report = verify(src, write_checkpoint(tmp_path / "out", [made], CONFIG))
    assert report.ok
    values = bits.view(ml_dtypes.bfloat16).astype(np.float64)
    grid = np.concatenate([E4M3[:127], -E4M3[:127]])
    nearest = 0
    for row in range(20):
        for column in range(140):
            s = float(scales[0, column // 128])
            near = grid[np.argsort(np.abs(values[row, column] - grid * s))[:4]]
            own = abs(Fraction(values[row, column]) - Fraction(E4M3[codes[row, column]]) * Fraction(s))
            nearest += all(own <= abs(Fraction(values[row, column]) - Fraction(g) * Fraction(s)) for g in near)
    assert report.quality.fp8.nearest == nearest < report.quality.fp8.elements


def exact_fp8(packed: np.ndarray, scales: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """FP8 codes of MXFP4 values under power-of-two scales, one for each region of this shape; nearest if inexact."""
    values = mxfp4_values(packed, scales)
    rows, cols = values.shape
    high, wide = shape[0] or rows, shape[1] or cols
    out = np.empty((-(-rows // high), -(-cols // wide)), np.float32)
    codes = np.empty(values.shape, np.uint8)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            part = slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide)
            largest = np.abs(values[part]).max()
            out[i, j] = 2.0 ** (np.floor(np.log2(largest)) - 8) if largest else 1
            codes[part] = fp8_nearest((values[part] / out[i, j]).astype(np.float32))
    return codes, out


DIALECTS = {"deepseek": (".weight_scale_inv", (128, 128)), "compressed-tensors": (".weight_scale", (1, 0))}


def fp8_output(src: Path, out: Path, dialect: str) -> Path:
    suffix, region = DIALECTS[dialect]
    source = load_shard(next(src.glob("*.safetensors")))
    tensors = {n: t for n, t in source.items() if EXPERTS not in n}
    for name in (n.removesuffix(".weight_packed") for n in source if n.endswith(".weight_packed")):
        codes, scales = exact_fp8(*source_matrix(source, name), region)
        tensors[name + ".weight"] = "F8_E4M3", codes.shape, codes.tobytes()
        tensors[name + suffix] = "F32", scales.shape, scales.tobytes()
    write_checkpoint(out, [aligned(tensors)], CONFIG)
    write_manifest(src, out, "fp8", dialect, "exact", None, {}, int4=None)
    return out


def narrow(src: Path, seed: int = 0) -> Path:
    """A source whose blocks of one matrix lie near one another."""
    mxfp4_source(src.with_name("wide"), seed)
    tensors = load_shard(next(src.with_name("wide").glob("*.safetensors")))

    def clip(scales: np.ndarray) -> None:
        scales[0, :4] = 118

    for name in [n for n in tensors if n.endswith(".weight_scale")]:
        edited(tensors, name, np.uint8, clip)
    return write_checkpoint(src, [tensors], CONFIG)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_mxfp4_as_fp8_is_the_same_value_for_value(dialect: str, tmp_path: Path) -> None:
    src = narrow(tmp_path / "src")
    out = fp8_output(src, tmp_path / "out", dialect)
    certificate = tmp_path / "c.json"
    report = verify(src, out, certificate=certificate)
    assert report.failures.kept == [] and report.notes == [] and report.quality.matrices == 0
    for side in (src, out):
        assert verify_against(side, certificate).ok
    name = f"{EXPERTS}.1.up_proj"
    negative_zero = next(
        (int(r), int(c))
        for r, c in np.argwhere(unpack(source_matrix(load_shard(next(src.glob("*.s*"))), name)[0]) == 8)
    )
    for bit in (1, 0x80):
        edit = lambda a, bit=bit: a.__setitem__(negative_zero, a[negative_zero] ^ bit)  # noqa: E731
        change(out, lambda t, edit=edit: edited(t, name + ".weight", np.uint8, edit))
        (failure,) = verify(src, out).failures.kept
        assert (failure.kind, failure.tensor, (failure.row, failure.column)) == (
            "value",
            name + ".weight",
            negative_zero,
        )
        change(out, lambda t, edit=edit: edited(t, name + ".weight", np.uint8, edit))


def test_rounded_elements_must_be_declared_and_nearest(tmp_path: Path) -> None:
    src = mxfp4_source(tmp_path / "plain")
    tensors = load_shard(next(src.glob("*.safetensors")))
    name = f"{EXPERTS}.0.gate_proj"
    edited(tensors, name + ".weight_packed", np.uint8, lambda a: a.__setitem__((0, slice(0, 16)), 0x71))
    edited(tensors, name + ".weight_scale", np.uint8, lambda a: a.__setitem__((0, slice(0, 4)), [100, 118, 118, 118]))
    src = write_checkpoint(tmp_path / "src", [tensors], CONFIG)
    out = fp8_output(src, tmp_path / "out", "deepseek")
    values = mxfp4_values(*source_matrix(tensors, name))
    stored = load_shard(next(out.glob("*.safetensors")))
    codes = np.frombuffer(stored[name + ".weight"][2], np.uint8).reshape(values.shape)
    scales = np.frombuffer(stored[name + ".weight_scale_inv"][2], np.float32)
    lost = int(np.count_nonzero(E4M3[codes] * np.repeat(scales, 128) != values))
    assert 0 < lost <= 32
    assert {f.kind for f in verify(src, out).failures.kept} == {"value", "inexact"} - ({"inexact"})
    body = manifest_of(out)
    body["inexact_matrices"] = {name: lost}
    body["target"]["inexact"] = "allow"
    seal(out, body)
    wrong = [f for f in verify(src, out).failures.kept if f.tensor.startswith(name)]
    assert wrong == [] and verify(src, out).counts.inexact_elements == lost
    change(out, lambda t: edited(t, name + ".weight", np.uint8, lambda a: a.__setitem__((0, 1), a[0, 1] ^ 1)))
    assert {f.kind for f in verify(src, out).failures.kept if f.tensor.startswith(name)} >= {"value"}


@pytest.mark.parametrize("shift", [-1, 1])
def test_rounding_under_a_scale_that_need_not_be_is_found(shift: int, tmp_path: Path) -> None:
    """Values clipped, or more of them rounded than must be, though each code is the nearest and all are counted."""
    src = narrow(tmp_path / "src")
    out = fp8_output(src, tmp_path / "out", "deepseek")
    tensors = load_shard(next(src.glob("*.safetensors")))
    name = f"{EXPERTS}.0.gate_proj"
    edited(tensors, name + ".weight_packed", np.uint8, lambda a: a.__setitem__((0, slice(0, 16)), 0x71))
    edited(tensors, name + ".weight_scale", np.uint8, lambda a: a.__setitem__((0, slice(0, 4)), [100, 118, 118, 118]))
    src = write_checkpoint(tmp_path / "other", [tensors], CONFIG)
    values = mxfp4_values(*source_matrix(tensors, name))
    stored = load_shard(next(out.glob("*.safetensors")))
    scales = np.frombuffer(stored[name + ".weight_scale_inv"][2], np.float32) * np.float32(2.0**shift)
    codes = fp8_nearest((values / np.repeat(scales, 128)).astype(np.float32))
    lost = int(np.count_nonzero(E4M3[codes] * np.repeat(scales, 128) != values))

    def edit(held: Tensors) -> None:
        held[name + ".weight_scale_inv"] = "F32", (1, 2), scales.tobytes()
        held[name + ".weight"] = "F8_E4M3", values.shape, codes.tobytes()

    change(out, edit)
    write_manifest(src, out, "fp8", "deepseek", "exact", None, {}, int4=None, inexact_matrices={name: lost},
                   target={"format": "fp8", "dialect": "deepseek", "inexact": "allow"})  # fmt: skip
    failures = verify(src, out).failures.kept
    assert [f.kind for f in failures] == ["scale"] and "not the least" in failures[0].message


def test_e2m1_of_the_tests_is_that_of_the_format() -> None:
    assert (np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64) == E2M1).all()


@pytest.mark.parametrize("kind", ["w4afp8", "fp8"])
def test_back_to_bf16_is_rounded_once(kind: str, tmp_path: Path) -> None:
    src = narrow(tmp_path / "src")
    middle = w4afp8_output(src, tmp_path / "middle", "sglang", "signed")
    if kind == "fp8":
        middle = fp8_output(src, tmp_path / "fp8", "compressed-tensors")
    stored = load_shard(next(middle.glob("*.safetensors")))
    suffix = ".weight_scale_inv" if kind == "w4afp8" else ".weight_scale"
    tensors = {n: t for n, t in stored.items() if EXPERTS not in n and ATTENTION not in n}
    rounded, exact = {}, True
    for name in [n.removesuffix(suffix) for n in stored if n.endswith(suffix)] + [ATTENTION]:
        if name == ATTENTION and kind == "fp8":
            tensors[name + ".weight"] = stored[name + ".weight"]
            continue
        _, shape, data = stored[name + ".weight"]
        codes = np.frombuffer(data, np.uint8).reshape(shape)
        other = ".weight_scale_inv" if name == ATTENTION else suffix
        dtype, scale_shape, scale_data = stored[name + other]
        scales = np.frombuffer(scale_data, ml_dtypes.bfloat16 if dtype == "BF16" else np.float32).reshape(scale_shape)
        wide = scales.astype(np.float64)
        if name == ATTENTION or kind == "fp8":
            part = E4M3[codes]
            wide = np.repeat(np.repeat(wide, 128, 0), 128, 1)[: shape[0], : shape[1]] if name == ATTENTION else wide
        else:
            part, wide = ((unpack(codes).astype(int) ^ 8) - 8).astype(np.float64), np.repeat(wide, 128, axis=1)
        values = part * wide  # exact; float64 to BF16 by way of float32 would round twice, so by fractions of steps
        bits = once(values)
        back = bits.view(ml_dtypes.bfloat16).astype(np.float64)
        rounded[name] = int(np.count_nonzero(back != values))
        exact &= rounded[name] == 0
        tensors[name + ".weight"] = "BF16", bits.shape, bits.tobytes()
    out = write_checkpoint(tmp_path / "out", [aligned(tensors)], CONFIG)
    dropped = {n: "activation scale" for n in stored if n.endswith(".input_scale")}
    write_manifest(
        middle, out, "bf16", "bf16", "exact", None, {}, int4=None, dropped=dropped,
        target={"format": "bf16", "dialect": "bf16", "inexact": "allow"},
        inexact_matrices={n: c for n, c in rounded.items() if c},
    )  # fmt: skip
    report = verify(middle, out)
    assert report.failures.kept == []
    assert report.counts.inexact_elements == sum(rounded.values())
    name = f"{EXPERTS}.1.down_proj.weight"
    change(out, lambda t: edited(t, name, np.uint16, lambda a: a.__setitem__((2, 200), a[2, 200] ^ 1)))
    (failure,) = verify(middle, out).failures.kept
    assert (failure.kind, failure.tensor, failure.row, failure.column) == ("value", name, 2, 200)
    body = manifest_of(out)
    body["inexact_matrices"] = {}
    seal(out, body)
    assert ("inexact" in names(verify(middle, out).failures.kept)) != exact


def once(values: np.ndarray) -> np.ndarray:
    """BF16 bits of float64 values: among both BF16 neighbours of the truncated one, the nearest, ties to even."""
    low = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.int64)
    tried = np.stack([np.maximum(low & 0x7FFF, 1) + d for d in (-1, 0, 1)]) | (low & 0x8000)
    numbers = tried.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    distance = np.abs(numbers - values) + np.where(tried % 2 == 1, 0.0, -np.abs(values) * 2.0**-40)
    return np.take_along_axis(tried, distance.argmin(axis=0)[None], axis=0)[0].astype(np.uint16)
