from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.casts import reference
from tests.checkpoint.making import Tensor, write_checkpoint
from truecast.casts import mxfp4_to_nvfp4
from truecast.checkpoint.files import ByteFile, Opener, opened
from truecast.checkpoint.header import TensorInfo
from truecast.checkpoint.source import open_checkpoint
from truecast.convert.parts import Cast
from truecast.convert.plan import Plan, plan
from truecast.convert.produce import Producer
from truecast.convert.reading import Codes
from truecast.convert.scan import Scan, _choose, scan
from truecast.convert.select import Target
from truecast.errors import InputError, UsageError
from truecast.formats import exact, packing
from truecast.layouts.base import Matrix, View

U8 = np.ndarray

MIXED = list(range(16)) * 2
FOUR = [6] * 32
ZERO = [0, 8] * 16


# ---- sources ---------------------------------------------------------------------------------------------------------


@dataclass
class Counting:
    """Opens files and counts the bytes read of each; the files are real."""

    opener: Opener
    read: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def __call__(self, name: str) -> ByteFile:
        return CountingFile(self.opener(name), self.read[name])


class CountingFile:
    def __init__(self, file: ByteFile, ranges: list[tuple[int, int]]) -> None:
        self.file, self.ranges = file, ranges
        self.size, self.chunk_bytes, self.close = file.size, file.chunk_bytes, file.close

    def read(self, start: int, end: int) -> bytes | bytearray:
        self.ranges.append((start, end))
        return self.file.read(start, end)

    def read_into(self, start: int, buffer: memoryview) -> None:
        self.ranges.append((start, start + len(buffer)))
        self.file.read_into(start, buffer)


def overlap(ranges: list[tuple[int, int]], tensor: TensorInfo) -> int:
    """Bytes of a tensor among the ranges."""
    return sum(max(0, min(end, tensor.end) - max(start, tensor.start)) for start, end in ranges)


def mxfp4(module: str, codes: list[list[int]], scales: list[list[int]]) -> dict[str, Tensor]:
    """compressed-tensors' MXFP4 form of one matrix."""
    packed, scale = packing.pack_nibbles(np.array(codes, np.uint8)), np.array(scales, np.uint8)
    return {
        f"{module}.weight_packed": ("U8", list(packed.shape), packed.tobytes()),
        f"{module}.weight_scale": ("U8", list(scale.shape), scale.tobytes()),
    }


def planned(folder: Path, *shards: dict[str, Tensor], to: str = "nvfp4", dialect: str | None = None) -> Plan:
    files = {f"model-{i:05d}-of-{len(shards):05d}.safetensors": tensors for i, tensors in enumerate(shards, 1)}
    return plan(open_checkpoint(write_checkpoint(folder, files)), Target(to, dialect))


def counted(work: Plan) -> tuple[Scan, dict[str, int]]:
    """The scan, and how many bytes of each tensor it read."""
    counting = Counting(work.source.opener)
    work.source.opener = counting
    result = scan(work)
    return result, {name: overlap(counting.read[t.file], t) for name, t in work.source.tensors.items()}


# ---- the lazy choice of m --------------------------------------------------------------------------------------------

KINDS = {
    "zero": [0, 8] * 8,
    "every code": list(range(16)),
    "4": [6, 0, 14, 8] * 4,
    "2 4 6": [4, 6, 7, 12] * 4,
    "1 2 3 4 6": [2, 4, 5, 6, 7, 0, 8, 10] * 2,
    "0.5": [1, 9, 0, 8] * 4,
    "0.5 1 1.5": [1, 2, 3, 11] * 4,
}
kinds = st.one_of(st.just("zero"), st.sampled_from(sorted(KINDS)))


