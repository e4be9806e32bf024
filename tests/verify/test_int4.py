"""INT4 outputs are judged from their bytes: against a slow quantizer, and against contradictions that no hash shows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from lossy_checkpoints import (
    ATTENTION,
    EXPERTS,
    SHAPES,
    change,
    edited,
    figures_of,
    int4_tensors,
    manifest_of,
    mxfp4_source,
    mxfp4_values,
    names,
    pack,
    quantize,
    seal,
    source_matrix,
    unpack,
    w4afp8_output,
)
from verify_checkpoints import Tensors, load_shard

from truecast.checkpoint.header import encode_header
from truecast.errors import InputError
from truecast.verify import verify, verify_against

NAME = f"{EXPERTS}.0.gate_proj"
SUFFIXES = {"sglang": (".weight", ".weight_scale_inv"), "compressed-tensors": (".weight_packed", ".weight_scale")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("made")
    src = mxfp4_source(folder / "src")
    return src, w4afp8_output(src, folder / "out")


@pytest.fixture
def pair(made: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A source, and an output of its own to damage."""
    src, out = made
    copy = tmp_path / "out"
    copy.mkdir()
    for path in out.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return src, copy


@pytest.mark.parametrize("dialect", ["sglang", "compressed-tensors"])
@pytest.mark.parametrize("method", ["exact", "signed", "amax"])
def test_what_the_method_gives_is_proven(dialect: str, method: str, tmp_path: Path) -> None:
    src = mxfp4_source(tmp_path / "src")
    out = w4afp8_output(src, tmp_path / "out", dialect, method)
    report = verify(src, out, jobs=1)
    assert report.failures.kept == [] and report.notes == []
    figures = report.quality.int4
    claims = manifest_of(out)["int4"]["matrices"]
    for term in ("groups", "exact_groups", "zero_groups", "negative_scales"):
        assert getattr(figures, term) == sum(claim[term] for claim in claims.values())
    assert figures.squared_error == pytest.approx(sum(c["squared_error"] for c in claims.values()), rel=1e-12)
    assert figures.nearest == figures.elements == 2 * (6 * 256 * 2 + 4 * 384)
    assert figures.zero_groups == 6  # one a matrix, and one of few values, which 1/7 of the largest does not hit
    assert figures.exact_groups >= (12 if method == "exact" else 6)
    assert (figures.unbeaten == figures.groups) == (method == "exact")
    assert report.quality.fp8.matrices == 1
    assert sum(report.quality.histogram) == figures.groups - figures.exact_groups
    document = json.loads(json.dumps(report.document()))["quality"]
    assert document["layers"].keys() == {"model.layers.0", "model.layers.1"}
    assert len(document["worst"]) == 7


def test_several_processes_say_the_same(made: tuple[Path, Path]) -> None:
    src, out = made
    assert verify(src, out, jobs=1).document() == verify(src, out, jobs=2).document()


def write_weights(path: Path, vectors: dict[str, np.ndarray]) -> Path:
    tensors = {n: ("BF16" if v.dtype == np.uint16 else "F32", v.shape) for n, v in vectors.items()}
    header = encode_header(((n, d, s) for n, (d, s) in tensors.items()), {})
    path.write_bytes(header + b"".join(v.tobytes() for v in vectors.values()))
    return path


def whole(vector: np.ndarray) -> np.ndarray:
    floats = (vector.astype(np.uint32) << 16).view(np.float32) if vector.dtype == np.uint16 else vector
    groups = floats.astype(np.float64).reshape(-1, 128)
    return np.maximum(1, np.rint(groups / groups.max(axis=1, keepdims=True) * 65535)).reshape(-1)


