"""How memory is divided: what gives way first, and when it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from truecast.audit import memory
from truecast.audit.memory import MARGIN_BYTES, Needs, fit
from truecast.errors import RefusedError

MB = 10**6
BASE = 300 * MB
NEEDS = Needs(layer=40 * MB, reading=5 * MB, token=20_000, head=30 * MB, longest=300, tokens=50_000)
LEAST = BASE + MARGIN_BYTES + 5 * MB + 40 * MB + 300 * 20_000
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "resident_bytes", lambda: BASE)


def test_the_smallest_number_works_and_one_byte_less_is_refused() -> None:
    found = fit(LEAST, NEEDS, CPU)
    assert (found.tile_tokens, found.ahead, found.kept_bytes) == (300, False, 0)
    with pytest.raises(RefusedError, match=f"smallest that works is {-(-LEAST // MB)}MB"):
        fit(LEAST - 1, NEEDS, CPU)
    with pytest.raises(RefusedError):
        fit(LEAST, replace(NEEDS, head=NEEDS.layer + NEEDS.longest * NEEDS.token + 1), CPU)


def test_reading_ahead_comes_before_a_larger_tile_and_that_before_kept_states() -> None:
    assert fit(LEAST + 40 * MB, NEEDS, CPU).ahead
    larger = fit(LEAST + 42 * MB, NEEDS, CPU)
    assert (larger.ahead, larger.tile_tokens, larger.kept_bytes) == (True, 400, 0)
    most = fit(LEAST + 500 * MB, NEEDS, CPU)
    assert (most.tile_tokens, most.ahead) == (512, True)
    assert most.kept_bytes > 400 * MB
    assert fit(None, NEEDS, CPU).tile_tokens == 512


@given(st.integers(LEAST, LEAST + 10**9), st.integers(1, 2048), st.integers(1, 10**6))
def test_the_parts_never_exceed_the_whole(cap: int, longest: int, tokens: int) -> None:
    needs = replace(NEEDS, longest=min(longest, 300), tokens=max(tokens, longest))
    found = fit(cap, needs, CPU)
    layers = needs.layer * (2 if found.ahead else 1)
    tile = min(found.tile_tokens, needs.tokens) * needs.token
    assert BASE + MARGIN_BYTES + needs.reading + layers + tile + found.kept_bytes <= cap
    assert found.tile_tokens >= needs.longest


def test_without_a_cap_what_is_free_must_hold_the_longest_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available", lambda: 1000 * MB)
    assert fit(None, replace(NEEDS, longest=48_000), CPU).tile_tokens == 48_000
    with pytest.raises(RefusedError, match="48,001 tokens"):
        fit(None, replace(NEEDS, longest=48_001), CPU)


def test_a_gpu_that_is_too_small_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    needs = replace(NEEDS, on_device=1000 * MB)
    for free, expected in ((3000 * MB, (32768, True)), (1500 * MB, (17_500, False))):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, free))
        found = fit(None, needs, gpu)
        assert (found.tile_tokens, found.ahead) == expected
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1100 * MB, 0))
    with pytest.raises(RefusedError, match=r"need 1\.0 GB, 1\.0 GB of the GPU are free"):
        fit(None, needs, gpu)
