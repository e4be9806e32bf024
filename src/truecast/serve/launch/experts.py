"""Which kernel runs the routed experts: by format, GPU and release."""

from __future__ import annotations

from collections.abc import Mapping

from truecast.errors import UsageError
from truecast.serve.engines import routes
from truecast.serve.launch.case import CARD_000, Case
from truecast.serve.launch.setting import Setting
from truecast.serve.stored_model import StoredModel

FLAG = "--moe-runner-backend"
SITU_ON_TRTLLM = (0, 5, 18)
"""First release whose NVFP4 method lets SiTU through to FlashInfer's TRT-LLM kernels (modelopt_quant.py)."""
CUBINS = "SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL"
_OWN_RULE = ("gpt_oss", "deepseek_v4")
"""Families for which SGLang chooses the kernel by itself (arg_groups/model_overrides/, deepseek_v4_hook.py)."""


def has_input_scales(model: StoredModel) -> bool:
    """Does the config describe quantized activations of NVFP4 weights, and has each matrix its scale of them?"""
    if not model.packed or model.with_input_scale < model.packed:
        return False
    block = model.config.get("quantization_config") or model.text.get("quantization_config")
    groups = block.get("config_groups") if isinstance(block, Mapping) else None
    found = groups.values() if isinstance(groups, Mapping) else ()
    return any(isinstance(group, Mapping) and group.get("input_activations") for group in found)


def backend(case: Case) -> str | None:
    """SGLang's name of the kernel, None where its own choice is right.

    Raises: UsageError where SGLang has no kernel for this format on this GPU, or reads it wrong.
    """
    model = case.model
    if not model.experts:
        return None
    if model.format == "w4afp8" and not routes(model.format, model.dialect, case.gpu.capability):
        raise UsageError(
            f"SGLang has no W4AFP8 kernel for {case.gpu.title}",
            where=model.location,
            fix="serve its MXFP4 or NVFP4 form",
        )
    if case.is_k3 and model.dialect == "compressed-tensors" and model.format in ("nvfp4", "w4afp8"):
        raise UsageError(
            f"SGLang drops the experts of Kimi-K3's {model.format} in the compressed-tensors dialect without an error",
            where=model.location,
            fix=f"truecast convert --to {model.format} --dialect {'modelopt' if model.format == 'nvfp4' else 'sglang'}",
        )
    if model.format == "nvfp4":
        return "flashinfer_trtllm" if _fp4_times_fp4(case) else "marlin"
    if model.format == "mxfp4" and model.family not in _OWN_RULE:
        return "marlin" if case.hopper or _wants_cubins(case) else "flashinfer_mxfp4"
    return None


def _wants_cubins(case: Case) -> bool:
    """Would FlashInfer's MXFP4 kernels stop for lack of SGLang's own SiTU cubins (arg_groups/overrides.py of 0.5.17)?"""
    return case.model.activation == "situ" and case.version < SITU_ON_TRTLLM


def expert_settings(case: Case) -> list[Setting]:
    """The flag, if one is needed."""
    name = backend(case)
    return [] if name is None else [Setting(FLAG, name, _why(case, name))]


def expert_notes(case: Case) -> list[str]:
    """What else there is to know of these kernels on this GPU."""
    model, found = case.model, []
    if model.format == "nvfp4" and not case.hopper:
        found.append(_fast_path(case))
    if model.format == "mxfp4" and not case.hopper and model.experts and _wants_cubins(case):
        found.append(
            f"{FLAG} flashinfer_mxfp4 is faster, but in this release it stops unless {CUBINS} names the SiTU cubins, which"
            " its error message says how to fetch"
        )
    block = model.config.get("quantization_config")
    static = not isinstance(block, Mapping) or block.get("moe_activation_scheme", "static") != "dynamic"
    if model.format == "w4afp8" and static and model.with_input_scale < model.packed:
        found.append(
            f"{model.packed - model.with_input_scale:,} of {model.packed:,} matrices have no input_scale: SGLang takes 1.0,"
            " and activations above 448 are cut off; convert with --calibration, or set moe_activation_scheme to dynamic"
        )
    for route in routes(model.format, model.dialect, case.gpu.capability):
        if route.engine.startswith("SGLang") and case.gpu.host == "aarch64" and model.experts:
            found += [f"{route.kernel}: {fault.text}" for fault in route.aarch64_faults]
    return found


def _fp4_times_fp4(case: Case) -> bool:
    if case.hopper or not has_input_scales(case.model):
        return False
    return case.model.activation != "situ" or case.version >= SITU_ON_TRTLLM


def _why(case: Case, name: str) -> str:
    if name == "flashinfer_mxfp4":
        return "FlashInfer's TRT-LLM kernels multiply MXFP4 as stored by MXFP8 (SGLang's own choice for Kimi-K3, made plain)"
    if name == "flashinfer_trtllm":
        return "NVFP4 weights and input scales: FP4 times FP4 by FlashInfer's TRT-LLM kernels"
    if case.model.format == "mxfp4" and not case.hopper:
        return (
            f"FlashInfer's kernels want SiTU cubins of their own in this release ({CUBINS}): Marlin has SiTU built in"
        )
    if case.model.format == "nvfp4":
        if case.hopper:
            return "Hopper has no FP4 tensor cores: Marlin multiplies the stored weights in BF16"
        return f"no input scales in this checkpoint: Marlin multiplies the stored weights in BF16 (W4A16; {CARD_000})"
    return "without it SGLang expands the experts to BF16 while it loads, to four times their size; Marlin keeps them in 4 bits"


def _fast_path(case: Case) -> str:
    start = ".".join(map(str, SITU_ON_TRTLLM))
    path = (
        f"FP4 fast path: SGLang from {start} on runs {case.model.activation} in {FLAG} flashinfer_trtllm on Blackwell"
    )
    if case.model.activation == "situ" and case.version < SITU_ON_TRTLLM:
        return f"{path}; this release is older, so Marlin is taken"
    if not has_input_scales(case.model):
        return (
            f"{path}, but it multiplies FP4 by FP4 and this checkpoint has no input scales: not taken. For it, convert"
            " with --activations nvfp4 (scales of 1.0 are placeholders; audit what they cost) and use CUDA 13"
        )
    return f"{path}: taken. It needs CUDA 13, and input scales of 1.0 are placeholders: audit what they cost"
