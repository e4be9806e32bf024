"""Which kernel would run the routed experts, and whether it computes what the model asks for."""

from __future__ import annotations

import ast

from truecast.engines.sglang.fixes.situ_nvfp4 import accepts
from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.setting import OTHER_VERSION, no_sglang, place, quantization
from truecast.serve.installed import read_text
from truecast.serve.stored_model import StoredModel

RUNNERS = {
    "marlin": "sglang.srt.layers.moe.moe_runner.marlin",
    "humming": "sglang.srt.layers.moe.moe_runner.humming",
    "deep_gemm": "sglang.srt.layers.moe.moe_runner.deep_gemm",
    "flashinfer_trtllm": "sglang.srt.layers.moe.moe_runner.flashinfer_trtllm",
    "flashinfer_mxfp4": "sglang.srt.layers.moe.moe_runner.flashinfer_trtllm",
}
"""Backends whose own source says which activations they have."""
MXFP4, MXFP4_METHOD = "flashinfer_mxfp4", "sglang.srt.layers.quantization.mxfp4"
CUBINS = "SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL"
BACKEND = "--moe-runner-backend"


def _backend(ground: Ground) -> Verdict:
    if ground.model is None or ground.arguments is None:
        return skipped("wants a checkpoint (--for) and the server's arguments")
    if ground.capability is None:
        return skipped("no GPU is told (--topology)")
    if ground.capability != 90 or not _k3_experts(ground.model):
        return skipped("asked of Kimi-K3's experts in MXFP4 on Hopper")
    asked = ground.argument(BACKEND) or "auto"
    if asked != "auto":
        return passed(f"{BACKEND} {asked}")
    return failed(
        f"{BACKEND} is not set: for Kimi-K3 SGLang resolves it on Blackwell only, and on {ground.topology} the experts"
        f" are expanded to BF16 at load, {ground.model.weights.experts * 64 // 17 / 1e12:.1f} TB",
        f"add {BACKEND} marlin",
    )


def _k3_experts(model: StoredModel) -> bool:
    return model.family == "kimi_k3" and model.format == "mxfp4" and model.experts > 0


def _activation(ground: Ground) -> Verdict:
    """Backends that no fix mends; the methods' own assertions are asked by ``fault.situ-nvfp4`` and ``situ-w4afp8``."""
    if said := no_sglang(ground):
        return said
    if ground.model is None or ground.arguments is None:
        return skipped("wants a checkpoint (--for) and the server's arguments")
    assert ground.installation is not None
    activation, asked = ground.model.activation, ground.argument(BACKEND) or "auto"
    if not ground.model.experts or activation != "situ":
        return skipped(f"no routed experts with SiTU, but {activation}")
    if ground.model.format == "mxfp4" and (said := _cubins(ground, asked)):
        return said
    if asked == "auto":
        return skipped(f"{BACKEND} is not set: see moe.backend and the faults of the method")
    if quantization(ground) == "w4afp8":
        return skipped("W4AFP8 takes its kernel whatever the backend: see fault.situ-w4afp8")
    if asked not in RUNNERS or (asked == MXFP4 and not _blackwell(ground)):
        return unknown(
            f"it is not established that {BACKEND} {asked} computes SiTU",
            f"use {BACKEND} marlin on Hopper, or compare the answers with a server on Marlin",
        )
    tree = ast.parse(ground.installation.sources(RUNNERS[asked]))
    spoken = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value == activation]
    at = f"{RUNNERS[asked].replace('.', '/')}.py"
    if spoken:
        return passed(f"{BACKEND} {asked} knows {activation} ({at}:{spoken[0].lineno})")
    return failed(
        f"{BACKEND} {asked} does not know {activation}: {at} never speaks of it", f"use {BACKEND} marlin on Hopper"
    )


def _blackwell(ground: Ground) -> bool:
    return ground.capability is not None and ground.capability >= 100


