"""The sample's error against the error of everything, its spread, and how little is read."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.shaped import gpt_oss, kimi_k3
from truecast.casts import fp8, int4
from truecast.checkpoint.files import opened
from truecast.checkpoint.source import Checkpoint, open_checkpoint
from truecast.convert import Target, sample
from truecast.convert.reading import Codes, read_scale
from truecast.convert.sample import Estimate, Unit, draw, fp8_error, int4_error, ratio
from truecast.convert.select import Selection, select
from truecast.errors import InputError
from truecast.layouts.base import class_of

SHAPE = kimi_k3.K3Shape(layers=4, experts=8, latent=512, expert_width=256, hidden=256, heads=2, head_dim=128)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sample") / "k3"
    kimi_k3.make(out, shape=SHAPE)
    return out


@pytest.fixture(scope="module")
def work(folder: Path) -> Selection:
    return select(open_checkpoint(folder), Target("w4afp8"))


def everything(work: Selection) -> float:
    """Relative error over all matrices."""
    error = total = 0.0
    with opened(work.source.opener) as read:
        for matrix in work.cast:
            made = int4.quantize(Codes(matrix, read).packed(), read_scale(matrix, read))
            error, total = error + made.squared_error, total + made.squared_sum
    return math.sqrt(error / total)


def measured(found: Estimate | None) -> tuple[float, float]:
    assert found is not None and found.relative is not None and found.standard_error is not None
    return found.relative, found.standard_error


def test_a_sample_of_everything_is_the_error_itself(work: Selection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "MATRICES", 1000)
    found = int4_error(work)
    assert found is not None and found.matrices == found.population == len(work.cast) == 3 * 3 * 8
    assert found.data_bytes == sum(m.codes.bytes for m in work.cast)
    assert measured(found) == (pytest.approx(everything(work), rel=1e-12), 0)


def test_a_sample_lies_near_the_error_of_everything(work: Selection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many seeds: no bias, and the standard error is the spread of the estimates."""
    truth = everything(work)
    found = int4_error(work)
    assert found is not None and found.matrices == sample.MATRICES < found.population
    assert found.classes == 3
    monkeypatch.setattr(sample, "MATRICES", 9)
    monkeypatch.setattr(sample, "STRIP_BYTES", 4 << 10)
    estimates = []
    for seed in range(40):
        monkeypatch.setattr(sample, "SEED", seed)
        estimates.append(measured(int4_error(work)))
    values, errors = zip(*estimates, strict=True)
    assert statistics.mean(values) == pytest.approx(truth, abs=4 * statistics.mean(errors) / math.sqrt(len(values)))
    assert 0.4 < statistics.mean(errors) / statistics.stdev(values) < 2.5


def test_the_method_is_that_of_the_target(folder: Path, work: Selection) -> None:
    worse = select(open_checkpoint(folder), Target("w4afp8", method="amax"))
    best, other = int4_error(work), int4_error(worse)
    assert best is not None and other is not None
    assert best.sqnr_db is not None and other.sqnr_db is not None and best.sqnr_db > other.sqnr_db + 2


def test_attention_in_fp8_is_measured_beside_it(work: Selection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "PLAIN", 1000)
    found = fp8_error(work)
    assert found is not None and found.population == len(work.fp8) > 0
    error = total = 0.0
    for info in work.fp8:
        with opened(work.source.opener) as read:
            bits = np.frombuffer(read(info.file).read(info.start, info.end), dtype="<u2").reshape(info.shape)
        made = fp8.quantize(bits, fp8.BLOCK)
        error, total = error + made.squared_error, total + made.squared_sum
    relative, spread = measured(found)
    assert relative == pytest.approx(math.sqrt(error / total), rel=0.02)
    assert 0 < spread < 0.01 * relative, "one tile row of two was read"
    assert fp8_error(select(work.source, Target("w4afp8", attention="bf16"))) is None


def test_the_draw_covers_classes_and_layers(work: Selection) -> None:
    chosen = draw(work.cast, 12)
    assert Counter(class_of(m.name).rpartition(".")[2] for m, _ in chosen) == {"w1": 4, "w2": 4, "w3": 4}
    assert sum(weight for _, weight in chosen) == len(work.cast)
    assert len({m.name for m, _ in chosen}) == 12
    for leaf in ("w1", "w2", "w3"):
        layers = {m.name.split(".")[3] for m, _ in chosen if m.name.endswith(leaf)}
        assert layers == {"1", "2", "3"}
    assert chosen == draw(work.cast, 12)
    assert len(draw(work.cast, 1)) == 3, "a class is never left out"
    everyone = draw(work.cast, 10**6)
    assert sorted(m.name for m, _ in everyone) == sorted(m.name for m in work.cast)
    assert {weight for _, weight in everyone} == {1}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 100))
def test_shares_are_even_and_no_larger_than_classes(sizes: list[int], wanted: int) -> None:
    shares = sample._shares(sizes, wanted)
    assert sum(shares) == min(max(wanted, len(sizes)), sum(sizes))
    assert all(1 <= share <= size for share, size in zip(shares, sizes, strict=True))
    open_ones = [share for share, size in zip(shares, sizes, strict=True) if share < size]
    assert not open_ones or max(shares) - min(open_ones) <= 1


