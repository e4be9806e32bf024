"""What decides single checks, beyond the two grounds of the catalogue."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from typing import Any

import pytest

from tests.engines.conftest import wheel_file
from tests.serve.doctor.cases import DRAFT, EP, SPEC, _flashinfer, finding
from tests.serve.doctor.conftest import HOPPER, NO_90A, MakeSite, ground, plain, recast
from truecast.serve.stored_model import StoredModel


@pytest.mark.parametrize(
    ("layout", "library", "topology", "status"),
    [
        ("w4afp8-sglang", NO_90A, "gh200:8x4", "FAIL"),
        ("nvfp4-modelopt", NO_90A, "gh200:8x4", "WARN"),
        ("w4afp8-sglang", NO_90A, "b200:2x8", "SKIP"),
        ("w4afp8-sglang", HOPPER[:-40], "gh200:8x4", "UNKNOWN"),
        ("w4afp8-sglang", b"", "gh200:8x4", "UNKNOWN"),
    ],
)
def test_kernels_for_hopper(
    make_site: MakeSite, small_k3: StoredModel, layout: str, library: bytes, topology: str, status: str
) -> None:
    site = make_site().beside().kernel(library)
    found = finding(ground(site, topology, model=recast(small_k3, layout)), "kernel.sm90a")
    assert found.status == status
    if status == "FAIL":
        assert "common_ops_sm90_build" in found.remedy and "on aarch64" in found.remedy


def test_the_released_aarch64_wheel(make_site: MakeSite, small_k3: StoredModel) -> None:
    site = make_site("0.5.20").beside()
    with zipfile.ZipFile(wheel_file("sglang-kernel", "0.4.7", "manylinux2014_aarch64")) as wheel:
        wheel.extract("sgl_kernel/sm90/common_ops.abi3.so", site.root)
        held = set(wheel.namelist())
    given = ground(site, "gh200:8x4", "--attention-backend flashmla", model=recast(small_k3, "w4afp8-sglang"))
    found = finding(given, "kernel.sm90a")
    assert found.status == "FAIL" and "sm_90, " in found.evidence and "common_ops_sm90_build" in found.remedy
    assert "sgl_kernel/flashmla_ops.abi3.so" in held and not [n for n in held if "flash_ops" in n and n.endswith(".so")]


def test_without_its_library_flash_attention_is_no_choice(make_site: MakeSite) -> None:
    told = [
        finding(ground(make_site().beside(), "gh200:8x4", words), "kernel.flash-attention").status
        for words in ("", "--attention-backend flashmla", "--decode-attention-backend fa3")
    ]
    assert told == ["WARN", "PASS", "FAIL"]


def test_flash_mla_is_a_package_of_its_own_from_0_5_23_on(version: str, make_site: MakeSite) -> None:
    site = make_site(version).beside().kernel(HOPPER, "flashmla_ops.abi3.so")
    found = finding(ground(site, "gh200:8x4", "--attention-backend flashmla"), "kernel.flash-mla")
    assert found.status == ("FAIL" if version == "0.5.23" else "PASS")


@pytest.mark.parametrize(
    ("backend", "status"),
    [("marlin", "PASS"), ("humming", "FAIL"), ("deep_gemm", "PASS"), ("flashinfer_mxfp4", "UNKNOWN"), ("auto", "SKIP")],
)
def test_situ_by_backend(version: str, make_site: MakeSite, small_k3: StoredModel, backend: str, status: str) -> None:
    given = ground(make_site(version), "h200:4x8", f"--moe-runner-backend {backend}", model=small_k3)
    assert finding(given, "moe.activation").status == status


@pytest.mark.parametrize(
    ("version", "words", "status"),
    [
        ("0.5.17", "", "FAIL"),
        ("0.5.20", "", "PASS"),
        ("0.5.23", "", "PASS"),
        ("0.5.23", "--moe-runner-backend marlin", "WARN"),
        ("0.5.23", "--moe-runner-backend cutlass", "UNKNOWN"),
    ],
)
def test_which_sglang_reaches_fp4(
    make_site: MakeSite, small_k3: StoredModel, version: str, words: str, status: str
) -> None:
    site = make_site(version).beside().file("flashinfer/tllm_enums.py", "class ActivationType:\n    Situ = 10\n")
    given = ground(site, "b200:2x8", words, model=recast(small_k3, "nvfp4-modelopt"))
    assert finding(given, "nvfp4.fp4-path").status == status


def test_a_flashinfer_without_situ_stops_fp4(make_site: MakeSite, small_k3: StoredModel) -> None:
    site = make_site().file("flashinfer/tllm_enums.py", "class ActivationType:\n    Swiglu = 3\n")
    given = ground(site, "b200:2x8", "", model=recast(small_k3, "nvfp4-modelopt"))
    assert finding(given, "nvfp4.fp4-path").status == "FAIL"


@pytest.mark.parametrize(
    ("distributions", "status"),
    [
        ({"torch": "2.13.0+cu130"}, "PASS"),
        ({"torch": "2.13.0+cu128"}, "FAIL"),
        ({"torch": "2.13.0", "nvidia-cuda-runtime": "13.0.96"}, "PASS"),
        ({"torch": "2.13.0", "nvidia-cuda-runtime-cu12": "12.8.90"}, "FAIL"),
        ({"torch": "2.13.0+cpu"}, "UNKNOWN"),
        ({}, "UNKNOWN"),
    ],
)
def test_cuda_maximum(make_site: MakeSite, small_k3: StoredModel, distributions: dict[str, str], status: str) -> None:
    site = make_site()
    for name, version in distributions.items():
        site.distribution(name, version)
    given = ground(site, "b200:2x8", "", model=recast(small_k3, "nvfp4-modelopt"))
    assert finding(given, "nvfp4.cuda").status == status


@pytest.mark.parametrize(
    ("source", "flashinfer", "status"),
    [
        (_flashinfer("enable_dcp=False"), "0.6.15", "PASS"),  # the source counts: it may be patched
        (_flashinfer("out=None"), "0.6.18", "FAIL"),
        ("", "0.6.17", "PASS"),
        ("", "0.6.15.post1", "FAIL"),
        ("", None, "UNKNOWN"),
        ("def broken(:", "0.6.18", "UNKNOWN"),
    ],
)
def test_flashinfers_own_signature_decides(
    make_site: MakeSite, source: str, flashinfer: str | None, status: str
) -> None:
    site = make_site()
    if flashinfer is not None:
        site.distribution("flashinfer-python", flashinfer)
    if source:
        site.file("flashinfer/mla/_core.py", source)
    assert finding(ground(site, arguments="--dcp-size 8"), "dcp.flashinfer").status == status


def test_dcp_with_dspark_wants_the_static_mode() -> None:
    words = f"{SPEC} --dcp-size 8"
    bad = ground(arguments=words, environment={"SGLANG_RAGGED_VERIFY_MODE": "compact"})
    assert finding(bad, "dcp.arguments").status == "FAIL"
    assert finding(ground(arguments=words), "dcp.arguments").status == "PASS"


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({}, "PASS", "DSparkDraftModel"),
        ({"dflash_config": {}}, "FAIL", "mask_token_id"),
        ({"dflash_config": {"mask_token_id": 10**6}}, "FAIL", "outside"),
        ({"markov_head_type": None}, "FAIL", "markov_head_type"),
        ({"markov_head_type": "lstm"}, "FAIL", "lstm"),
        ({"dspark_config": {"mask_token_id": 5}, "dflash_config": {}}, "PASS", "DSparkDraftModel"),
    ],
)
def test_draft_models(
    version: str, make_site: MakeSite, small_k3: StoredModel, changes: dict[str, Any], status: str, words: str
) -> None:
    draft = plain(small_k3, {**DRAFT, **changes})
    found = finding(ground(make_site(version), arguments=SPEC, model=small_k3, draft=draft), "draft.model")
    assert found.status == status and words in found.evidence


@pytest.mark.parametrize(
    ("words", "stored", "status"),
    [
        ("--speculative-dspark-block-size 2", 7, "PASS"),
        ("--speculative-dspark-block-size 2 --speculative-num-draft-tokens 3", 7, "PASS"),
        ("--speculative-dspark-block-size 2 --speculative-num-draft-tokens 2", 7, "FAIL"),
        ("--speculative-num-draft-tokens 8", 7, "PASS"),
        ("--speculative-num-draft-tokens 3", 7, "FAIL"),
        ("--speculative-num-draft-tokens 1", None, "FAIL"),
        ("--speculative-dspark-block-size 0", 7, "FAIL"),
        ("--speculative-dspark-block-size 9", 7, "WARN"),
        ("", 7, "PASS"),
        ("", None, "WARN"),
    ],
)
def test_block_sizes(small_k3: StoredModel, words: str, stored: int | None, status: str) -> None:
    draft = plain(small_k3, {**DRAFT, "block_size": stored})
    assert finding(ground(arguments=f"{SPEC} {words}", draft=draft), "draft.block-size").status == status


def test_the_quantization_of_the_target_counts_for_the_draft(small_k3: StoredModel) -> None:
    draft = plain(small_k3, DRAFT)
    told = [
        finding(ground(arguments=f"{SPEC} {words}", draft=draft), "draft.format").status
        for words in (
            "",
            "--quantization w4afp8",
            "--quantization w4afp8 --speculative-draft-model-quantization unquant",
        )
    ]
    assert told == ["PASS", "FAIL", "PASS"]
    w4 = recast(small_k3, "w4afp8-sglang")
    assert finding(ground(arguments=SPEC, draft=w4), "draft.format").status == "PASS"


def test_a_flag_that_came_later(version: str, make_site: MakeSite) -> None:
    words = "--speculative-draft-kv-cache-dtype bfloat16"
    found = finding(ground(make_site(version), arguments=words), "arguments.known")
    assert found.status == ("FAIL" if version == "0.5.17" else "PASS")
    assert ("came with 0.5.18" in found.evidence) == (version == "0.5.17")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--kv-cache-dtype fp7", "fp7"),
        ("--tp-size", "has no value"),
        ("--disable-radix-cache yes", "takes no value"),
        ("--moe-runner-backend marlin --kv-cache-dtype fp8_e4m3 --disable-radix-cache", ""),
        ("--dist-init-addr $HEAD:20000", ""),
    ],
)
def test_values(version: str, make_site: MakeSite, words: str, told: str) -> None:
    found = finding(ground(make_site(version), arguments=words), "arguments.values")
    assert found.status == ("FAIL" if told else "PASS") and told in found.evidence


def test_a_misspelled_variable_has_a_neighbour(version: str, make_site: MakeSite) -> None:
    given = ground(
        make_site(version), environment={"SGLANG_HOSTIP": "10.0.0.1", "SGLANG_HOST_IP": "10.0.0.1", "X": "1"}
    )
    found = finding(given, "environment.known")
    assert found.status == "WARN" and found.remedy == "write SGLANG_HOST_IP" and "SGLANG_HOSTIP" in found.evidence


def test_a_patched_sglang_reads_the_patch_s_variable(make_site: MakeSite) -> None:
    environment = {"SGLANG_MARLIN_EP_BLOCK": "1", "K3_W4_SRC2DST": "count"}
    site = make_site().file("sglang/srt/patched.py", 'os.environ["SGLANG_MARLIN_EP_BLOCK"]\n')
    site.edited("sglang.kernels.ops.moe.ep_moe_kernels", "import", "# K3_W4_SRC2DST\nimport")
    assert finding(ground(site, environment=environment), "environment.patch-only").status == "PASS"


@pytest.mark.parametrize(
    ("layout", "topology", "words", "with_scale", "status"),
    [
        ("w4afp8-sglang", "gh200:8x4", "", False, "FAIL"),
        ("nvfp4-modelopt", "b200:2x8", "", False, "FAIL"),
        ("nvfp4-modelopt", "b200:2x8", "", True, "PASS"),
        ("nvfp4-modelopt", "b200:2x8", EP, False, "SKIP"),
        ("nvfp4-modelopt", "h200:4x8", "", False, "SKIP"),
        ("mxfp4-compressed-tensors", "gh200:8x4", "", False, "SKIP"),
    ],
)
def test_where_activation_scales_are_read(
    small_k3: StoredModel, layout: str, topology: str, words: str, with_scale: bool, status: str
) -> None:
    model = recast(small_k3, layout, with_input_scale=with_scale)
    assert finding(ground(None, topology, words, model=model), "checkpoint.input-scales").status == status


def test_dynamic_scales_need_none_stored(small_k3: StoredModel) -> None:
    model = recast(small_k3, "w4afp8-sglang", with_input_scale=False, moe_activation_scheme="dynamic")
    assert finding(ground(model=model), "checkpoint.input-scales").status == "PASS"


def test_remote_code_stays_the_users_choice(small_k3: StoredModel) -> None:
    told = finding(ground(arguments="", model=small_k3), "checkpoint.remote-code")
    assert told.status == "PASS" and "modeling_kimi_k3.py" in told.evidence
    told = finding(ground(arguments="--trust-remote-code", model=small_k3), "checkpoint.remote-code")
    assert told.status == "WARN" and "configuration_kimi_k3.py" in told.evidence
    bare = replace(small_k3, remote_code=())
    assert finding(ground(arguments="--trust-remote-code", model=bare), "checkpoint.remote-code").status == "WARN"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("", "WARN"),
        ("--reasoning-parser kimi_k3", "WARN"),
        ("--reasoning-parser kimi_k3 --tool-call-parser auto", "PASS"),
        ("--reasoning-parser kimi_k3 --tool-call-parser kimi_k2", "FAIL"),
    ],
)
def test_parsers(small_k3: StoredModel, words: str, status: str) -> None:
    assert finding(ground(arguments=words, model=small_k3), "reasoning.parsers").status == status


@pytest.mark.parametrize(
    ("topology", "words", "status"),
    [
        ("gh200:8x4", "", "FAIL"),
        ("gh200:8x4", "--moe-runner-backend auto", "FAIL"),
        ("gh200:8x4", EP, "PASS"),
        ("b200:2x8", "", "SKIP"),
        (None, "", "SKIP"),
    ],
)
def test_the_backend_on_hopper(small_k3: StoredModel, topology: str | None, words: str, status: str) -> None:
    assert finding(ground(None, topology, words, model=small_k3), "moe.backend").status == status


@pytest.mark.parametrize("asked", ["--moe-runner-backend flashinfer_mxfp4", "--tp-size 16"])
def test_mxfp4_with_situ_on_blackwell(version: str, make_site: MakeSite, small_k3: StoredModel, asked: str) -> None:
    """SGLang 0.5.17 ends at its own check without a pool of cubins; later releases have SiTU in FlashInfer."""
    site, pool = make_site(version), {"SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL": "/opt/pool"}
    without = finding(ground(site, "b200:2x8", asked, model=small_k3), "moe.activation").status
    with_it = finding(ground(site, "b200:2x8", asked, model=small_k3, environment=pool), "moe.activation").status
    later = "PASS" if "mxfp4" in asked else "SKIP"
    assert (without, with_it) == (("FAIL", "PASS") if version == "0.5.17" else (later, later))


@pytest.mark.parametrize(
    ("words", "check"),
    [
        ("--tp-size lots", "arguments.values"),
        ("--mem-fraction-static much", "arguments.values"),
        ("--mem-fraction-static nan", "memory.fit"),
        ("--mem-fraction-static 1.5", "memory.fit"),
        ("--nnodes 2 --tp-size 16 --node-rank 2", "parallel.ranks"),
    ],
)
def test_values_that_are_none(version: str, make_site: MakeSite, small_k3: StoredModel, words: str, check: str) -> None:
    given = ground(make_site(version), "h200:2x8", words, model=small_k3)
    assert finding(given, check).status == "FAIL"