@pytest.fixture
def weighted(tmp_path: Path) -> tuple[Path, Path, Path, dict[str, np.ndarray]]:
    """Source, output, weights file, and its vectors: one for all experts, but one expert has its own."""
    src = mxfp4_source(tmp_path / "src")
    rng = np.random.default_rng(1)
    vectors: dict[str, np.ndarray] = {}
    for leaf, (_, cols) in SHAPES.items():
        vectors[f"model.layers.*.mlp.experts.*.{leaf}"] = np.exp(3 * rng.standard_normal(cols)).astype(np.float32)
        vectors[f"{EXPERTS}.*.{leaf}"] = np.exp(3 * rng.standard_normal(cols)).astype(np.float32)
        vectors[f"{EXPERTS}.*.{leaf}"][128:140] = 0
    vectors[NAME] = np.exp(rng.standard_normal(256)).astype(ml_dtypes.bfloat16).view(np.uint16)
    path = write_weights(tmp_path / "weights.safetensors", dict(sorted(vectors.items(), key=lambda i: i[1].itemsize)))
    used = {f"{EXPERTS}.{e}.{leaf}": whole(vectors[f"{EXPERTS}.*.{leaf}"]) for e in range(2) for leaf in SHAPES}
    used[NAME] = whole(vectors[NAME])
    out = w4afp8_output(src, tmp_path / "out", weights=used)
    claim_weights(out, path)
    return src, out, path, vectors


def claim_weights(out: Path, path: Path) -> None:
    body = manifest_of(out)
    body["int4"]["weights"] = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    seal(out, body)


def test_weights_are_used_as_the_manifest_says(weighted) -> None:
    src, out, path, vectors = weighted
    report = verify(src, out, weights=path)
    assert report.failures.kept == [] and report.notes == []
    assert report.quality.int4.unbeaten == report.quality.int4.groups
    assert verify(src, out, weights=path, jobs=2).document() == report.document()
    without = verify(src, out)
    assert without.ok and "without that file it is not checked for 6 matrices" in without.notes[0]
    assert without.quality.int4.unbeaten < without.quality.int4.groups
    other = write_weights(path.with_name("other"), {n: np.flip(v).copy() for n, v in vectors.items()})
    with pytest.raises(InputError, match="not the file by which"):
        verify(src, out, weights=other)
    claim_weights(out, other)
    assert "neighbouring BF16 scale" in verify(src, out, weights=other).failures.kept[0].message


@pytest.mark.parametrize(
    ("vector", "why"),
    [
        (np.ones(255, np.float32), "has 256 input channels"),
        (np.full(256, -1, np.float32), "channel 0 is -1.0; it must be finite and not negative"),
        (np.full(256, np.nan, np.float32), "channel 0 is nan"),
        (None, "holds no importance vector"),
    ],
)
def test_faulty_weights_are_bad_input(weighted, vector: np.ndarray | None, why: str) -> None:
    src, out, path, vectors = weighted
    if vector is None:
        vectors = {n: v for n, v in vectors.items() if "gate_proj" not in n}
    write_weights(path, vectors if vector is None else {**vectors, NAME: vector})
    claim_weights(out, path)
    with pytest.raises(InputError, match=why):
        verify(src, out, weights=path)


def test_weights_that_the_manifest_does_not_mention_change_nothing(made: tuple[Path, Path], tmp_path: Path) -> None:
    src, out = made
    path = write_weights(tmp_path / "w", {NAME: np.linspace(0, 1, 256, dtype=np.float32)})
    report = verify(src, out, weights=path).document()
    assert report.pop("notes") == [f"{path} is not used: the manifest declares no weights"]
    assert report == {k: v for k, v in verify(src, out).document().items() if k != "notes"}


def row_of(out: Path, name: str = NAME) -> tuple[np.ndarray, np.ndarray]:
    """Integer codes and scales of an output matrix."""
    tensors = load_shard(next(out.glob("*.safetensors")))
    _, shape, codes = tensors[name + ".weight"]
    _, scale_shape, scales = tensors[name + ".weight_scale_inv"]
    integers = (unpack(np.frombuffer(codes, np.uint8).reshape(shape)).astype(int) ^ 8) - 8
    return integers, np.frombuffer(scales, ml_dtypes.bfloat16).reshape(scale_shape).astype(np.float64)