@st.composite
def twins(draw: st.DrawFn) -> list[tuple[U8, U8]]:
    """One to three matrices (scales, packed codes); spans around the window, many zero blocks, stray scale bytes."""
    span = draw(st.integers(0, 26))
    base = draw(st.one_of(st.integers(0, 254 - span), st.just(0), st.just(254 - span)))
    byte = st.one_of(st.integers(base, base + span), st.sampled_from([base, base + span]), st.integers(0, 254))
    if draw(st.booleans()):
        byte = st.integers(base, base + span)
    result = []
    for _ in range(draw(st.integers(1, 3))):
        rows, blocks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        codes = [[c for _ in range(2 * blocks) for c in KINDS[draw(kinds)]] for _ in range(rows)]
        scales = [[draw(byte) for _ in range(blocks)] for _ in range(rows)]
        result.append((np.array(scales, np.uint8), packing.pack_nibbles(np.array(codes, np.uint8))))
    return result


class Memory:
    """One file with the codes of all members, one after another."""

    chunk_bytes = 1 << 20

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, start: int, end: int) -> bytes:
        assert 0 <= start < end <= self.size
        return self.data[start:end]

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self.read(start, start + len(buffer))

    def close(self) -> None: ...


@given(twins())
@settings(max_examples=150, deadline=None)
def test_the_lazy_choice_is_that_of_the_full_histogram(members: list[tuple[U8, U8]]) -> None:
    file = Memory(b"".join(packed.tobytes() for _, packed in members))
    lazy, start = [], 0
    for i, (scales, packed) in enumerate(members):
        info = TensorInfo(f"m{i}", "U8", packed.shape, "f", start, start + packed.size)
        matrix = Matrix(f"m{i}", "mxfp4-test", packed.shape[0], packed.shape[1] * 2, View(info), View(info))
        lazy.append((scales, Codes(matrix, lambda name: file)))
        start += packed.size
    histograms = [mxfp4_to_nvfp4.reach_histogram(packed, scales) for scales, packed in members]
    histogram = np.sum(histograms, axis=0)
    live = np.flatnonzero(histogram.any(axis=(1, 2)))
    m, k_max, inexact = _choose(lazy)
    chosen = exact.choose_global_exponent(histogram)
    assert (m, sum(inexact)) == (chosen.m, chosen.inexact_half_blocks)
    assert inexact == [exact.count_inexact(one, m) for one in histograms]
    if live.size:
        assert k_max == live[-1] - 127


# ---- what is read ----------------------------------------------------------------------------------------------------


def test_within_the_window_sixteen_bytes_of_codes_are_read(tmp_path: Path) -> None:
    codes, scales = [MIXED * 4] * 8, [[110, 120, 127, 111]] * 8
    result, read = counted(planned(tmp_path, mxfp4("m.0.w1", codes, scales)))
    assert result.m == {"m.0.w1": -8}
    assert read == {"m.0.w1.weight_packed": 16, "m.0.w1.weight_scale": 32}


def test_of_twins_only_the_one_with_the_largest_scale_is_asked(tmp_path: Path) -> None:
    small = mxfp4("m.0.w1", [MIXED * 2] * 4, [[115, 116]] * 4)
    large = mxfp4("m.0.w3", [MIXED * 2] * 4, [[115, 127]] * 4)
    result, read = counted(planned(tmp_path, small | large))
    assert result.m == {"m.0.w1": -8, "m.0.w3": -8}
    assert (read["m.0.w1.weight_packed"], read["m.0.w3.weight_packed"]) == (0, 16)


def test_codes_are_read_where_a_scale_lies_below_the_window(tmp_path: Path) -> None:
    one = mxfp4("m.0.w1", [MIXED * 2] * 4, [[127, 127]] * 4)
    two = mxfp4("m.0.w3", [MIXED + ZERO] * 4, [[126, 3]] * 4)
    result, read = counted(planned(tmp_path, one | two))
    assert result.m == {"m.0.w1": -8, "m.0.w3": -8}
    assert not result.inexact_matrices
    assert read["m.0.w1.weight_packed"] == 16
    assert read["m.0.w3.weight_packed"] == 4 * 16