def _cubins(ground: Ground, asked: str) -> Verdict | None:
    """FlashInfer's kernels for MXFP4, SGLang's own choice on Blackwell, had SiTU first in a pool of cubins of its own."""
    assert ground.installation is not None
    if not _blackwell(ground) or asked not in ("auto", MXFP4):
        return None
    if CUBINS not in ground.installation.sources(MXFP4_METHOD):
        return None
    at = place(ground.installation, MXFP4_METHOD, CUBINS)
    if pool := ground.environment.get(CUBINS):
        return passed(f"{CUBINS}={pool} ({at})")
    return failed(
        f"{BACKEND} {asked}: SiTU stops unless {CUBINS} names a folder of cubins ({at})",
        f"use {BACKEND} marlin, or fetch the cubins as SGLang's error message says",
    )


def _deepep(ground: Ground) -> Verdict:
    """Dynamic activation scales have no DeepEP path, and no fix gives them one."""
    if ground.model is None or ground.arguments is None:
        return skipped("wants a checkpoint (--for) and the server's arguments")
    if ground.model.format != "w4afp8":
        return skipped(f"asked of W4AFP8, and the format is {ground.model.format}")
    asked = ground.argument("--moe-a2a-backend") or "none"
    if asked == "none" or ground.model.with_input_scale == ground.model.packed:
        return passed(f"--moe-a2a-backend {asked}")
    return failed(
        f"--moe-a2a-backend {asked} needs static activation scales, and"
        f" {ground.model.packed - ground.model.with_input_scale} of {ground.model.packed} matrices have none",
        "start without --moe-a2a-backend, or convert with calibrated scales",
    )


def _dtype(ground: Ground) -> Verdict:
    if ground.model is None or ground.arguments is None:
        return skipped("wants a checkpoint (--for) and the server's arguments")
    if ground.model.format != "w4afp8":
        return skipped(f"asked of W4AFP8, and the format is {ground.model.format}")
    stored = ground.model.text.get("dtype", ground.model.text.get("torch_dtype", "bfloat16"))
    asked = ground.argument("--dtype") or "auto"
    if asked in ("half", "float16") or (asked == "auto" and stored == "float16"):
        return failed(
            f"--dtype {asked}, dtype {stored} in config.json: W4AFP8's kernel gives BF16, FP16 overflows to NaN",
            "set --dtype bfloat16",
        )
    return passed(f"--dtype {asked}, dtype {stored} in config.json")


def _fp4_path(ground: Ground) -> Verdict:
    if said := no_sglang(ground):
        return said
    if said := _no_fp4(ground):
        return said
    assert ground.installation is not None and ground.model is not None
    asked = ground.argument(BACKEND) or "auto"
    if asked == "marlin":
        return warned(
            f"{BACKEND} marlin multiplies in BF16: 4 bits in memory, but no FP4 throughput on {ground.topology}",
            f"on SGLang 0.5.18 or newer {BACKEND} flashinfer_trtllm computes in FP4, if the checkpoint has input scales",
        )
    backend = "flashinfer_trtllm" if asked == "auto" else asked
    activation = ground.model.activation
    runner = RUNNERS["flashinfer_trtllm"]
    names = _fp4_activations(ground.installation.sources(runner))
    at = place(ground.installation, runner, "_SUPPORTED_FP4_ACTIVATIONS")
    if backend != "flashinfer_trtllm":
        return unknown(
            f"it is not established what {BACKEND} {asked} does with NVFP4", f"use {BACKEND} flashinfer_trtllm"
        )
    if names is None:
        return unknown(f"{at} lists no activations for FP4", OTHER_VERSION)
    if activation not in names or not accepts(ground.installation.sources, activation, backend):
        return failed(
            f"the FP4 runner does {', '.join(sorted(names))} and not {activation} ({at})",
            f"use SGLang 0.5.18 or newer, or {BACKEND} marlin (with the plug-in, see fault.situ-nvfp4)",
        )
    if activation == "situ" and (lacking := _no_situ_in_flashinfer(ground)):
        return lacking
    return passed(f"the FP4 runner does {activation} ({at})")