def put(out: Path, codes: np.ndarray, scales: np.ndarray, claim: bool = True, src: Path | None = None) -> None:
    """Store other codes and scales, with hashes and (``claim``) figures that go with them."""

    def edit(tensors: Tensors) -> None:
        tensors |= {k: v for k, v in int4_tensors(NAME, codes, scales).items() if k in tensors}

    def claims(body: dict[str, Any]) -> None:
        if claim and src is not None:
            source = load_shard(next(src.glob("*.safetensors")))
            values = mxfp4_values(*source_matrix(source, NAME))
            body["int4"]["matrices"][NAME] = figures_of(values, codes, scales)

    change(out, edit, claims)


def test_a_code_moved_by_one_is_found(pair: tuple[Path, Path]) -> None:
    src, out = pair
    codes, scales = row_of(out)
    codes[3, 200] += 1 if codes[3, 200] < 7 else -1
    put(out, codes, scales, src=src)
    (failure,) = verify(src, out).failures.kept
    assert (failure.kind, failure.tensor, failure.row, failure.column) == ("value", NAME + ".weight", 3, 200)


@pytest.mark.parametrize("step", [-1, 1])
def test_a_scale_moved_by_one_place_is_found(pair: tuple[Path, Path], step: int) -> None:
    src, out = pair
    codes, scales = row_of(out)
    source = load_shard(next(src.glob("*.safetensors")))
    values = mxfp4_values(*source_matrix(source, NAME))
    bits = int(np.array(scales[4, 1]).astype(ml_dtypes.bfloat16).view(np.uint16)) + step
    scales[4, 1] = np.array(bits, np.uint16).view(ml_dtypes.bfloat16)
    codes[4, 128:] = np.clip(np.rint(values[4, 128:] / scales[4, 1]), -8, 7)
    put(out, codes, scales, src=src)
    (failure,) = verify(src, out).failures.kept
    assert (failure.kind, failure.row, failure.column) == ("scale", 4, 128)
    assert "neighbouring" in failure.message


def test_a_flipped_sign_with_negated_codes(pair: tuple[Path, Path]) -> None:
    """Legal where no code leaves -8..7; the figure of negative scales tells, unless it is changed too."""
    src, out = pair
    codes, scales = row_of(out)
    groups = codes.reshape(6, 2, 128)
    row, group = next((r, g) for r in range(1, 6) for g in range(2) if groups[r, g].min() > -8)
    groups[row, group] *= -1
    scales[row, group] *= -1
    put(out, codes, scales)
    assert [f.kind for f in verify(src, out).failures.kept] == ["figures"]
    put(out, codes, scales, src=src)
    assert verify(src, out).ok

    row, group = next((r, g) for r in range(1, 6) for g in range(2) if groups[r, g].min() == -8)
    groups[row, group] = np.minimum(-groups[row, group], 7)
    scales[row, group] *= -1
    put(out, codes, scales, src=src)
    assert any("the other sign" in f.message for f in verify(src, out).failures.kept)


@pytest.mark.parametrize(
    "term", ["squared_error", "squared_sum", "groups", "exact_groups", "zero_groups", "negative_scales"]
)
def test_a_changed_figure_is_found(pair: tuple[Path, Path], term: str) -> None:
    src, out = pair
    body = manifest_of(out)
    figures = body["int4"]["matrices"][NAME]
    figures[term] = figures[term] * (1 + 2e-9) if isinstance(figures[term], float) else figures[term] + 1
    seal(out, body)
    (failure,) = verify(src, out).failures.kept
    assert failure.kind == "figures" and term in failure.message


@pytest.mark.parametrize("value", [float("nan"), 10**400, "1", None, True])
def test_figures_that_are_no_numbers(pair: tuple[Path, Path], value: object) -> None:
    src, out = pair
    body = manifest_of(out)
    body["int4"]["matrices"][NAME]["squared_error"] = value
    seal(out, body)
    assert names(verify(src, out).failures.kept) <= {"figures", "manifest"}
    assert not verify(src, out).ok


def test_figures_of_other_matrices_or_of_too_few(pair: tuple[Path, Path]) -> None:
    src, out = pair
    body = manifest_of(out)
    body["int4"]["matrices"]["model.layers.9.up_proj"] = body["int4"]["matrices"].pop(NAME)
    seal(out, body)
    found = {f.kind: f.message for f in verify(src, out).failures.kept}
    assert "no such matrix" in found["manifest"] and "no figures" in found["figures"]
    body["int4"] = None
    seal(out, body)
    assert "says nothing of how 6 INT4" in verify(src, out).failures.kept[0].message