def test_codes_are_read_where_the_largest_scale_belongs_to_a_zero_block(tmp_path: Path) -> None:
    """Byte 127 over zeros, real blocks at k = -20: m follows the real ones."""
    result, read = counted(planned(tmp_path, mxfp4("m.0.w1", [ZERO + MIXED] * 4, [[127, 107]] * 4)))
    assert result.m == {"m.0.w1": -28}
    assert not result.inexact_matrices
    assert read["m.0.w1.weight_packed"] == 16 + 128


def test_scales_are_read_once_and_whole(tmp_path: Path) -> None:
    _, read = counted(planned(tmp_path, mxfp4("m.0.w1", [MIXED + ZERO] * 4, [[1, 200]] * 4)))
    assert read["m.0.w1.weight_scale"] == 8


# ---- what is found ---------------------------------------------------------------------------------------------------


def test_twins_in_different_shards_share_m(tmp_path: Path) -> None:
    w1, w3 = mxfp4("m.0.w1", [MIXED], [[110]]), mxfp4("m.0.w3", [MIXED], [[120]])
    w2 = mxfp4("m.0.w2", [MIXED], [[110]])
    result = scan(planned(tmp_path, w1 | w2, w3))
    assert result.m == {"m.0.w1": -15, "m.0.w3": -15, "m.0.w2": -25}


