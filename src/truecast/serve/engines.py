"""Which kernel runs the experts: engine by engine, format by format, GPU generation by generation.

Read in the sources of SGLang 0.5.20 and vLLM 0.33; what was not established there is worded so, nothing is guessed.

SGLang (python/sglang/srt): models/kimi_k3.py, arg_groups/model_overrides/kimi_k3.py, layers/quantization/{mxfp4,
modelopt_quant,w4afp8,fp8,utils}.py, layers/moe/cutlass_w4a8_moe.py, layers/moe/moe_runner/{marlin,deep_gemm}.py and
moe_runner/triton_utils/fused_moe.py. vLLM (vllm/model_executor): layers/fused_moe/oracle/{mxfp4,nvfp4,w4a8,fp8}.py,
layers/quantization/utils/{quant_utils.py,humming/priority.py}, models/config.py. Window of MXFP4 times FP8: humming's
transform.py, which keeps twelve binades and rounds again outside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

SGLANG, VLLM = "SGLang 0.5.20", "vLLM 0.33"
HOPPER, BLACKWELL = frozenset({90}), frozenset({100, 103})

W4A16 = "4-bit in memory only (W4A16): multiplied in BF16, so no FP4 or FP8 throughput"
EXACT = "as stored"
WINDOW = "as stored while an expert's scales lie within 12 binades (no weight error), rounded again outside"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something known against a route. ``verdict``: what it amounts to, one of :data:`VERDICTS`.

    ``mended_by``: the fix of truecast's plug-in (:mod:`truecast.engines.sglang.fixes`) that mends it, "" for none.
    Whether the plug-in is installed is not asked here but by ``truecast doctor``.
    """

    text: str
    verdict: str = "no fault known"
    mended_by: str = ""


VERDICTS = ("wrong result", "stops", "not established", "no fault known")
"""What may come of a route, the worst first: as read in its source, nothing was run."""


@dataclass(frozen=True, slots=True)
class Route:
    """One way in which an engine computes routed experts of one format.

    ``functions``: hidden activations (``hidden_act``) that it computes; ``otherwise``: what happens with another one.
    ``mends``: which fix of the plug-in adds a function, by the function.
    """

    engine: str
    format: str
    dialects: frozenset[str]
    capabilities: frozenset[int]
    kernel: str
    activations: str
    weights: str
    functions: frozenset[str]
    otherwise: Fault
    options: str = ""
    faults: tuple[Fault, ...] = ()
    aarch64_faults: tuple[Fault, ...] = ()
    family_faults: dict[str, tuple[Fault, ...]] = field(default_factory=dict)
    mends: dict[str, str] = field(default_factory=dict)

    def faults_for(self, family: str, function: str | None, host: str) -> tuple[Fault, ...]:
        """Everything known against this route for a model family, a hidden activation and a host architecture."""
        found = list(self.faults)
        if function is not None and function not in self.functions:
            otherwise = replace(self.otherwise, text=self.otherwise.text.format(function))
            mends = self.mends.get(function, "")
            found.insert(0, replace(otherwise, mended_by=mends) if mends else otherwise)
        if host == "aarch64":
            found += self.aarch64_faults
        return (*found, *self.family_faults.get(family, ()))


def verdict(faults: Iterable[Fault]) -> str:
    """The worst that these faults amount to."""
    return min((fault.verdict for fault in faults), key=VERDICTS.index, default="no fault known")


def with_plugin(faults: Iterable[Fault]) -> str:
    """The worst that these faults amount to where truecast's plug-in is installed."""
    return verdict(fault for fault in faults if not fault.mended_by)


_COMMON = frozenset({"silu", "gelu", "situ"})
_GATED = frozenset({"silu", "situ"})
_MXFP4 = frozenset({"compressed-tensors", "deepseek", "gpt-oss"})
_MODELOPT = frozenset({"modelopt"})
_NVFP4 = _MODELOPT | {"compressed-tensors"}
_UNKNOWN = Fault("it is not established that this kernel computes {}", "not established")
_REFUSED = Fault("refuses {} at the first forward pass", "stops")
_SKIPPED = Fault("vLLM passes this kernel over for {}", "stops")
_WRONG = Fault("computes SiLU where the model wants {}, silently", "wrong result")
_MEMORY_ONLY = Fault(W4A16)
_DROPS_PACKED = Fault(
    "renames weight_packed, finds no parameter of that name, and leaves the experts unloaded without an error",
    "wrong result",
)
_NO_INPUT_SCALES = Fault("multiplies FP4 by FP4: a checkpoint without activation scales is not made for it")
_NO_SM90A = Fault(
    "the aarch64 wheels of sglang-kernel up to 0.4.10 have no sm_90a code: the kernel traps until it is rebuilt",
    "stops",
)
_SIGNS = Fault("it is not established that the kernel takes negative group scales", "not established")
_ACTIVATION_OVERRIDE = "quantization_config.moe.activation"