@pytest.mark.parametrize("method", ["signed", "amax"])
def test_a_better_scale_than_the_rule_contradicts_it(pair: tuple[Path, Path], method: str) -> None:
    src, out = pair
    body = manifest_of(out)
    body["int4"]["method"] = method
    seal(out, body)
    assert {f.kind for f in verify(src, out).failures.kept} == {"scale"}


def test_under_an_unknown_method_or_without_manifest_figures_only(pair: tuple[Path, Path]) -> None:
    src, out = pair
    codes, scales = row_of(out)
    codes[3, 200] += 1 if codes[3, 200] < 7 else -1
    put(out, codes, scales, src=src)
    body = manifest_of(out)
    body["int4"]["method"] = "hessian"
    seal(out, body)
    report = verify(src, out)
    assert report.ok and "'hessian' is not known here" in report.notes[0]
    (out / "truecast.json").unlink()
    report = verify(src, out)
    assert report.ok and len(report.notes) == 3
    assert report.quality.int4.nearest == report.quality.int4.elements - 1


@pytest.mark.parametrize("scale", [0.0, -0.0, float("inf"), float("nan")])
def test_illegal_scales_are_found_without_manifest(pair: tuple[Path, Path], scale: float) -> None:
    src, out = pair
    codes, scales = row_of(out)
    scales[5, 1] = scale
    put(out, codes, scales)
    (out / "truecast.json").unlink()
    (failure,) = verify(src, out).failures.kept
    assert (failure.kind, failure.row, failure.column) == ("scale", 5, 128)


def test_a_matrix_of_another_source_is_no_approximation(pair: tuple[Path, Path]) -> None:
    src, out = pair
    codes, scales = row_of(out)
    put(out, codes[:, ::-1] * -1 - 1, scales * 2)
    (out / "truecast.json").unlink()
    (failure,) = verify(src, out).failures.kept
    assert failure.kind == "value" and "no approximation" in failure.message


def test_a_group_of_zeros_has_scale_1_and_codes_0(pair: tuple[Path, Path]) -> None:
    src, out = pair
    codes, scales = row_of(out)
    assert not codes[0, :128].any() and scales[0, 0] == 1
    scales[0, 0] = 2
    put(out, codes, scales, src=src)
    assert "all-zero group" in verify(src, out).failures.kept[0].message
    (out / "truecast.json").unlink()
    assert verify(src, out).ok


def test_negative_scales_that_the_manifest_rules_out(pair: tuple[Path, Path]) -> None:
    src, out = pair
    body = manifest_of(out)
    body["int4"]["signs"] = "positive"
    seal(out, body)
    assert {f.message for f in verify(src, out).failures.kept} == {"has negative scales, which the manifest rules out"}


@pytest.mark.parametrize("value", [0.5, float("inf"), -1.0, 0.0])
def test_activation_scales(pair: tuple[Path, Path], value: float) -> None:
    src, out = pair
    change(out, lambda t: t.update({NAME + ".input_scale": ("F32", (), np.float32(value).tobytes())}))
    assert names(verify(src, out).failures.kept) == {"input_scale"}
    (out / "truecast.json").unlink()
    assert verify(src, out).ok == (value == 0.5)  # somebody else's calibration