def test_the_scan_predicts_what_the_cast_reports(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    tensors: dict[str, Tensor] = {}
    sources = {}
    for i in range(6):
        codes = random.integers(0, 16, (4, 64)) * random.integers(0, 2, (4, 4)).repeat(16, axis=1)
        scales = random.integers(100, 100 + 10 + 3 * i, (4, 2))
        sources[f"m.{i}.w2"] = codes, scales
        tensors |= mxfp4(f"m.{i}.w2", codes.tolist(), scales.tolist())
    result = scan(planned(tmp_path, tensors))
    assert result.half_blocks == 6 * 16
    for name, (codes, scales) in sources.items():
        packed = packing.pack_nibbles(codes.astype(np.uint8))
        blocks = packed.reshape(len(packed), -1, 16)
        read = lambda rows, groups, b=blocks: b[rows, groups]  # noqa: E731
        report = mxfp4_to_nvfp4.cast(scales.astype(np.uint8), result.m[name], read)[2]
        assert result.inexact_matrices.get(name, 0) == len(report.inexact)
    assert result.inexact_half_blocks == sum(result.inexact_matrices.values()) > 0


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    shards = [mxfp4(f"m.{i}.w2", [MIXED + FOUR], [[100 + i, 100 + 9 * i]]) for i in range(4)]
    work = planned(tmp_path, *shards)
    seen: list[int] = []
    one, two = scan(work), scan(work, jobs=2, progress=seen.append)
    assert sum(seen) == 4 * 32
    assert (one.m, one.inexact_matrices, one.half_blocks) == (two.m, two.inexact_matrices, two.half_blocks)


@pytest.mark.parametrize(("byte", "near"), [(252, False), (253, True), (254, True)])
def test_matrices_whose_values_overflow_float32_are_named(tmp_path: Path, byte: int, near: bool) -> None:
    result = scan(planned(tmp_path, mxfp4("m.0.w1", [MIXED], [[byte]])))
    assert result.near_overflow == (["m.0.w1"] if near else [])
    assert not result.inexact_matrices


def test_bytes_0_and_118_over_fours_are_not_lossless(tmp_path: Path) -> None:
    """Model-Optimizer counts both as lossless and flushes the first."""
    result = scan(planned(tmp_path, mxfp4("m.0.w1", [FOUR + FOUR], [[0, 118]])))
    assert result.inexact_matrices == {"m.0.w1": 2}


def test_a_byte_0_alone_is_exact(tmp_path: Path) -> None:
    result = scan(planned(tmp_path, mxfp4("m.0.w1", [MIXED], [[0]])))
    assert (result.m, result.inexact_matrices) == ({"m.0.w1": -126}, {})


def test_all_zero_matrices_get_m_0(tmp_path: Path) -> None:
    result = scan(planned(tmp_path, mxfp4("m.0.w1", [ZERO], [[0]]) | mxfp4("m.0.w3", [ZERO], [[254]])))
    assert result.m == {"m.0.w1": 0, "m.0.w3": 0}
    assert not result.near_overflow


# ---- NaN -------------------------------------------------------------------------------------------------------------


def refuses(work: Plan, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        scan(work)
    assert caught.value.exit_code == 2
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("to", ["nvfp4", "bf16", "mxfp4"])
@pytest.mark.parametrize("codes", [MIXED, ZERO])
def test_byte_255_is_an_error_with_its_place_whatever_lies_under_it(tmp_path: Path, codes: list[int], to: str) -> None:
    scales = [[120, 121], [120, 121], [120, 255], [255, 120]]
    work = planned(
        tmp_path,
        mxfp4("m.0.w1", [MIXED * 2] * 4, [[120, 121]] * 4),
        mxfp4("m.1.w1", [codes + codes] * 4, scales),
        to=to,
        dialect="deepseek" if to == "mxfp4" else None,
    )
    refuses(
        work, "m.1.w1.weight_scale in model-00002-of-00002", "byte 255", "row 2, block 1", "and in 1 more", "download"
    )


def test_byte_255_beside_real_blocks_does_not_zero_the_matrix(tmp_path: Path) -> None:
    """Model-Optimizer takes it for the largest exponent, writes zeros everywhere and reports success."""
    refuses(planned(tmp_path, mxfp4("m.0.w1", [MIXED * 3], [[255, 120, 121]])), "row 0, block 0")


def test_byte_255_in_a_twin_is_found_too(tmp_path: Path) -> None:
    twin = mxfp4("m.0.w3", [MIXED], [[255]])
    refuses(planned(tmp_path, mxfp4("m.0.w1", [MIXED], [[120]]), twin), "m.0.w3", "model-00002")


def test_byte_255_among_stacked_experts_names_the_expert(tmp_path: Path) -> None:
    scales = np.full((3, 4, 2), 120, np.uint8)
    scales[1, 3, 1] = 255  # expert 1, second row of its up projection
    codes = np.tile(packing.pack_nibbles(np.array(MIXED, np.uint8)), (3, 4, 2, 1))
    work = planned(
        tmp_path,
        {
            "l.experts.gate_up_proj_blocks": ("U8", [3, 4, 2, 16], codes.tobytes()),
            "l.experts.gate_up_proj_scales": ("U8", [3, 4, 2], scales.tobytes()),
            "l.experts.down_proj_blocks": ("U8", [3, 4, 2, 16], codes.tobytes()),
            "l.experts.down_proj_scales": ("U8", [3, 4, 2], bytes([120] * 24)),
        },
    )
    refuses(work, "gate_up_proj_scales in", "l.experts.1.up_proj", "row 1, block 1")


def nvfp4(module: str, codes: list[list[int]], scales: list[list[int]], scale_2: float) -> dict[str, Tensor]:
    """ModelOpt's NVFP4 form of one matrix."""
    packed, scale = packing.pack_nibbles(np.array(codes, np.uint8)), np.array(scales, np.uint8)
    return {
        f"{module}.weight": ("U8", list(packed.shape), packed.tobytes()),
        f"{module}.weight_scale": ("F8_E4M3", list(scale.shape), scale.tobytes()),
        f"{module}.weight_scale_2": ("F32", [], np.float32(scale_2).tobytes()),
    }


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
@pytest.mark.parametrize(("to", "dialect"), [("bf16", None), ("nvfp4", "compressed-tensors")])
def test_nan_among_nvfp4_block_scales_is_an_error(tmp_path: Path, byte: int, to: str, dialect: str | None) -> None:
    work = planned(tmp_path, nvfp4("m.0.w1", [MIXED] * 3, [[56, 56], [56, byte], [56, 56]], 1), to=to, dialect=dialect)
    refuses(work, "m.0.w1.weight_scale in", f"byte {byte}", "row 1, block 1")


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(("to", "dialect"), [("bf16", None), ("nvfp4", "compressed-tensors")])
def test_a_global_scale_that_is_not_positive_and_finite(
    tmp_path: Path, value: float, to: str, dialect: str | None
) -> None:
    work = planned(tmp_path, nvfp4("m.0.w1", [MIXED], [[56, 56]], value), to=to, dialect=dialect)
    refuses(work, "m.0.w1.weight_scale_2 in", "positive and finite")


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (2.0**-10, True),
        (1.0, True),
        (2.0**127, True),
        (0.1, False),
        (3.0, False),
        (2.0**-126, True),
    ],
)
def test_a_global_scale_survives_as_a_divisor_where_it_is_a_power_of_two(
    tmp_path: Path, value: float, exact: bool
) -> None:
    work = planned(tmp_path, nvfp4("m.0.w1", [MIXED], [[56, 56]], value), dialect="compressed-tensors")
    assert scan(work).inexact_matrices == ({} if exact else {"m.0.w1": 2})


