"""Memory against what public recipes and logs of Kimi-K3 say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from truecast.errors import UsageError
from truecast.serve.forecast import constants as c
from truecast.serve.forecast.memory import dspark_bytes, kv_token_bytes, mem_fraction, memory_fit, slot_bytes
from truecast.serve.hardware import GPUS
from truecast.serve.stored_model import StoredModel

MLA_DRAFT = 5 * 576 * 2
"""Bytes a token of a draft of five MLA layers in BF16; SGLang 0.5.17 counted any draft's layers like the model's."""


def test_every_gpu_has_its_memory() -> None:
    assert set(c.CUDA_MEMORY) == set(c.DRIVER_MEMORY_MIB) == set(GPUS)
    for name, size in c.CUDA_MEMORY.items():
        assert 0.98 < size / (c.DRIVER_MEMORY_MIB[name] * c.MIB) < 1


def test_kv_tokens_of_the_h200_recipe(k3: StoredModel) -> None:
    """sgl-project/sglang pull request 32834: 1,940,352 tokens in BF16, the slots' share being 0.058 of the cache's."""
    fit = memory_fit(
        k3, GPUS["h200"], 32, 32, mem_fraction=0.90, draft_bytes=dspark_bytes(32)[0], symmetric_memory=True
    )
    room = fit.parts["KV cache"] + fit.parts["recurrent states"]
    tokens = room / 1.058 / kv_token_bytes(k3, 32, 2, MLA_DRAFT)
    assert tokens == pytest.approx(1_940_352, rel=0.03)
    assert fit.free / c.GIB == pytest.approx(12.54, rel=0.07)


def test_the_gh200_deployment_fits(k3: StoredModel) -> None:
    draft, cache = dspark_bytes(32)
    assert cache == 1280, "each rank keeps one of the draft's 16 heads"
    fit = memory_fit(
        k3, GPUS["gh200"], 32, 32, mem_fraction=0.82, kv_bytes=1, slots=192, requests=64, window=3, replay=True,
        draft_bytes=draft, draft_kv_bytes=cache,
    )  # fmt: skip
    assert fit.fits
    assert fit.kv_tokens > 524_288, "a cap that its card names for lack of a patch lies below what fits"
    assert sum(fit.parts.values()) + fit.free <= fit.total < sum(fit.parts.values()) + fit.free + fit.kv_token_bytes


def test_kv_streams_on_h200_beside_aiconfigurator(k3: StoredModel) -> None:
    """AIConfigurator 0.12 says 67.8 for 50 streams of 10,000 tokens in FP8; its total is bytes over 2**30."""
    fit = memory_fit(k3, GPUS["h200"], 32, 32, mem_fraction=0.9, kv_bytes=1, slots=50, kv_tokens=500_000)
    used = sum(fit.parts.values())
    assert used == pytest.approx(71.2e9, rel=0.001)
    assert used == pytest.approx(67.8 * c.GIB, rel=0.03)


def test_smallest_topologies_are_those_of_the_public_recipes(k3: StoredModel) -> None:
    fit = memory_fit(k3, GPUS["h200"], 8, 8, mem_fraction=0.90, kv_bytes=1, slots=50)
    assert not fit.fits
    assert fit.short > 60e9
    assert {"h200:2x8", "h100:4x8", "b200:2x8", "b300:1x8"} <= set(fit.would_fit)
    assert any("short by" in reason for reason in fit.reasons)


def test_what_is_short_is_what_is_missing(k3: StoredModel) -> None:
    """With as many tokens fewer as are short, it fits exactly."""
    wanted: dict[str, Any] = {"mem_fraction": 0.82, "kv_bytes": 1, "slots": 192}
    most = memory_fit(k3, GPUS["gh200"], 32, 32, **wanted)
    over = memory_fit(k3, GPUS["gh200"], 32, 32, kv_tokens=most.kv_tokens + 1000, **wanted)
    assert 999 * most.kv_token_bytes < over.short <= 1000 * most.kv_token_bytes
    assert memory_fit(k3, GPUS["gh200"], 32, 32, kv_tokens=most.kv_tokens, **wanted).fits


def test_slot_is_state_convolution_and_ring(k3: StoredModel) -> None:
    state, taps = 69 * 3 * 128 * 128, 69 * 3 * 3 * 128 * 3
    ring = 69 * 3 * 16 * (128 * (2 + 2 + 2 + 2 + 4) + 4)
    assert slot_bytes(k3, 32, 4, replay=False) == state * 4 + taps * 2
    assert slot_bytes(k3, 32, 2, replay=True) == state * 2 + taps * 2 + ring


def test_speculation_without_replay_keeps_states_of_the_window(k3: StoredModel) -> None:
    def states(**options: Any) -> int:
        fit = memory_fit(k3, GPUS["h200"], 32, 32, mem_fraction=0.8, slots=192, requests=64, **options)
        return fit.parts["recurrent states"]

    slot = slot_bytes(k3, 32, 4, replay=False)
    assert states() == 193 * slot
    assert states(window=3) == 193 * slot + 65 * 3 * slot
    assert states(window=3, replay=True) == 193 * slot_bytes(k3, 32, 4, replay=True)


def test_splitting_experts_costs_padding_on_marlin(k3: StoredModel) -> None:
    def padding(tp: int, ep: int) -> float:
        fit = memory_fit(k3, GPUS["h200"], tp, ep, mem_fraction=0.9)
        return fit.parts["padding of experts"] / fit.parts["experts"]

    assert padding(32, 32) == padding(8, 1) == 0
    assert padding(32, 1) == pytest.approx(128 / 96 - 1)


def test_kv_of_unknown_attention_is_said(k3: StoredModel) -> None:
    fit = memory_fit(replace(k3, request=None), GPUS["h200"], 32, 32, mem_fraction=0.9)
    assert fit.kv_tokens == 0
    assert any("not known" in reason for reason in fit.reasons)


def test_a_fraction_that_leaves_nothing_to_run_in_does_not_fit(k3: StoredModel) -> None:
    fit = memory_fit(k3, GPUS["h200"], 32, 32, mem_fraction=0.99, slots=50)
    assert not fit.fits
    assert any("at least 3.5" in reason for reason in fit.reasons)


@pytest.mark.parametrize(
    "bad", [{"tp": 0}, {"ep": 5}, {"mem_fraction": 0.0}, {"mem_fraction": 1.0}, {"slots": -1}, {"kv_tokens": -1}]
)
def test_senseless_sizes_are_refused(k3: StoredModel, bad: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"tp": 32, "ep": 32, "mem_fraction": 0.9} | bad
    with pytest.raises(UsageError):
        memory_fit(k3, GPUS["h200"], **sizes)


def test_sglangs_own_fraction() -> None:
    assert mem_fraction(GPUS["h200"], 32, prefill_tokens=8192, graph_batch=512) == 0.865
    assert mem_fraction(GPUS["gh200"], 32, prefill_tokens=4096, graph_batch=64) == 0.873


def test_sglang_keeps_more_for_images(k3: StoredModel) -> None:
    """Kimi-K3 names its layers vt_num_hidden_layers, which SGLang's rule does not look for: the default size counts."""

    def with_vision(**vision: object) -> float:
        return mem_fraction(GPUS["h200"], 32, prefill_tokens=8192, graph_batch=512, vision=vision)

    assert with_vision(vt_num_hidden_layers=27) == pytest.approx(0.865 * 0.95)
    assert with_vision(num_hidden_layers=48, hidden_size=1024) == pytest.approx(0.865 * 0.95 * 0.9)
    assert with_vision(num_hidden_layers=480, hidden_size=4096) == pytest.approx(0.865 * 0.95 * 0.8)
