"""Bytes on a GPU, and the table: Kimi-K3's numbers against its released size and SGLang's own recipes."""

from __future__ import annotations

from functools import cache

import pytest

from examples.shaped.kimi_k3 import FULL, shards
from tests.serve.test_parallel import HEADS, bank
from truecast.checkpoint.header import nbytes_of
from truecast.engines.sglang.fixes import FIXES
from truecast.errors import UsageError
from truecast.families.kimi_k3 import KIMI_K3
from truecast.serve import GPUS, Candidate, Choice, Weights, choices, find_gpu, legal_parallel, weights_of
from truecast.serve.engines import ROUTES, W4A16

RELEASED = 1_560_860_324_864
RELEASED_EXPERTS = 1_446_456_066_048


@cache
def k3_weights() -> Weights:
    specs = (spec for tensors in shards(FULL).values() for spec in tensors)
    return weights_of(((s.name, s.shape, nbytes_of(s.dtype, s.shape)) for s in specs), "kimi_k3")


def k3(target: str, dialect: str) -> Candidate:
    """The released model with its experts in another format: INT4 with a BF16 scale for 128 is 4.125 bits a weight."""
    weights = k3_weights()
    bits = {"mxfp4": 4.25, "nvfp4": 4.5, "w4afp8": 4.125, "fp8": 8.002, "bf16": 16}[target]
    experts = int(weights.experts / 4.25 * bits)
    parallel = legal_parallel(bank(target, 896), target, dialect, heads=HEADS)
    return Candidate(target, dialect, Weights(experts, weights.split, weights.whole), parallel)


def rows(target: str, dialect: str, gpu: str, gpus: int | None = None) -> list[Choice]:
    return choices([k3(target, dialect)], find_gpu(gpu), family="kimi_k3", function="situ", gpus=gpus)


def told(row: Choice) -> list[str]:
    return [fault.text for fault in row.faults]


def test_the_released_model_is_accounted_for_to_the_byte() -> None:
    weights = k3_weights()
    assert weights.total == RELEASED
    assert weights.experts == RELEASED_EXPERTS
    latent, router, low_rank = 92 * 2 * 3584 * 7168, 92 * 896 * 7168, 24 * (1536 + 576) * 7168 + 69 * 128 * 7168
    vision = 447_358_976
    assert weights.whole == pytest.approx(2 * (latent + router + low_rank + vision), rel=0.01)


