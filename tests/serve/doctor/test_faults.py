"""SGLang's faults and the plug-in that mends them: installed, left out, with settings, with sources that have changed."""

from __future__ import annotations

import pytest

from tests.serve.doctor.cases import EP, MLA, finding, statuses
from tests.serve.doctor.conftest import MakeSite, ground, recast
from truecast.engines.sglang.fixes import FIXES
from truecast.serve.stored_model import StoredModel

GH200 = "gh200:8x4"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"TRUECAST_SGLANG": "off"}, "TRUECAST_SGLANG=off"),
        ({"TRUECAST_SGLANG": "load-barrier"}, "leaves situ-w4afp8 out"),
        ({"SGLANG_PLUGINS": "other,another"}, "SGLANG_PLUGINS=other,another"),
    ],
)
def test_what_leaves_the_plug_in_out_is_named(
    make_site: MakeSite, small_k3: StoredModel, environment: dict[str, str], words: str
) -> None:
    model = recast(small_k3, "w4afp8-sglang")
    given = ground(make_site().beside().plugin(), GH200, "", model=model, environment=environment)
    found = finding(given, "fault.situ-w4afp8")
    assert found.status == "FAIL" and words in found.evidence
    assert finding(given, "plugin.installed").status == "WARN"


@pytest.mark.parametrize("environment", [{"TRUECAST_SGLANG": "situ"}, {"SGLANG_MARLIN_EP_BLOCK": "7"}])
def test_a_setting_that_ends_the_server_fails(
    make_site: MakeSite, small_k3: StoredModel, environment: dict[str, str]
) -> None:
    with_it = make_site().beside().plugin()
    found = finding(ground(with_it, GH200, EP, model=small_k3, environment=environment), "plugin.installed")
    assert found.status == "FAIL" and f"{next(iter(environment))}=" in found.evidence
    without = ground(make_site().beside(), GH200, EP, model=small_k3, environment=environment)
    assert finding(without, "plugin.installed").status == "WARN"  # nobody reads it


def test_the_number_of_experts_is_checked_only_by_the_plug_in(make_site: MakeSite, small_k3: StoredModel) -> None:
    environment = {"SGLANG_EXPERT_LOAD_FILTER": "896"}  # the model has 8
    with_it = ground(make_site().plugin(), GH200, EP, model=small_k3, environment=environment)
    assert finding(with_it, "fault.expert-load-filter").status == "FAIL"
    without = ground(make_site(), GH200, EP, model=small_k3, environment=environment)
    assert finding(without, "fault.expert-load-filter").status == "WARN"


def test_a_mended_sglang_passes_without_the_plug_in(version: str, make_site: MakeSite, small_k3: StoredModel) -> None:
    module = "sglang.srt.layers.quantization.modelopt_quant"
    site = make_site(version).edited(module, '("silu", "relu2", "gelu")', '("silu", "relu2", "gelu", "situ")')
    given = ground(site, "h200:4x8", EP, model=recast(small_k3, "nvfp4-modelopt"))
    assert finding(given, "fault.situ-nvfp4").status == "PASS"


def test_an_sglang_that_looks_different_is_unknown(version: str, make_site: MakeSite, small_k3: StoredModel) -> None:
    site = make_site(version).plugin().file("sglang/srt/layers/quantization/w4afp8.py", "")
    given = ground(site, GH200, "", model=recast(small_k3, "w4afp8-sglang"))
    found = finding(given, "fault.w4afp8-config")
    assert found.status == "UNKNOWN" and "W4AFp8Config" in found.evidence


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (MLA, "WARN"),
        (f"{MLA} --max-total-tokens 524288", "PASS"),
        ("--kv-cache-dtype fp8_e4m3", "UNKNOWN"),
        ("--kv-cache-dtype fp8_e4m3 --attention-backend fa3", "SKIP"),
        ("--attention-backend flashmla", "SKIP"),
    ],
)
def test_prefill_with_an_fp8_kv_cache(make_site: MakeSite, small_k3: StoredModel, words: str, status: str) -> None:
    assert finding(ground(make_site(), GH200, words, model=small_k3), "fault.fp8-kv-gather").status == status


def test_every_fix_has_a_check(make_site: MakeSite) -> None:
    assert {f"fault.{fix.name}" for fix in FIXES} <= set(statuses(ground(make_site())))


def test_nvfp4_on_blackwell_does_not_meet_marlins_faults(make_site: MakeSite, small_k3: StoredModel) -> None:
    told = statuses(ground(make_site(), "b200:2x8", "--tp-size 16", model=recast(small_k3, "nvfp4-modelopt")))
    assert told["fault.situ-nvfp4"] == told["fault.nvfp4-twins"] == told["kernel.sm90a"] == "SKIP"
