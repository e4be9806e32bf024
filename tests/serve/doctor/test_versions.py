"""Version triples and known faults, on each released SGLang's own metadata and sources."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.serve.doctor.cases import statuses
from tests.serve.doctor.conftest import PINS, MakeSite, ground
from truecast.serve.stored_model import StoredModel


def test_the_pins_are_the_wheels_own(version: str, make_site: MakeSite) -> None:
    pins = make_site(version).find().pins["sglang"]
    assert {name: pins[name] for name in PINS[version]} == PINS[version]


def test_each_triple_passes_as_the_wheel_asks(version: str, make_site: MakeSite) -> None:
    site = make_site(version).beside()
    told = statuses(ground(site))
    for check in ("sglang.version", "sglang.torch", "sglang.kernel", "sglang.flashinfer", "sglang.torch-pair"):
        assert told[check] == "PASS", check


@pytest.mark.parametrize("wrong", ["torch", "sglang-kernel", "flashinfer-python"])
def test_each_of_the_triple_alone_is_found(version: str, make_site: MakeSite, wrong: str) -> None:
    site = make_site(version).beside().distribution(wrong, "0.0.1")
    told = statuses(ground(site))
    ids = {"torch": "sglang.torch", "sglang-kernel": "sglang.kernel", "flashinfer-python": "sglang.flashinfer"}
    assert [told[check] for check in ids.values()].count("FAIL") == 1 and told[ids[wrong]] == "FAIL"


@pytest.mark.parametrize(
    ("kernel", "requires", "torch", "status"),
    [
        ("0.4.5", (), "2.11.0", "PASS"),
        ("0.4.7", (), "2.11.0+cu130", "FAIL"),
        ("0.4.7", ("torch==2.13.0",), "2.11.0", "FAIL"),
        ("0.4.7", ("torch==2.13.0",), "2.13.0+cu130", "PASS"),
        ("0.4.5", (), "2.13.0", "FAIL"),
        ("0.4.6", (), "2.12.0", "PASS"),
    ],
)
def test_the_pair_of_kernel_and_torch(
    make_site: MakeSite, kernel: str, requires: tuple[str, ...], torch: str, status: str
) -> None:
    site = make_site().distribution("torch", torch).distribution("sglang-kernel", kernel, requires)
    assert statuses(ground(site))["sglang.torch-pair"] == status


def test_a_version_that_nobody_knows_is_not_guessed(make_site: MakeSite, small_k3: StoredModel) -> None:
    site = make_site().distribution("sglang", "0.9.0", ("torch==3.0.0",)).distribution("torch", "3.0.0").plugin()
    told = statuses(ground(site, "gh200:8x4", "--tp-size 32 --kv-cache-dtype fp8_e4m3", model=small_k3))
    assert told["sglang.version"] == "UNKNOWN" and told["sglang.torch"] == "PASS"
    faults = {check: status for check, status in told.items() if check.startswith(("fault.", "plugin.", "arguments."))}
    assert set(faults.values()) == {"UNKNOWN"}


def test_a_version_between_those_tested_is_read_and_said(make_site: MakeSite) -> None:
    site = make_site("0.5.17").distribution("sglang", "0.5.18")
    assert statuses(ground(site))["sglang.version"] == "WARN"


def test_without_metadata_the_package_tells_its_version(version: str, make_site: MakeSite) -> None:
    site = make_site(version, metadata=False)
    assert site.find().version == version
    assert statuses(ground(site))["sglang.torch"] == "UNKNOWN"


@pytest.mark.parametrize(
    ("version", "arguments", "status", "issue"),
    [
        ("0.5.18", "--disaggregation-mode decode --speculative-algorithm DSPARK", "FAIL", "36859"),
        ("0.5.19", "--disaggregation-mode decode --speculative-algorithm DSPARK", "FAIL", "36859"),
        ("0.5.20", "--disaggregation-mode decode --speculative-algorithm DSPARK", "WARN", "32422"),
        ("0.5.19", "--speculative-algorithm DSPARK", "PASS", ""),
        ("0.5.18", "--dcp-size 8 --ep-size 8 --enable-hierarchical-cache", "FAIL", "36018"),
        ("0.5.20", "--dcp-size 8 --ep-size 8 --enable-hierarchical-cache", "PASS", ""),
        ("0.5.20", "--dcp-size 8 --speculative-algorithm DSPARK", "WARN", "34920"),
        ("0.5.16", "", "FAIL", "39568"),
    ],
)
def test_known_faults(
    make_site: MakeSite, small_k3: StoredModel, version: str, arguments: str, status: str, issue: str
) -> None:
    site = make_site("0.5.17").distribution("sglang", version)
    from tests.serve.doctor.cases import finding

    found = finding(ground(site, arguments=arguments, model=small_k3), "sglang.known-faults")
    assert found.status == status and issue in found.evidence


def test_0_5_16_has_no_kimi_k3(make_site: MakeSite, small_k3: StoredModel) -> None:
    site = make_site("0.5.17").distribution("sglang", "0.5.16").file("sglang/srt/models/kimi_k3.py", "")
    assert statuses(ground(site, model=small_k3))["sglang.model-file"] == "FAIL"


def test_other_families_are_looked_for_in_every_file(version: str, make_site: MakeSite, small_k3: StoredModel) -> None:
    site = make_site(version)
    other = replace(small_k3, family="deepseek", architecture="DeepseekV3ForCausalLM")
    assert statuses(ground(site, model=other))["sglang.model-file"] == "PASS"
    unheard = replace(other, architecture="UnheardForCausalLM")
    assert statuses(ground(site, model=unheard))["sglang.model-file"] == "FAIL"
