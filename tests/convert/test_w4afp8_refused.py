"""What ``--to w4afp8`` refuses: exit code, file, tensor and remedy, and nothing written."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from examples.shaped import kimi_k3
from tests.convert.decoding import load, mxfp4, mxfp4_sources, nibbles
from tests.convert.w4afp8_sources import EXPERT, LEAVES, Tensor, bf16, experts, llama, one_file, packed, plain, replaced
from truecast.casts import int4
from truecast.checkpoint.header import encode_header
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert, into_fp8
from truecast.convert.execute import plan
from truecast.convert.importance import open_importance
from truecast.errors import RefusedError, UsageError

Cli = Callable[..., Any]
SHARD = "model.safetensors"


@pytest.fixture
def refused(cli: Cli, tmp_path: Path) -> Callable[..., None]:
    """Convert on the command line and hold what it says against what it should."""

    def check(source: object, *said: str, options: tuple[object, ...] = ("--to", "w4afp8"), code: int = 2) -> None:
        out = tmp_path / "never"
        outcome = cli("convert", source, out, *options, "--jobs", 1)
        assert outcome.code == code, outcome
        assert outcome.err.startswith("truecast convert: ") and outcome.err.count("\n") == 1, outcome.err
        for part in said:
            assert part in outcome.err
        assert not out.exists()

    return check


Refused = Callable[..., None]


def test_columns_that_do_not_split(refused: Refused, tmp_path: Path) -> None:
    source = one_file(tmp_path / "src", [*experts(), *packed("model.layers.1.mlp.down_proj", 128, 96)])
    refused(
        source,
        f"model.layers.1.mlp.down_proj.weight_packed in {SHARD}: ",
        "has 96 input channels, which is no multiple of 128; convert to nvfp4 (blocks of 16), or fp8, which takes any width",
    )


@pytest.mark.parametrize("gone", ["gate_proj", "up_proj"])
def test_missing_twin(refused: Refused, tmp_path: Path, gone: str) -> None:
    """The other expert has it, so this one should."""
    module = f"{EXPERT}{gone}"
    tensors = [(t[0].replace("experts.0", "experts.1"), *t[1:]) for t in experts()]
    tensors += replaced(experts(), without=(f"{module}.weight_packed", f"{module}.weight_scale"))
    left = "up_proj" if gone == "gate_proj" else "gate_proj"
    refused(
        one_file(tmp_path / "src", tensors),
        f"{EXPERT}{left}.weight_packed in {SHARD}: {EXPERT}{left} is here without its twin {module}: ",
        "; download the checkpoint again",
    )


def test_missing_twin_in_a_family_that_always_has_it(refused: Refused, tmp_path: Path) -> None:
    bank = "model.layers.1.block_sparse_moe.experts.0."
    source = one_file(tmp_path / "src", packed(f"{bank}w3", 128, 128), {"model_type": "kimi_k3"})
    refused(source, f"{bank}w3 is here without its twin {bank}w1")


def test_a_twin_that_is_w4afp8_already(cli: Cli, tmp_path: Path) -> None:
    assert cli("convert", one_file(tmp_path / "mxfp4", experts()), tmp_path / "w4afp8", "--to", "w4afp8").code == 0
    made = open_checkpoint(tmp_path / "w4afp8").tensors.values()
    data = (tmp_path / "w4afp8" / SHARD).read_bytes()
    mixed = [
        (t.name, t.dtype, t.shape, data[t.start : t.end]) for t in made if t.name.startswith(EXPERT + "up_proj.weight")
    ]
    mixed += [t for t in experts() if not t[0].startswith(EXPERT + "up_proj.")]
    source = one_file(tmp_path / "src", mixed)
    assert cli("convert", source, tmp_path / "out", "--to", "w4afp8", "--jobs", 1).code == 0
    outcome = cli("verify", source, tmp_path / "out", "--jobs", 1)
    assert outcome.code == 0 and "2 INT4 matrices approximate" in outcome.out


def test_a_file_without_vectors_is_refused_before_it_is_read(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    header = encode_header([("elsewhere", "U8", (1 << 42,))], {})
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + (1 << 42))
    source = one_file(tmp_path / "src", experts())
    refused(
        source,
        f"{path}: holds no importance vector for {EXPERT}gate_proj",
        options=("--to", "w4afp8", "--weights", path),
    )


def test_twin_that_is_not_packed(refused: Refused, tmp_path: Path) -> None:
    module = f"{EXPERT}up_proj"
    tensors = replaced(experts(), without=(f"{module}.weight_packed", f"{module}.weight_scale"))
    refused(
        one_file(tmp_path / "src", [*tensors, plain(f"{module}.weight", 128, 128)]),
        f"{EXPERT}gate_proj is here without its twin {module}",
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (127, 255), (61, 130)])
def test_attention_that_is_no_number(
    refused: Refused, cli: Cli, tmp_path: Path, value: float, row: int, column: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    monkeypatch.setattr(into_fp8, "_CHUNK", 1 << 12)  # read in several pieces
    weights = np.full((128, 256), 0.01)
    weights[row, column] = value
    source = one_file(tmp_path / "src", [*experts(), bf16(name, weights)])
    refused(
        source,
        f"{name} in {SHARD}: row {row}, column {column}: NaN or infinity, which has no FP8 code",
        "; download the shard again, or keep it BF16 with --attention bf16",
    )
    assert cli("convert", source, tmp_path / "out", "--to", "w4afp8", "--attention", "bf16", "--jobs", 1).code == 0
    assert load(tmp_path / "out")[name].data == load(source)[name].data


def test_nan_scale(refused: Refused, tmp_path: Path) -> None:
    scales = np.full((128, 4), 120)
    scales[3, 2] = 255
    source = one_file(tmp_path / "src", replaced(experts(), *packed(EXPERT + "up_proj", 128, 128, scale=scales)))
    for target in ("w4afp8", "fp8"):
        refused(
            source,
            f"{EXPERT}up_proj.weight_scale in {SHARD}: {EXPERT}up_proj: block scale is NaN (byte 255) at row 3, block 2",
            "; download the shard again",
            options=("--to", target),
        )


def test_nvfp4_is_no_source(refused: Refused, cli: Cli, tmp_path: Path) -> None:
    source = one_file(tmp_path / "src", experts())
    assert cli("convert", source, tmp_path / "nvfp4", "--to", "nvfp4", "--jobs", 1).code == 0
    for target in ("w4afp8", "fp8"):
        refused(
            tmp_path / "nvfp4",
            f"--to {target} takes mxfp4",
            f"and {EXPERT}gate_proj.weight in {SHARD} is nvfp4; convert from the original checkpoint",
            options=("--to", target),
        )


@pytest.mark.parametrize("target", ["nvfp4", "w4afp8", "fp8"])
def test_fp8_alone_is_no_source(refused: Refused, cli: Cli, tmp_path: Path, target: str) -> None:
    source, dialect = one_file(tmp_path / "src", experts()), "compressed-tensors"
    assert cli("convert", source, tmp_path / "fp8", "--to", "fp8", "--dialect", dialect, "--jobs", 1).code == 0
    refused(
        tmp_path / "fp8",
        f"--to {target} takes mxfp4",
        f"{EXPERT}gate_proj.weight in {SHARD} is fp8; convert from the original checkpoint",
        options=("--to", target),
    )


def test_already_w4afp8(refused: Refused, cli: Cli, tmp_path: Path) -> None:
    source = one_file(tmp_path / "src", experts())
    assert cli("convert", source, tmp_path / "w4afp8", "--to", "w4afp8", "--jobs", 1).code == 0
    refused(tmp_path / "w4afp8", "is w4afp8-sglang already: nothing to do")


@pytest.mark.parametrize("dtype", ["<i8", "<i4"])
def test_a_stored_shape_that_lies(refused: Refused, tmp_path: Path, dtype: str) -> None:
    """Words of 8-bit codes in groups of 64 have the same headers."""
    rng = np.random.default_rng(0)
    tensors = []
    for leaf in LEAVES:
        shape = np.array([128, 128 if leaf != "up_proj" else 64], dtype)
        tensors += [
            (f"{EXPERT}{leaf}.weight_packed", "I32", (128, 16), rng.bytes(128 * 64)),
            bf16(f"{EXPERT}{leaf}.weight_scale", np.full((128, 1), 0.5)),
            (f"{EXPERT}{leaf}.weight_shape", "I64" if dtype == "<i8" else "I32", (2,), shape.tobytes()),
        ]
    tensors.sort(key=lambda t: -{"I64": 8, "I32": 4, "BF16": 2}[t[1]])
    source = one_file(tmp_path / "src", tensors)
    for target in ("w4afp8", "bf16"):
        refused(
            source,
            f"{EXPERT}up_proj.weight_shape in {SHARD}: says [128, 64], but as 4-bit codes the words hold [128, 128]",
            "; only 4-bit codes in groups of 128 are read",
            options=("--to", target),
        )


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_unusable_group_scales(refused: Refused, tmp_path: Path, value: float) -> None:
    tensors = []
    for leaf in LEAVES:
        scales = np.full((128, 1), 0.5)
        scales[9] = value
        tensors += [
            (f"{EXPERT}{leaf}.weight", "I8", (128, 64), bytes(128 * 64)),
            bf16(f"{EXPERT}{leaf}.weight_scale_inv", scales),
        ]
    refused(
        one_file(tmp_path / "src", tensors),
        f"{EXPERT}gate_proj.weight_scale_inv in {SHARD}: {EXPERT}gate_proj: block scale is {value} at row 9, block 0",
        options=("--to", "bf16"),
    )


# -- options


@pytest.mark.parametrize("target", ["nvfp4", "fp8", "bf16"])
@pytest.mark.parametrize(
    ("option", "value"),
    [("--weights", "nowhere"), ("--method", "amax"), ("--attention", "bf16"), ("--attention", "fp8")],
)
def test_options_of_w4afp8_alone(refused: Refused, tmp_path: Path, target: str, option: str, value: str) -> None:
    refused(
        one_file(tmp_path / "src", experts()),
        f"{option} makes no sense with --to {target}",
        options=("--to", target, option, value),
    )


@pytest.mark.parametrize("method", ["signed", "amax"])
def test_a_method_that_knows_no_weights(refused: Refused, tmp_path: Path, method: str) -> None:
    refused(
        one_file(tmp_path / "src", experts()),
        f"--weights needs --method exact: {method} looks at the largest value only",
        options=("--to", "w4afp8", "--method", method, "--weights", tmp_path / "w.safetensors"),
    )


@pytest.mark.parametrize(("option", "value"), [("--weights", "nowhere"), ("--method", "amax")])
def test_nothing_to_quantize(refused: Refused, cli: Cli, tmp_path: Path, option: str, value: str) -> None:
    """Another dialect of the same groups: no rule was used, so the manifest must name none."""
    source = one_file(tmp_path / "src", experts())
    assert cli("convert", source, tmp_path / "w4afp8", "--to", "w4afp8", "--jobs", 1).code == 0
    refused(
        tmp_path / "w4afp8",
        f"{option} makes no sense here: the INT4 groups of {tmp_path}/w4afp8 stay as they are",
        options=("--to", "w4afp8", "--dialect", "compressed-tensors", option, value),
    )


def test_fp8_attention_has_no_place_in_pack_quantized(refused: Refused, tmp_path: Path) -> None:
    refused(
        one_file(tmp_path / "src", experts()),
        "the dialect compressed-tensors keeps attention in BF16; leave out --attention fp8",
        options=("--to", "w4afp8", "--dialect", "compressed-tensors", "--attention", "fp8"),
    )


@pytest.mark.parametrize("missing", [(), ("torch",), ("torch", "triton")])
def test_cuda_where_there_is_none(
    refused: Refused, tmp_path: Path, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said at once: before the source's scales are read, here one that is NaN."""
    find = importlib.util.find_spec
    if missing:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in missing else find(name, *a))
        found = f"{' and '.join(n for n in ('torch', 'triton') if n in missing or not find(n))} not installed"
    else:
        int4_cuda = pytest.importorskip("truecast.casts.int4_cuda")
        monkeypatch.setattr(int4_cuda, "device_count", lambda: 0)
        found = "torch sees no CUDA device"
    source = one_file(tmp_path / "src", replaced(experts(), *packed(EXPERT + "up_proj", 128, 128, scale=255)))
    refused(
        source,
        f"--device cuda: {found}; install torch for CUDA, or leave --device out: same result",
        options=("--to", "w4afp8", "--device", "cuda"),
    )


