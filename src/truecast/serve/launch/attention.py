"""Attention kernels, and the types of KV cache and recurrent states."""

from __future__ import annotations

from truecast.serve.launch.case import CARD_003, COOKBOOK, Case
from truecast.serve.launch.setting import Setting

FP8_KV = "fp8_e4m3"
_FLASHMLA = (512, 64)
"""Ranks of the compressed KV vector and of the rotary key that FlashMLA's kernels are made for."""


def flashmla_fits(case: Case) -> bool:
    """Is this MLA of the one shape that FlashMLA has?"""
    text = case.model.text
    return (text.get("kv_lora_rank"), text.get("qk_rope_head_dim")) == _FLASHMLA


def kv_bytes(case: Case) -> int:
    """Bytes of an element of the KV cache."""
    return 1 if case.is_k3 and case.hopper else 2


def cache_settings(case: Case) -> list[Setting]:
    """Types of what is kept of each request. Nothing where SGLang's own choice stands."""
    if not case.is_k3 or not case.hopper:
        return []
    return [
        Setting(
            "--kv-cache-dtype",
            FP8_KV,
            f"half the KV cache, which every rank holds whole under MLA; the KL on that page is with it ({CARD_003})",
        ),
        Setting(
            "--mamba-ssm-dtype",
            "float32",
            f"KDA's states add up over the whole text; the replay of speculation is made for FP32 ({CARD_003})",
        ),
    ]


def attention_settings(case: Case) -> list[Setting]:
    """Kernels of prefill and decode. On Blackwell and for other families SGLang's own choice stands."""
    if not case.is_k3 or not case.hopper:
        return []
    name = "flashmla" if flashmla_fits(case) else "triton"
    if name == "flashmla":
        why = f"Hopper's MLA kernel, which reads the FP8 cache as it is ({CARD_003}; {COOKBOOK})"
    else:
        why = "FlashMLA is made for a KV vector of 512 and a rotary key of 64, which this model has not"
    return [Setting(f"--{phase}-attention-backend", name, why) for phase in ("prefill", "decode")]


def attention_notes(case: Case) -> list[str]:
    """What was left to SGLang."""
    if not case.is_k3 or case.hopper:
        return []
    return [
        "attention backends are left to SGLang: on Blackwell it takes trtllm_mla for Kimi-K3 and puts the verification of"
        " drafts on the decode kernel, which naming backends would undo; KV cache and states keep their types",
        "no --dcp-size: its decode kernel passes arguments that FlashInfer takes from 0.6.17 on (0.6.15 does not)",
    ]
