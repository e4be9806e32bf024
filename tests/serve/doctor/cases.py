"""For each check a ground that triggers it and one that passes, on any released SGLang."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.serve.doctor.conftest import HOPPER, NO_90A, MakeSite, Site, ground, plain, recast
from truecast.errors import InputError, UsageError
from truecast.serve.doctor.catalogue import CHECKS
from truecast.serve.doctor.doctor import doctor
from truecast.serve.doctor.finding import Finding
from truecast.serve.doctor.ground import Ground
from truecast.serve.stored_model import StoredModel

WORST = ("FAIL", "WARN", "UNKNOWN", "PASS", "SKIP")
DRAFT = {"block_size": 7, "dflash_config": {"mask_token_id": 163}, "markov_rank": 256, "markov_head_type": "vanilla"}
SPEC = "--speculative-algorithm DSPARK --speculative-draft-model-path draft"


def finding(given: Ground, check: str) -> Finding:
    """The worst finding of one check."""
    only = [c for c in CHECKS if c.id == check]
    assert only, f"no check {check}"
    return min(doctor(given, only).findings, key=lambda found: WORST.index(found.status))


def statuses(given: Ground) -> dict[str, str]:
    """The worst status of each check."""
    found: dict[str, str] = {}
    for one in doctor(given).findings:
        found[one.id] = min(str(one.status), found.get(one.id, "SKIP"), key=WORST.index)
    return found


@dataclass(frozen=True)
class World:
    """What cases are made of: a release, packages beside it, models."""

    version: str
    make_site: MakeSite
    k3: StoredModel

    def site(self) -> Site:
        return self.make_site(self.version).beside()

    def w4afp8(self, **block: Any) -> StoredModel:
        return recast(self.k3, "w4afp8-sglang", **block)

    def nvfp4(self, **block: Any) -> StoredModel:
        return recast(self.k3, "nvfp4-modelopt", **block)

    def draft(self, architecture: str = "DSparkDraftModel", **changes: Any) -> StoredModel:
        return plain(self.k3, {**DRAFT, **changes}, architecture)


@dataclass(frozen=True)
class Case:
    """``status``: what the triggering ground brings. ``only``: versions that the trigger is for; all if empty."""

    trigger: Callable[[World], Ground]
    passing: Callable[[World], Ground]
    status: str = "FAIL"
    only: tuple[str, ...] = ()


def _fault(given: Callable[[World, Site], Ground], status: str, only: tuple[str, ...] = ()) -> Case:
    """Met without the plug-in, mended with it."""
    return Case(lambda w: given(w, w.site()), lambda w: given(w, w.site().plugin()), status, only)


def _pin(name: str) -> Case:
    return Case(lambda w: ground(w.site().distribution(name, "0.0.1")), lambda w: ground(w.site()))


def _words(bad: str, good: str, status: str = "FAIL", **given: Any) -> Case:
    """Two command lines for Kimi-K3 on GH200."""

    def make(words: str) -> Callable[[World], Ground]:
        return lambda w: ground(w.site(), "gh200:8x4", words, model=w.k3, **given)

    return Case(make(bad), make(good), status)


def _drafts(bad: Callable[[World], StoredModel], words: str = SPEC, good: str = "", status: str = "FAIL") -> Case:
    return Case(
        lambda w: ground(w.site(), "gh200:8x4", words, model=w.k3, draft=bad(w)),
        lambda w: ground(w.site(), "gh200:8x4", good or words, model=w.k3, draft=w.draft()),
        status,
    )


def _environment(bad: dict[str, str], good: dict[str, str]) -> Case:
    return Case(
        lambda w: ground(w.site(), environment=bad), lambda w: ground(w.site().plugin(), environment=good), "WARN"
    )


def _flashinfer(parameters: str) -> str:
    return f"def trtllm_batch_decode_with_kv_cache_mla(query, kv_cache, {parameters}):\n    return query\n"


MLA = "--kv-cache-dtype fp8_e4m3 --prefill-attention-backend flashmla --decode-attention-backend flashmla"
EP = "--tp-size 32 --ep-size 32 --moe-runner-backend marlin"
SORTED = ("0.5.17", "0.5.20")
NEWER = ("0.5.20", "0.5.23")

CASES: dict[str, Case] = {
    "launch.plan": Case(
        lambda w: ground(w.site(), plan_error=UsageError("it does not fit by 12 GB", fix="use gh200:16x4")),
        lambda w: ground(w.site(), arguments="", planned=True),
    ),
    "sglang.version": Case(
        lambda w: ground(w.make_site(w.version).distribution("sglang", "7.0")), lambda w: ground(w.site()), "UNKNOWN"
    ),
    "sglang.model-file": Case(
        lambda w: ground(w.site(), model=replace(w.k3, architecture="KimiK4ForConditionalGeneration")),
        lambda w: ground(w.site(), model=w.k3),
    ),
    "sglang.known-faults": Case(
        lambda w: ground(w.site(), arguments="--disaggregation-mode decode --speculative-algorithm DSPARK", model=w.k3),
        lambda w: ground(w.site(), arguments="--speculative-algorithm DSPARK", model=w.k3),
        "WARN",
    ),
    "sglang.torch": _pin("torch"),
    "sglang.kernel": _pin("sglang-kernel"),
    "sglang.flashinfer": _pin("flashinfer-python"),
    "sglang.torch-pair": Case(
        lambda w: ground(w.site().distribution("torch", "2.11.0" if w.version != "0.5.17" else "2.13.0")),
        lambda w: ground(w.site()),
    ),
    "kernel.sm90a": Case(
        lambda w: ground(w.site().kernel(NO_90A), "gh200:8x4", model=w.w4afp8()),
        lambda w: ground(w.site().kernel(HOPPER), "gh200:8x4", model=w.w4afp8()),
    ),
    "kernel.flash-attention": Case(
        lambda w: ground(w.site(), "gh200:8x4", "--prefill-attention-backend fa3"),
        lambda w: ground(w.site().kernel(HOPPER, "flash_ops.abi3.so"), "gh200:8x4", "--attention-backend fa3"),
    ),
    "kernel.flash-mla": Case(
        lambda w: ground(w.site(), "gh200:8x4", "--decode-attention-backend flashmla"),
        lambda w: ground(
            w.site().kernel(HOPPER, "flashmla_ops.abi3.so").file("flash_mla/__init__.py", ""),
            "gh200:8x4",
            "--decode-attention-backend flashmla",
        ),
    ),
    "plugin.installed": _fault(lambda w, s: ground(s, "gh200:8x4", EP, model=w.w4afp8()), "FAIL"),
    "fault.situ-nvfp4": _fault(lambda w, s: ground(s, "h200:4x8", EP, model=w.nvfp4()), "FAIL"),
    "fault.load-barrier": _fault(lambda w, s: ground(s, "gh200:8x4", EP, model=w.k3), "WARN"),
    "fault.expert-load-filter": _fault(lambda w, s: ground(s, "gh200:8x4", EP, model=w.k3), "WARN"),
    "fault.fp8-kv-gather": _fault(lambda w, s: ground(s, "gh200:8x4", MLA, model=w.k3), "WARN"),
    "fault.marlin-ep-tile": _fault(lambda w, s: ground(s, "gh200:8x4", EP, model=w.k3), "WARN"),
    "fault.w4a8-routing": _fault(lambda w, s: ground(s, "gh200:8x4", "", model=w.w4afp8()), "WARN", SORTED),
    "fault.situ-w4afp8": _fault(lambda w, s: ground(s, "gh200:8x4", "", model=w.w4afp8()), "FAIL"),
    "fault.w4afp8-config": _fault(lambda w, s: ground(s, "gh200:8x4", "", model=w.w4afp8()), "FAIL"),
    "fault.nvfp4-twins": _fault(lambda w, s: ground(s, "h200:4x8", EP, model=w.nvfp4()), "WARN"),
    "fault.marlin-repeatable": _fault(lambda w, s: ground(s, "gh200:8x4", EP, model=w.k3), "WARN"),
    "fault.kda-precompile": _fault(lambda w, s: ground(s, "gh200:8x4", "", model=w.w4afp8()), "WARN", ("0.5.17",)),
    "checkpoint.scales": Case(
        lambda w: ground(model=replace(w.k3, problems=(InputError("has no scales", where="model-1: experts.0.w1"),))),
        lambda w: ground(model=w.k3),
    ),
    "checkpoint.input-scales": Case(
        lambda w: ground(model=w.w4afp8(with_input_scale=False)), lambda w: ground(model=w.w4afp8())
    ),
    "checkpoint.remote-code": Case(
        lambda w: ground(arguments="--trust-remote-code", model=w.k3),
        lambda w: ground(arguments="", model=w.k3),
        "WARN",
    ),
    "checkpoint.a-log": Case(
        lambda w: ground(
            w.site().edited("sglang.srt.models.kimi_k3", "_a_log_weight_loader", "_another_loader"), model=w.k3
        ),
        lambda w: ground(w.site(), model=w.k3),
        "UNKNOWN",
    ),
    "reasoning.parsers": _words("--reasoning-parser qwen3", "--reasoning-parser kimi_k3 --tool-call-parser kimi_k3"),
    "reasoning.room": _words("--context-length 600", "--context-length 8192"),
    "reasoning.skipped-thinking": Case(
        lambda w: ground(
            w.site().edited("sglang.srt.parser.reasoning_parser", "_skipped_think_channel", "_gone")
            if w.version != "0.5.17"
            else w.site(),
            model=w.k3,
        ),
        lambda w: ground(replace(w, version="0.5.20").site(), model=w.k3),
        "WARN",
    ),
    "moe.w4afp8-dtype": Case(
        lambda w: ground(arguments="--dtype half", model=w.w4afp8()), lambda w: ground(arguments="", model=w.w4afp8())
    ),
    "moe.backend": _words("--tp-size 32", EP),
    "moe.activation": _words("--moe-runner-backend humming", EP),
    "moe.w4afp8-all-to-all": Case(
        lambda w: ground(
            arguments="--moe-a2a-backend deepep",
            model=w.w4afp8(with_input_scale=False, moe_activation_scheme="dynamic"),
        ),
        lambda w: ground(arguments="--moe-a2a-backend deepep", model=w.w4afp8()),
    ),
    "nvfp4.fp4-path": Case(
        lambda w: ground(
            w.site() if w.version == "0.5.17" else _without_situ(w.site()), "b200:2x8", "--tp-size 16", model=w.nvfp4()
        ),
        lambda w: ground(
            replace(w, version="0.5.20").site(),
            "b200:2x8",
            "--tp-size 16 --moe-runner-backend flashinfer_trtllm",
            model=w.nvfp4(),
        ),
    ),
    "nvfp4.cuda": Case(
        lambda w: ground(w.site().distribution("torch", "2.13.0+cu128"), "b200:2x8", "", model=w.nvfp4()),
        lambda w: ground(w.site(), "b200:2x8", "", model=w.nvfp4()),
    ),
    "dcp.flashinfer": Case(
        lambda w: ground(w.site().distribution("flashinfer-python", "0.6.15.post1"), arguments="--dcp-size 8"),
        lambda w: ground(
            w.site().file("flashinfer/mla/_core.py", _flashinfer("enable_dcp=False")), arguments="--dcp-size 8"
        ),
    ),
    "dcp.arguments": Case(
        lambda w: ground(arguments="--dcp-size 8 --decode-attention-backend flashmla"),
        lambda w: ground(arguments="--dcp-size 8"),
    ),
    "draft.model": _drafts(lambda w: w.draft("K3DSparkModel")),
    "draft.format": _drafts(lambda w: w.draft(), f"{SPEC} --speculative-draft-model-quantization fp8", SPEC),
    "draft.block-size": _drafts(
        lambda w: w.draft(),
        f"{SPEC} --speculative-dspark-block-size 2 --speculative-num-draft-tokens 4",
        f"{SPEC} --speculative-dspark-block-size 2 --speculative-num-draft-tokens 3",
    ),
    "draft.pipeline": _words(f"{SPEC} --pp-size 2", SPEC),
    "draft.running-requests": _words(SPEC, f"{SPEC} --max-running-requests 64", "WARN"),
    "arguments.known": _words("--tp-sizes 32", "--tp-size 32"),
    "arguments.values": _words("--moe-runner-backend marlinn", EP),
    "environment.patch-only": _environment(
        {"SGLANG_EXPERT_LOAD_FILTER": "896", "SGLANG_MARLIN_EP_BLOCK": "1", "K3_W4_SRC2DST": "count"},
        {"SGLANG_EXPERT_LOAD_FILTER": "896", "SGLANG_MARLIN_EP_BLOCK": "1", "K3_W4_SRC2DST": "count"},
    ),
    "environment.known": _environment(
        {"SGLANG_RAGED_VERIFY_MODE": "static"}, {"SGLANG_RAGGED_VERIFY_MODE": "static", "SGLANG_HOST_IP": "10.0.0.1"}
    ),
}


def _without_situ(site: Site) -> Site:
    """A newer SGLang whose FP4 runner has lost SiTU again."""
    return site.edited(
        "sglang.srt.layers.moe.moe_runner.flashinfer_trtllm", '{"silu", "relu2", "gelu", "situ"}', '{"silu", "relu2"}'
    )