ROUTES: tuple[Route, ...] = (
    Route(
        SGLANG, "mxfp4", _MXFP4, HOPPER, "Marlin", "BF16", EXACT, _GATED, _REFUSED, "--moe-runner-backend marlin",
        (
            _MEMORY_ONLY,
            Fault("under EP its tile is chosen from local experts only: slow at small batches", mended_by="marlin-ep-tile"),
        ),
        family_faults={"kimi_k3": (Fault("without that option the experts are expanded to BF16 at load"),)},
    ),
    Route(
        SGLANG, "mxfp4", _MXFP4, HOPPER, "FlashInfer CUTLASS", "FP8", WINDOW, frozenset({"silu"}), _UNKNOWN,
        "--moe-runner-backend flashinfer_mxfp4 --flashinfer-mxfp4-moe-precision fp8",
    ),
    Route(
        SGLANG, "mxfp4", _MXFP4, BLACKWELL, "FlashInfer TRT-LLM", "MXFP8", EXACT, _GATED, _UNKNOWN,
        "--moe-runner-backend flashinfer_mxfp4",
    ),
    Route(
        SGLANG, "nvfp4", _MODELOPT, HOPPER, "Marlin", "BF16", EXACT, frozenset({"silu"}), _REFUSED, "", (_MEMORY_ONLY,),
        mends={"situ": "situ-nvfp4"},
    ),
    Route(
        SGLANG, "nvfp4", _NVFP4 - _MODELOPT, HOPPER, "Marlin", "BF16", EXACT, frozenset({"silu"}), _REFUSED, "",
        (_MEMORY_ONLY,), family_faults={"kimi_k3": (_DROPS_PACKED,)},
    ),
    Route(
        SGLANG, "nvfp4", _MODELOPT, BLACKWELL, "FlashInfer TRT-LLM", "NVFP4", EXACT, _COMMON, _REFUSED,
        "--moe-runner-backend flashinfer_trtllm", (_NO_INPUT_SCALES,),
    ),
    Route(
        SGLANG, "nvfp4", _NVFP4 - _MODELOPT, BLACKWELL, "FlashInfer TRT-LLM", "NVFP4", EXACT, _COMMON, _REFUSED,
        "--moe-runner-backend flashinfer_trtllm", (_NO_INPUT_SCALES,), family_faults={"kimi_k3": (_DROPS_PACKED,)},
    ),
    Route(
        SGLANG, "w4afp8", frozenset({"sglang"}), HOPPER, "CUTLASS W4A8",
        "FP8, one static scale a tensor", EXACT, frozenset({"silu"}), _WRONG,
        "",
        (
            Fault(
                "its config reader drops ignored_layers: modules kept in BF16 are taken for FP8", "stops", "w4afp8-config"
            ),
            Fault("activation scales of 1.0 saturate at 448: calibrate, or check the largest activation"),
        ),
        (_NO_SM90A,),
        {
            "kimi_k3": (
                Fault("stops while it builds or loads b_proj, because of those ignored layers", "stops", "w4afp8-config"),
            )
        },
        {"situ": "situ-w4afp8"},
    ),
    Route(
        SGLANG, "w4afp8", frozenset({"compressed-tensors"}), HOPPER, "CUTLASS W4A8",
        "FP8, one dynamic scale a tensor", EXACT, frozenset({"silu"}), _REFUSED, "", (),
        (_NO_SM90A,),
        {"kimi_k3": (_DROPS_PACKED,)},
    ),
    Route(
        SGLANG, "fp8", frozenset({"deepseek"}), HOPPER | BLACKWELL, "DeepGEMM or Triton", "FP8, a scale per token and 128",
        EXACT, _GATED, _UNKNOWN,
    ),
    Route(SGLANG, "bf16", frozenset({"bf16"}), HOPPER | BLACKWELL, "Triton", "BF16", EXACT, _COMMON, _REFUSED),
    Route(
        VLLM, "mxfp4", _MXFP4, HOPPER, "Humming", "BF16", EXACT, _COMMON, _SKIPPED, "", (_MEMORY_ONLY,),
    ),
    Route(
        VLLM, "mxfp4", _MXFP4, HOPPER, "Humming", "FP8", WINDOW, _COMMON, _SKIPPED,
        f"moe_backend humming, an FP8 {_ACTIVATION_OVERRIDE}",
    ),
    Route(
        VLLM, "mxfp4", _MXFP4, BLACKWELL, "FlashInfer TRT-LLM", "BF16, or MXFP8", EXACT, _COMMON, _SKIPPED,
        f"{_ACTIVATION_OVERRIDE} for MXFP8",
    ),
    Route(VLLM, "nvfp4", _NVFP4, HOPPER, "Humming or Marlin", "BF16", EXACT, _COMMON, _SKIPPED, "", (_MEMORY_ONLY,)),
    Route(
        VLLM, "nvfp4", _NVFP4, BLACKWELL, "FlashInfer TRT-LLM or CuTe DSL", "NVFP4", EXACT, _COMMON, _SKIPPED, "",
        (_NO_INPUT_SCALES,),
    ),
    Route(
        VLLM, "w4afp8", frozenset({"compressed-tensors"}), HOPPER, "CUTLASS W4A8", "FP8, a dynamic scale per token",
        "group scales rounded to E4M3 at load: up to 1/16 off, each", _COMMON, _SKIPPED, "",
        (_SIGNS,),
    ),
    Route(
        VLLM, "w4afp8", frozenset({"compressed-tensors"}), HOPPER | BLACKWELL, "Humming",
        "FP8, a dynamic scale per token", EXACT, _COMMON, _SKIPPED, "moe_backend humming",
        (_SIGNS,),
    ),
    Route(
        VLLM, "fp8", frozenset({"deepseek", "compressed-tensors"}), HOPPER | BLACKWELL, "Triton or CUTLASS", "FP8", EXACT,
        _COMMON, _SKIPPED,
    ),
    Route(VLLM, "bf16", frozenset({"bf16"}), HOPPER | BLACKWELL, "Triton", "BF16", EXACT, _COMMON, _SKIPPED),
)  # fmt: skip
"""Every route that was read, SGLang's before vLLM's."""


def routes(target: str, dialect: str, capability: int) -> list[Route]:
    """Ways to compute this format, stored in this dialect, on GPUs of this compute capability."""
    return [r for r in ROUTES if r.format == target and dialect in r.dialects and capability in r.capabilities]