@pytest.mark.parametrize("value", [2.0**-149, 2.0**-129, 2.0**-128])
def test_a_global_scale_whose_inverse_is_infinite_is_refused(tmp_path: Path, value: float) -> None:
    work = planned(tmp_path, nvfp4("m.0.w1", [MIXED], [[56, 56]], value), dialect="compressed-tensors")
    refuses(work, "m.0.w1.weight_scale_2 in", "beyond float32")


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan, 1e-40])
def test_an_activation_scale_without_an_inverse_is_not_written(tmp_path: Path, value: float) -> None:
    """Experts that calibration never reached have zero ones."""
    tensors = nvfp4("m.0.w1", [MIXED], [[56, 56]], 1.0)
    tensors["m.0.w1.input_scale"] = ("F32", [], np.float32(value).tobytes())
    work = planned(tmp_path / "in", tensors, dialect="compressed-tensors")
    (scale,) = [t for shard in work.shards for t in shard.tensors if t.role == "input_scale"]
    with opened(work.source.opener) as read:
        producer = Producer(read, {}, Cast("nvfp4", "compressed-tensors"))
        with pytest.raises(InputError, match=r"m\.0\.w1\.input_scale in"):
            list(producer.tensor(scale))


def test_activation_scales_are_dropped_on_the_way_to_bf16_unless_asked_for(tmp_path: Path) -> None:
    tensors = nvfp4("m.0.w1", [MIXED], [[56, 56]], 1.0)
    tensors["m.0.w1.input_scale"] = ("F32", [], np.float32(1).tobytes())
    work = planned(tmp_path, tensors, to="bf16")
    assert (work.activations, set(work.dropped)) == (False, {"m.0.w1.input_scale"})
    with pytest.raises(UsageError, match="makes no sense"):
        plan(work.source, Target("bf16", activations=True))


# ---- BF16 ------------------------------------------------------------------------------------------------------------


def test_to_bf16_codes_are_read_only_near_overflow(tmp_path: Path) -> None:
    work = planned(tmp_path, mxfp4("m.0.w1", [MIXED], [[252]]) | mxfp4("m.1.w1", [MIXED], [[253]]), to="bf16")
    result, read = counted(work)
    assert (read["m.0.w1.weight_packed"], read["m.1.w1.weight_packed"]) == (0, 16)
    assert result.inexact_matrices == {"m.1.w1": 8}  # +-4 and +-6 times 2^126, each twice


def test_to_bf16_of_nvfp4_counts_what_bf16_cannot_hold(tmp_path: Path) -> None:
    one = nvfp4("m.0.w2", [MIXED], [[56, 60]], 2.0**-7)
    two = nvfp4("m.1.w2", [MIXED], [[56, 60]], 1.0000001)
    assert scan(planned(tmp_path, one | two, to="bf16")).inexact_matrices == {"m.1.w2": 28}


def test_the_reference_of_the_casts_tests_agrees_on_one_block() -> None:
    packed = packing.pack_nibbles(np.array([MIXED], np.uint8))
    values = reference.decode_mxfp4(packed, np.array([[127]], np.uint8))[0]
    assert [float(v.magnitude) for v in values[:8]] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