def test_the_stored_shape_is_compared(tmp_path: Path) -> None:
    src = mxfp4_source(tmp_path / "src")
    out = w4afp8_output(src, tmp_path / "out", "compressed-tensors")
    change(out, lambda t: edited(t, NAME + ".weight_shape", np.int64, lambda a: a.sort()))
    assert verify(src, out).ok
    change(out, lambda t: edited(t, NAME + ".weight_shape", np.int64, lambda a: np.copyto(a, a[::-1].copy())))
    (failure,) = verify(src, out).failures.kept
    assert failure.kind == "shape" and "[256, 6]" in failure.message


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_scales_that_are_no_bf16_are_judged_too(pair: tuple[Path, Path], dtype: str) -> None:
    src, out = pair
    codes, scales = row_of(out)
    source = load_shard(next(src.glob("*.safetensors")))
    values = mxfp4_values(*source_matrix(source, NAME))
    scales[2:] *= 1 + 2.0**-9
    scales = scales.astype({"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float64)
    codes = np.clip(np.rint(values / np.repeat(scales, 128, axis=1)), -8, 7).astype(int)
    dialect = "sglang" if dtype == "F32" else "compressed-tensors"

    def edit(tensors: Tensors) -> None:
        for suffix in (".input_scale", ".weight_scale_inv", ".weight"):
            del tensors[NAME + suffix]
        whole = {**int4_tensors(NAME, codes, scales, dialect, dtype), **tensors}
        tensors.clear()
        tensors |= dict(sorted(whole.items(), key=lambda item: -len(item[1][1]) - 9 * (item[1][0] == "I64")))

    change(out, edit)
    (out / "truecast.json").unlink()
    report = verify(src, out)
    assert report.failures.kept == []
    assert report.quality.int4.other_scales == 8
    assert report.quality.int4.nearest == report.quality.int4.elements
    wanted = figures_of(values, codes, scales)["squared_error"]
    others = sum(f["squared_error"] for n, f in manifest_claims(src, out).items() if n != NAME)
    assert report.quality.int4.squared_error == pytest.approx(wanted + others, rel=1e-12)


def manifest_claims(src: Path, out: Path) -> dict[str, Any]:
    claims: dict[str, Any] = {}
    source = load_shard(next(src.glob("*.safetensors")))
    for name in (n.removesuffix(".weight_packed") for n in source if n.endswith(".weight_packed")):
        values = mxfp4_values(*source_matrix(source, name))
        claims[name] = figures_of(values, *quantize(values, "exact"))
    return claims


def test_between_the_dialects_integers_are_equal(made: tuple[Path, Path], tmp_path: Path) -> None:
    _, out = made
    codes_of = load_shard(next(out.glob("*.safetensors")))
    tensors = {n: t for n, t in codes_of.items() if EXPERTS not in n}
    for name in manifest_of(out)["int4"]["matrices"]:
        tensors |= int4_tensors(name, *row_of(out, name), "compressed-tensors")
    other = tmp_path / "other"
    change_into(out, other, tensors)
    assert {f.kind for f in verify(out, other).failures.kept} == {"missing"}  # the activation scales, undeclared
    back = tmp_path / "back"
    change_into(other, back, codes_of)
    assert verify(other, back).failures.kept == []
    codes, scales = row_of(back)
    codes[2, 77] ^= 1
    scales[3, 1] = -scales[3, 1]
    for name, array in int4_tensors(NAME, codes, scales).items():
        codes_of[name] = array
    change_into(other, tmp_path / "bad", codes_of)
    found = [(f.kind, f.row, f.column) for f in verify(other, tmp_path / "bad").failures.kept]
    assert found == [("value", 2, 77), ("scale", 3, 128)]


def change_into(src: Path, out: Path, tensors: Tensors) -> None:
    from lossy_checkpoints import CONFIG, aligned
    from verify_checkpoints import write_checkpoint

    write_checkpoint(out, [aligned(tensors)], CONFIG)


def test_a_certificate_of_a_lossy_cast(made: tuple[Path, Path], tmp_path: Path) -> None:
    src, out = made
    assert verify(src, out, certificate=tmp_path / "c.json").ok
    for side in (src, out):
        report = verify_against(side, tmp_path / "c.json")
        assert report.failures.kept == []
        assert report.counts.matrices == 7
    entry = next(m for m in json.loads((tmp_path / "c.json").read_bytes())["matrices"] if m["name"] == ATTENTION)
    assert entry["source"]["layout"] == "bf16" and entry["out"]["canonical"] != entry["canonical"]


def test_packing_of_the_test_itself() -> None:
    codes = np.arange(-8, 8).reshape(1, 16)
    assert pack(codes)[0, 0] == 0x98 and ((unpack(pack(codes)).astype(int) ^ 8) - 8 == codes).all()