@pytest.mark.parametrize(("gpu", "gpus"), [("h200", 16), ("h100", 32), ("b200", 16), ("b300", 8), ("gh200", 32)])
def test_least_number_of_gpus_is_that_of_the_recipes(gpu: str, gpus: int) -> None:
    """SGLang's recipes for Kimi-K3: 2x8 H200, 4x8 H100, 2x8 B200, 1x8 B300; W4AFP8 is served on 32 GH200."""
    found = rows("mxfp4", "compressed-tensors", gpu)
    assert {row.gpus for row in found} == {gpus}
    assert all(row.fits and row.split == (1, gpus) for row in found)
    weights = found[0].candidate.weights
    assert found[0].bytes_per_gpu == -(-(weights.experts + weights.split) // gpus) + weights.whole


def test_a_number_of_gpus_may_be_asked_for() -> None:
    (eight,) = {(row.gpus, row.fits) for row in rows("w4afp8", "sglang", "h200", 8)}
    assert eight == (8, False)
    odd = rows("w4afp8", "sglang", "h200", 30)[0]
    assert odd.split is None and not odd.fits, "30 divides neither the heads nor, with its parts, the experts"
    with pytest.raises(UsageError, match="0 is no number"):
        rows("w4afp8", "sglang", "h200", 0)


def test_bf16_experts_fit_nowhere_up_to_the_limit_on_small_gpus() -> None:
    found = rows("bf16", "bf16", "h100")
    assert {(row.gpus, row.split, row.bytes_per_gpu, row.fits) for row in found} == {(None, None, None, False)}


def test_four_bits_on_marlin_are_called_w4a16() -> None:
    for target, dialect in (("mxfp4", "compressed-tensors"), ("nvfp4", "modelopt")):
        marlin = [r for r in rows(target, dialect, "h200") if r.route and "Marlin" in r.route.kernel]
        assert marlin and all(W4A16 in told(row) and row.route and row.route.activations == "BF16" for row in marlin)


def test_original_mxfp4_with_fp8_activations_is_offered_on_hopper_without_weight_error() -> None:
    fp8 = [r for r in rows("mxfp4", "compressed-tensors", "h200") if r.route and r.route.activations == "FP8"]
    assert {row.route.engine for row in fp8 if row.route} == {"SGLang 0.5.20", "vLLM 0.33"}
    assert all(row.route and "no weight error" in row.route.weights and W4A16 not in told(row) for row in fp8)


def test_w4afp8_in_sglang_is_told_with_its_faults() -> None:
    (row,) = (r for r in rows("w4afp8", "sglang", "gh200") if r.route)
    text = "\n".join(told(row))
    for fault in ("computes SiLU where the model wants situ", "drops ignored_layers", "sm_90a", "b_proj"):
        assert fault in text
    (x86,) = (r for r in rows("w4afp8", "sglang", "h200") if r.route)
    assert "sm_90a" not in "\n".join(told(x86))
    assert told(row)[0].startswith("computes SiLU"), "the worst first"
    assert row.verdict == x86.verdict == "wrong result"


def test_an_activation_that_the_kernel_has_is_no_fault() -> None:
    silu = choices([k3("w4afp8", "sglang")], find_gpu("h200"), family="generic", function="silu")[0]
    assert not any("SiLU" in fault or "b_proj" in fault for fault in told(silu))
    assert silu.verdict == "stops", "it still drops the list of plain modules"


def test_without_a_kernel_there_is_a_row_that_says_so() -> None:
    (row,) = rows("w4afp8", "sglang", "b200")
    assert row.route is None and "no engine" in told(row)[0] and row.verdict == "stops"


def test_verdicts_tell_remarks_from_blockers() -> None:
    """What comes of Kimi-K3 on Hopper, engine by engine, as the sources were read."""
    expected = {
        ("mxfp4", "compressed-tensors"): ["no fault known", "not established", "no fault known", "no fault known"],
        ("nvfp4", "modelopt"): ["stops", "no fault known"],
        ("w4afp8", "compressed-tensors"): ["wrong result", "not established", "not established"],
        ("fp8", "deepseek"): ["no fault known", "no fault known"],
    }
    for (target, dialect), verdicts in expected.items():
        assert [row.verdict for row in rows(target, dialect, "h200")] == verdicts


def test_what_the_plug_in_mends_is_told_beside_what_is_left() -> None:
    def told(target: str, dialect: str, gpu: str) -> tuple[str, str]:
        first = rows(target, dialect, gpu)[0]
        return first.verdict, first.verdict_with_plugin

    assert told("nvfp4", "modelopt", "h200") == ("stops", "no fault known")
    assert told("w4afp8", "sglang", "h200") == ("wrong result", "no fault known")
    assert told("w4afp8", "sglang", "gh200") == ("wrong result", "stops"), "no hook brings code for sm_90a"
    assert told("nvfp4", "modelopt", "b200") == ("no fault known", "no fault known")
    for gpu in ("h200", "b200"):
        dropped = ("wrong result", "wrong result")
        assert told("nvfp4", "compressed-tensors", gpu) == dropped, "the plug-in does not load dropped experts"
    gelu = choices([k3("nvfp4", "modelopt")], find_gpu("h200"), family="generic", function="gelu")[0]
    assert (gelu.verdict, gelu.verdict_with_plugin) == ("stops", "stops"), "Marlin has no other activation"


def test_each_fix_that_is_named_exists() -> None:
    named = {fault.mended_by for route in ROUTES for fault in route.faults_for("kimi_k3", "situ", "aarch64")} - {""}
    assert named == {"situ-nvfp4", "situ-w4afp8", "w4afp8-config", "marlin-ep-tile"}
    fixes = {fix.name for fix in FIXES}
    assert named <= fixes
    assert all(set(route.mends.values()) <= fixes for route in ROUTES)
    notes = " ".join(KIMI_K3.engine_notes.values())
    assert [name for name in ("situ-nvfp4", "situ-w4afp8", "w4afp8-config") if name not in notes] == []


def test_gpus_are_found_by_name() -> None:
    assert find_gpu("H200").memory == 141 * 10**9
    with pytest.raises(UsageError, match=r"h300.*h100, h200"):
        find_gpu("h300")


def test_every_route_is_of_a_generation_that_some_gpu_has() -> None:
    capabilities = {gpu.capability for gpu in GPUS.values()}
    assert all(route.capabilities <= capabilities for route in ROUTES)