@given(st.integers(1, 10**4), st.integers(1, 300), st.integers(1, 6))
def test_strips_lie_apart_inside_the_matrix(rows: int, each: int, count: int) -> None:
    spans = sample._spans(rows, each, count)
    assert spans[0][0] >= 0 and spans[-1][1] <= rows
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert sum(end - start for start, end in spans) == min(rows, each * count)


def test_ratio_by_hand() -> None:
    """Errors 1 and 3 over sums 10 and 10: R = 0.2, residuals -1 and 1, so SE(R) = sqrt(2 * 2) / 20 = 0.1."""
    relative, spread = ratio([Unit(1, 10, 1), Unit(3, 10, 1)])
    assert relative == pytest.approx(math.sqrt(0.2))
    assert spread == pytest.approx(0.1 / (2 * math.sqrt(0.2)))
    assert ratio([Unit(1, 10, 1), Unit(3, 10, 0)])[0] == pytest.approx(math.sqrt(0.1)), "weights count"
    assert ratio([Unit(1, 4, 1)]) == (0.5, None)
    assert ratio([Unit(0, 0, 1)] * 3) == (None, None)
    assert ratio([Unit(0, 5, 1)] * 3) == (0, 0)


def test_the_standard_error_is_the_spread_of_repeated_samples() -> None:
    generator = random.Random(1)

    def once() -> tuple[float, float]:
        sums = [generator.uniform(5, 15) for _ in range(16)]
        relative, spread = ratio([Unit(s * generator.uniform(0.005, 0.015), s, 1) for s in sums])
        assert relative is not None and spread is not None
        return relative, spread

    values, spreads = zip(*(once() for _ in range(2000)), strict=True)
    assert statistics.mean(spreads) == pytest.approx(statistics.stdev(values), rel=0.1)


def test_decibels() -> None:
    found = Estimate(0.1, 0.001, 4, 8, 1, 0)
    assert found.sqnr_db == pytest.approx(20)
    assert found.sqnr_standard_error_db == pytest.approx(0.0869, rel=1e-3)
    assert Estimate(0.0, 0.0, 4, 8, 1, 0).sqnr_db is None
    assert Estimate(None, None, 4, 8, 1, 0).sqnr_db is None


def test_of_a_remote_source_little_is_read(folder: Path, work: Selection, monkeypatch: pytest.MonkeyPatch) -> None:
    memory: Any = fsspec.filesystem("memory")
    memory.put(str(folder), "/sampled", recursive=True)
    monkeypatch.setattr(sample, "STRIP_BYTES", 2 << 10)
    here = int4_error(work)
    remote = select(open_checkpoint("memory://sampled"), Target("w4afp8"))
    read: list[int] = []

    def noted(self: Any, path: str, start: int, end: int) -> bytes:
        read.append(end - start)
        data: bytes = genuine(self, path, start=start, end=end)
        return data

    genuine = type(memory).cat_file
    monkeypatch.setattr(type(memory), "cat_file", noted)
    assert int4_error(remote) == here
    assert here is not None and here.data_bytes == 32 * 4 * (2 << 10)
    assert sum(read) == here.data_bytes * 17 // 16, "codes, and a scale for 16 bytes of them"
    memory.rm("/sampled", recursive=True)


def test_stacked_banks_are_sampled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of gate and up alternate in gpt-oss, so that strips of one are no stretch of the file."""
    gpt_oss.make(tmp_path / "oss", shape=gpt_oss.GptOssShape(hidden=256, expert_width=128))
    work = select(open_checkpoint(tmp_path / "oss"), Target("w4afp8"))
    monkeypatch.setattr(sample, "MATRICES", 1000)
    assert measured(int4_error(work)) == (pytest.approx(everything(work), rel=1e-12), 0)
    monkeypatch.setattr(sample, "STRIP_BYTES", 1 << 10)
    relative, spread = measured(int4_error(work))
    assert relative == pytest.approx(everything(work), abs=6 * spread) and spread > 0


def test_nan_in_the_sample_is_named_by_its_own_row(folder: Path, tmp_path: Path) -> None:
    kimi_k3.make(tmp_path / "k3", shape=SHAPE)
    source: Checkpoint = open_checkpoint(tmp_path / "k3")
    work = select(source, Target("w4afp8"))
    matrix, _ = draw(work.cast, sample.MATRICES)[5]
    scale = matrix.scale.tensor
    with (tmp_path / "k3" / scale.file).open("r+b") as shard:
        shard.seek(scale.start + 200 * scale.shape[1] + 3)
        shard.write(b"\xff")
    with pytest.raises(InputError, match=rf"{matrix.name}: block scale is NaN \(byte 255\) at row 200, block 3"):
        int4_error(work)


def test_zeros_give_no_figure(tmp_path: Path) -> None:
    kimi_k3.make(tmp_path / "k3", shape=SHAPE, sparse=True)
    found = int4_error(select(open_checkpoint(tmp_path / "k3"), Target("w4afp8")))
    assert found is not None and found.relative is None and found.sqnr_db is None


def test_nothing_to_quantize_is_no_sample(folder: Path) -> None:
    assert int4_error(replace(select(open_checkpoint(folder), Target("w4afp8")), cast=[])) is None