# -- importance vectors


def weights_file(path: Path, **vectors: Any) -> Path:
    """F32 vectors by leaf of the expert, or arrays of another dtype."""
    names = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int32": "I32"}
    arrays = {EXPERT + leaf: np.asarray(v) for leaf, v in vectors.items()}
    header = encode_header([(n, names[a.dtype.name], a.shape) for n, a in arrays.items()], {})
    path.write_bytes(header + b"".join(a.tobytes() for a in arrays.values()))
    return path


def channels(seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).random(128).astype(np.float32)


def changed(index: int, value: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    vector = channels()
    vector[index] = value
    return vector


@pytest.mark.parametrize(
    ("vector", "said"),
    [
        (
            None,
            (
                f": holds no importance vector for {EXPERT}up_proj; add a tensor of 128 weights under that name, or"
                " with * for its numbers; the file has for example ",
            ),
        ),
        (channels()[:64], ("is F32 [64], but", "has 128 input channels; give one F32 weight for each input channel")),
        (channels().reshape(1, 128), ("is F32 [1, 128], but",)),
        (channels().astype(np.float64), ("is F64; store one of F32, F16, BF16",)),
        (channels().astype(np.int32), ("is I32; store one of F32, F16, BF16",)),
        (changed(17, -0.5), ("the weight of input channel 17 is -0.5", "must be finite and >= 0; calibrate again")),
        (changed(127, np.nan), ("the weight of input channel 127 is nan",)),
        (changed(0, np.inf), ("the weight of input channel 0 is inf",)),
    ],
    ids=["missing", "short", "matrix", "F64", "I32", "negative", "nan", "inf"],
)
def test_unusable_vector(refused: Refused, tmp_path: Path, vector: Any, said: tuple[str, ...]) -> None:
    vectors = {"gate_proj": channels(), "up_proj": vector, "down_proj": channels()}
    path = weights_file(tmp_path / "w.safetensors", **{k: v for k, v in vectors.items() if v is not None})
    place = str(path) if vector is None else f"{EXPERT}up_proj in {path}"
    refused(one_file(tmp_path / "src", experts()), f"{place}: ", *said, options=("--to", "w4afp8", "--weights", path))


def test_no_such_weights_file(refused: Refused, tmp_path: Path) -> None:
    source = one_file(tmp_path / "src", experts())
    refused(
        source,
        f"{tmp_path}/none: cannot open: No such file",
        options=("--to", "w4afp8", "--weights", tmp_path / "none"),
    )
    refused(source, f"{source}: is no regular file", options=("--to", "w4afp8", "--weights", source))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    refused(source, f"{fifo}: is no regular file", options=("--to", "w4afp8", "--weights", fifo))


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY" + bytes(100), bytes(8)])
def test_weights_in_another_format(refused: Refused, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.npy"
    path.write_bytes(content)
    source = one_file(tmp_path / "src", experts())
    refused(source, f"{path}: ", options=("--to", "w4afp8", "--weights", path))
    path.write_text('{"architectures": []}')
    refused(
        source,
        f"{path}: header length ",
        "; this is no safetensors file",
        options=("--to", "w4afp8", "--weights", path),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_weights_are_those_of_the_file(tmp_path: Path, dtype: Any) -> None:
    """Each matrix with its own vector, in whatever dtype; the weighted error is the least, the manifest names the file."""
    source = one_file(tmp_path / "src", experts())
    vectors = {leaf: channels(i).astype(dtype) for i, leaf in enumerate(LEAVES)}
    path = weights_file(tmp_path / "w.safetensors", **vectors)
    manifest = convert(source, tmp_path / "out", Target("w4afp8", weights=path))
    out = load(tmp_path / "out")
    for leaf in LEAVES:
        codes, scales = mxfp4_sources(load(source))[EXPERT + leaf]
        share = vectors[leaf].astype(np.float64) / vectors[leaf].astype(np.float64).max()
        weights = np.maximum(1, np.rint(65535 * share)).astype(np.int64)
        cast = int4.quantize(codes, scales, weights=weights)
        assert np.array_equal(out[f"{EXPERT}{leaf}.weight"].array.view(np.uint8), cast.codes)
        assert np.array_equal(out[f"{EXPERT}{leaf}.weight_scale_inv"].array.view(np.uint16), cast.scales)
        assert manifest["int4"]["matrices"][EXPERT + leaf]["squared_error"] == cast.squared_error
        assert not np.array_equal(cast.scales, int4.quantize(codes, scales).scales)
    assert manifest["int4"]["weights"]["file"] == "w.safetensors"


def test_a_vector_of_zeros_counts_as_none(tmp_path: Path) -> None:
    source = one_file(tmp_path / "src", experts())
    path = weights_file(tmp_path / "w.safetensors", **dict.fromkeys(LEAVES, np.zeros(128, np.float32)))
    convert(source, tmp_path / "weighted", Target("w4afp8", weights=path))
    convert(source, tmp_path / "plain", Target("w4afp8"))
    assert load(tmp_path / "weighted") == load(tmp_path / "plain")


def test_stars_serve_many(tmp_path: Path) -> None:
    """A name with a star for its numbers; the matrix's own name goes first."""
    tensors = [(t[0].replace("experts.0", "experts.1"), *t[1:]) for t in experts()] + experts()
    source = open_checkpoint(one_file(tmp_path / "src", tensors))
    path = tmp_path / "w.safetensors"
    names = ["model.layers.*.mlp.experts.*." + leaf for leaf in LEAVES] + [EXPERT + "up_proj"]
    header = encode_header([(n, "F32", (128,)) for n in names], {})
    path.write_bytes(header + b"".join(channels(i).tobytes() for i in range(4)))
    cast = plan(source, Target("w4afp8")).cast
    found = open_importance(path, cast)
    assert {m.name: found.vectors[m.name].name for m in cast} == {
        m.name: m.name if m.name == EXPERT + "up_proj" else names[LEAVES.index(m.name.rpartition(".")[2])] for m in cast
    }


def test_weights_changed_between_runs(refused: Refused, cli: Cli, tmp_path: Path) -> None:
    source, out = llama(tmp_path / "src"), tmp_path / "out"
    path = tmp_path / "w.safetensors"
    names = [f"model.layers.*.mlp.{leaf}" for leaf in LEAVES]
    header = encode_header([(n, "F32", (256 if "down" in n else 128,)) for n in names], {})
    path.write_bytes(header + np.ones(512, "<f4").tobytes())
    arguments = ("convert", source, out, "--to", "w4afp8", "--weights", path, "--jobs", 1)
    assert cli(*arguments).code == 0
    (out / "truecast.json").unlink()  # as after a kill
    path.write_bytes(header + np.full(512, 2, "<f4").tobytes())
    before = {p: p.read_bytes() for p in out.glob("*.safetensors")}
    outcome = cli(*arguments)
    assert outcome.code == 3
    assert f"{out}: belongs to a run with other options: --weights w.safetensors (sha256 " in outcome.err
    assert {p: p.read_bytes() for p in out.glob("*.safetensors")} == before


def test_weights_changed_under_way(tmp_path: Path) -> None:
    source = open_checkpoint(one_file(tmp_path / "src", experts()))
    path = weights_file(tmp_path / "w.safetensors", **dict.fromkeys(LEAVES, channels()))
    work = plan(source, Target("w4afp8", weights=path))
    assert work.importance is not None
    work.importance.of(work.cast[0])
    os.utime(path, ns=(0, 0))
    with pytest.raises(RefusedError, match="changed while it was read") as caught:
        work.importance.of(work.cast[0])
    assert caught.value.where == str(path)


def test_zero_groups(tmp_path: Path) -> None:
    """Scale 1 and codes 0, whatever the exponents; minus zero too. A group of one value is exact."""
    rows = np.zeros((4, 64), np.uint8)
    rows[1] = 0x88
    rows[2, 5] = 0x07
    scales = np.tile(np.array([0, 254, 120, 1], np.uint8), (4, 1))
    tensors = [
        ("model.layers.0.mlp.down_proj.weight_packed", "U8", (4, 64), rows.tobytes()),
        ("model.layers.0.mlp.down_proj.weight_scale", "U8", (4, 4), scales.tobytes()),
    ]
    manifest = convert(one_file(tmp_path / "src", tensors), tmp_path / "out", Target("w4afp8"))
    out = load(tmp_path / "out")
    stored = out["model.layers.0.mlp.down_proj.weight_scale_inv"].array.astype(np.float64)[:, 0]
    codes = nibbles(out["model.layers.0.mlp.down_proj.weight"].array.view(np.uint8))
    assert stored[[0, 1, 3]].tolist() == [1, 1, 1]
    assert not codes[[0, 1, 3]].any()
    assert codes[2].nonzero()[0].tolist() == [10]
    value = mxfp4(rows, scales)[2, 10]
    assert stored[2] * (int(codes[2, 10]) ^ 8) - stored[2] * 8 == value
    figures = manifest["int4"]["matrices"]["model.layers.0.mlp.down_proj"]
    assert (figures["groups"], figures["exact_groups"], figures["zero_groups"]) == (4, 4, 3)


def test_fp8_attention_that_cannot_be(tmp_path: Path) -> None:
    """Rows of 96 are no whole blocks: asking for FP8 is not silently ignored."""
    kimi_k3.make(
        tmp_path / "src",
        shape=kimi_k3.K3Shape(layers=2, hidden=128, latent=128, expert_width=128, heads=2, head_dim=48),
    )
    with pytest.raises(UsageError, match="--attention fp8: no BF16 weight of attention here can become FP8"):
        convert(tmp_path / "src", tmp_path / "out", Target("w4afp8", attention="fp8"))
    assert not convert(tmp_path / "src", tmp_path / "out", Target("w4afp8"))["fp8"]["matrices"]


@pytest.mark.parametrize(("scale", "format", "dialect"), [
    ("weight_scale_inv", "fp8", "compressed-tensors"), ("weight_scale", "fp8", "deepseek"),
    ("weight_scale", "w4afp8", "sglang"), ("weight_scale", "w4afp8", "compressed-tensors"),
])  # fmt: skip
def test_fp8_modules_of_a_kind_that_the_config_cannot_describe(
    tmp_path: Path, scale: str, format: str, dialect: str
) -> None:
    name = "model.layers.0.self_attn.q_proj."
    shape = (1, 1) if scale == "weight_scale_inv" else (128, 1)
    tensors: list[Tensor] = [
        (name + "weight", "F8_E4M3", (128, 128), bytes(128 * 128)),
        (name + scale, "F32", shape, np.ones(shape, "<f4").tobytes()),
    ]
    for leaf in ("w1", "w2", "w3"):
        module = f"model.layers.0.mlp.experts.0.{leaf}."
        tensors.append((module + "weight_packed", "U8", (128, 64), bytes(128 * 64)))
        tensors.append((module + "weight_scale", "U8", (128, 4), bytes([127]) * 512))
    source = one_file(tmp_path / "src", tensors)
    with pytest.raises(
        UsageError, match=r"1 FP8 modules, such as .*q_proj, have no place in the config of this dialect"
    ):
        convert(source, tmp_path / "out", Target(format, dialect))
    assert not (tmp_path / "out").exists()