def _no_fp4(ground: Ground) -> Verdict | None:
    if ground.model is None or ground.capability is None:
        return skipped("wants a checkpoint (--for) and a GPU (--topology)")
    if ground.model.format != "nvfp4" or ground.capability < 100:
        return skipped("asked of NVFP4 on Blackwell")
    if ground.arguments is None:
        return skipped("the server's arguments are not given")
    return None


def _fp4_activations(source: str) -> set[str] | None:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_SUPPORTED_FP4_ACTIVATIONS":
            return {str(n.value) for n in ast.walk(node.value) if isinstance(n, ast.Constant)}
    return None


def _no_situ_in_flashinfer(ground: Ground) -> Verdict | None:
    assert ground.installation is not None
    path = ground.installation.path("flashinfer", "tllm_enums.py")
    if path is None:
        return None
    if "Situ" in read_text(path):
        return None
    return failed(f"{path}: ActivationType has no Situ", "install the FlashInfer that SGLang asks for")


def _cuda(ground: Ground) -> Verdict:
    if ground.installation is None:
        return skipped("no SGLang is installed here or given by --site-packages")
    if said := _no_fp4(ground):
        return said
    if ground.argument(BACKEND) == "marlin":
        return skipped("Marlin is not built from these sources")
    told = cuda(ground)
    if told is None:
        return unknown(
            "neither torch's version nor an nvidia-cuda-runtime says which CUDA this is; the FP4 kernels are compiled at"
            " the first start and need CUDA 13 (cuda::maximum)",
            "use an image with CUDA 13, such as torch +cu130",
        )
    major, evidence = told
    if major >= 13:
        return passed(evidence)
    return failed(
        f'{evidence}: compiling the FP4 kernels stops with: namespace "cuda" has no member "maximum"',
        f"use CUDA 13 (torch +cu130), or {BACKEND} marlin",
    )


def cuda(ground: Ground) -> tuple[int, str] | None:
    """CUDA's major version by what is installed, and where that stands."""
    assert ground.installation is not None
    versions = ground.installation.versions
    build = versions.get("torch", "").partition("+cu")[2]
    if build.isdecimal() and len(build) >= 3:
        return int(build[:-1]), f"torch {versions['torch']}"
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-nvcc", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"):
        major = versions.get(name, "").partition(".")[0]
        if major.isdecimal():
            return int(major), f"{name} {versions[name]}"
    return None


_CARD = "kimi-k3-nvfp4 card, Known limitation"
CHECKS = (
    Check(
        "moe.backend",
        "the experts' kernel is chosen where SGLang would not",
        _backend,
        ("sglang/srt/arg_groups/model_overrides/kimi_k3.py", "kimi-k3-nvfp4 card, requirement 1"),
    ),
    Check(
        "moe.activation",
        "the experts' kernel computes the model's activation",
        _activation,
        ("sglang/srt/layers/moe/moe_runner/", "sgl-project/sglang#35168", "ai-dynamo/aiconfigurator#1435"),
    ),
    Check(
        "moe.w4afp8-all-to-all",
        "W4AFP8's activation scales suit the all-to-all backend",
        _deepep,
        ("sglang/srt/layers/moe/cutlass_w4a8_moe.py", "sgl-project/sglang#39582"),
    ),
    Check(
        "moe.w4afp8-dtype",
        "W4AFP8 computes in BF16",
        _dtype,
        ("sglang/srt/layers/quantization/w4afp8.py, get_supported_act_dtypes", "sgl-project/sglang#8493, #9918"),
    ),
    Check(
        "nvfp4.fp4-path",
        "NVFP4 on Blackwell reaches FP4 kernels that do the model's activation",
        _fp4_path,
        (_CARD, "sglang/srt/layers/moe/moe_runner/flashinfer_trtllm.py: SiTU from 0.5.18 on"),
    ),
    Check("nvfp4.cuda", "CUDA is new enough for the FP4 kernels", _cuda, (_CARD, "cuda::maximum is in CUDA 13's CCCL")),
)
