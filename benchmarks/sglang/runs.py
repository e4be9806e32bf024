"""Which servers there are: a checkpoint, SGLang's arguments, and what the plug-in is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COMMON = (
    "--trust-remote-code",
    "--skip-tokenizer-init",
    "--skip-server-warmup",
    "--disable-cuda-graph",
    "--disable-radix-cache",
    "--disable-custom-all-reduce",
    *("--sampling-backend", "pytorch"),
    *("--grammar-backend", "none"),
    *("--mm-attention-backend", "sdpa"),
    *("--mm-feature-transport", "cpu"),
    *("--mem-fraction-static", "0.5"),
    *("--max-total-tokens", "16384"),
    *("--max-running-requests", "8"),
    *("--context-length", "2048"),
    *("--watchdog-timeout", "900"),
)
TRITON = ("--attention-backend", "triton")
MARLIN = ("--moe-runner-backend", "marlin")
FP8_KV = ("--kv-cache-dtype", "fp8_e4m3")
PAGED = ("--attention-backend", "flashinfer", "--flashinfer-mla-disable-ragged")
"""Prefill by flashinfer's paged kernel, which reads the pool."""
CHUNKED = ("--chunked-prefill-size", "128")
"""So few routes a step (four experts a token) that SGLang deals them to tiles in their own order."""
EP2 = ("--tp-size", "2", "--ep-size", "2")
"""Two GPUs: attention and dense layers split by heads and columns, each GPU with half of the experts."""
AS_DEALT = {"TRUECAST_SGLANG_STABLE_ORDER": "0"}
GAMMA = 3
"""Tokens that the draft model proposes a step."""


@dataclass(frozen=True)
class Run:
    """``checkpoint`` and ``reference``: names of :mod:`.checkpoints` and :mod:`.reference`. ``plugin`` is the value of
    ``TRUECAST_SGLANG``, None for all fixes. ``same_as``: the run whose every bit this one should give.
    ``must_fail``: what the log must hold where stock SGLang stops. ``draft``: greedy answers alone, by speculation."""

    name: str
    checkpoint: str
    reference: str
    arguments: Sequence[str] = (*TRITON, *MARLIN)
    plugin: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    same_as: str = ""
    must_fail: str = ""
    draft: bool = False


def speculation(draft: str, gamma: int = GAMMA, tokens: int = GAMMA + 1) -> tuple[str, ...]:
    """SGLang's arguments for DSpark with a draft model; ``tokens`` to verify must be ``gamma + 1``."""
    return (
        *("--speculative-algorithm", "DSPARK"),
        *("--speculative-draft-model-path", draft),
        *("--speculative-draft-model-quantization", "unquant"),
        *("--speculative-dspark-block-size", str(gamma)),
        *("--speculative-num-draft-tokens", str(tokens)),
        *("--speculative-draft-attention-backend", "triton"),
        *("--linear-attn-verify-backend", "triton"),
    )


RUNS = (
    Run("mxfp4", "mxfp4", "mxfp4"),
    Run("bf16", "bf16", "mxfp4", TRITON),
    Run("nvfp4", "nvfp4", "mxfp4", same_as="mxfp4"),
    Run("mxfp4-stock", "mxfp4", "mxfp4", plugin="off"),
    Run("mxfp4-chunked", "mxfp4", "mxfp4", (*TRITON, *MARLIN, *CHUNKED), plugin="off"),
    Run("nvfp4-chunked", "nvfp4", "mxfp4", (*TRITON, *MARLIN, *CHUNKED), environment=AS_DEALT, same_as="mxfp4-chunked"),
    Run("nvfp4-atomic", "nvfp4", "mxfp4", environment={"TRUECAST_SGLANG_ATOMIC_ADD": "1"}),
    Run("nvfp4-off", "nvfp4", "mxfp4", plugin="off", must_fail="activation='situ' not in supported"),
    Run("nvfp4-globals", "nvfp4-globals", "mxfp4", same_as="mxfp4"),
    Run("nvfp4-globals-high", "nvfp4-globals-high", "mxfp4", same_as="mxfp4"),
    Run("nvfp4-subnormal", "nvfp4-subnormal", "mxfp4", must_fail="that Marlin cannot hold"),
    Run("nvfp4-subnormal-unchecked", "nvfp4-subnormal", "mxfp4", plugin="situ-nvfp4,marlin-repeatable"),
    Run("w4afp8", "w4afp8", "w4afp8", TRITON),
    Run("w4afp8-silu", "w4afp8", "w4afp8", TRITON, plugin="w4afp8-config"),
    Run("w4afp8-off", "w4afp8", "w4afp8", TRITON, plugin="off", must_fail="Downcasting not allowed"),
    Run(
        "w4afp8-fp8-attention",
        "w4afp8-fp8-attention",
        "w4afp8-fp8-attention",
        (*TRITON, "--fp8-gemm-backend", "triton"),
    ),
    Run("mxfp4-ep2", "mxfp4", "mxfp4", (*TRITON, *MARLIN, *EP2)),
    Run(
        "mxfp4-ep2-unfiltered",
        "mxfp4",
        "mxfp4",
        (*TRITON, *MARLIN, *EP2, "--weight-loader-disable-mmap"),  # what is read through a map is not counted
        environment={"SGLANG_EXPERT_LOAD_FILTER": "off"},
        same_as="mxfp4-ep2",
    ),
    Run("nvfp4-ep2", "nvfp4", "mxfp4", (*TRITON, *MARLIN, *EP2), same_as="mxfp4-ep2"),
    Run("w4afp8-ep2", "w4afp8", "w4afp8", (*TRITON, *EP2)),
    Run("mxfp4-flashinfer", "mxfp4", "mxfp4", (*PAGED, *MARLIN)),
    Run("fp8-kv", "mxfp4", "fp8-kv", (*PAGED, *MARLIN, *FP8_KV, *CHUNKED), plugin="fp8-kv-gather"),
    Run("fp8-kv-off", "mxfp4", "fp8-kv", (*PAGED, *MARLIN, *FP8_KV, *CHUNKED), plugin="off", same_as="fp8-kv"),
    Run("fp8-kv-triton", "mxfp4", "mxfp4", (*TRITON, *MARLIN, *FP8_KV)),
    Run("dspark", "mxfp4", "mxfp4", (*TRITON, *MARLIN, *speculation("{draft}")), draft=True),
    Run(
        "dspark-window",
        "mxfp4",
        "mxfp4",
        (*TRITON, *MARLIN, *speculation("{draft}", tokens=GAMMA + 2)),
        must_fail=r"must equal gamma \+ 1",
        draft=True,
    ),
)

GROUPS = {
    "formats": (
        "mxfp4",
        "mxfp4-stock",
        "bf16",
        "nvfp4",
        "nvfp4-atomic",
        "nvfp4-off",
        "w4afp8",
        "w4afp8-silu",
        "w4afp8-off",
    ),
    "scales": ("mxfp4", "nvfp4-globals", "nvfp4-subnormal", "nvfp4-subnormal-unchecked"),
    "cache": ("mxfp4", "mxfp4-flashinfer", "fp8-kv", "fp8-kv-off", "fp8-kv-triton", "w4afp8-fp8-attention"),
    "ep": ("mxfp4", "mxfp4-ep2", "mxfp4-ep2-unfiltered", "nvfp4-ep2", "w4afp8-ep2"),
    "last": ("mxfp4", "w4afp8", "w4afp8-fp8-attention", "nvfp4", "nvfp4-globals", "nvfp4-globals-high"),
    "drafts": ("mxfp4", "dspark", "dspark-window"),
    "second": (
        *("mxfp4", "nvfp4", "mxfp4-chunked", "nvfp4-chunked"),
        *("nvfp4-globals", "nvfp4-subnormal", "nvfp4-subnormal-unchecked"),
        *("fp8-kv", "fp8-kv-off", "w4afp8-fp8-attention"),
    ),
}


def chosen(names: str) -> list[Run]:
    """The runs that a comma list names; a name may be a group, or ``all``. Raises: ValueError for another one."""
    known = {run.name: run for run in RUNS}
    wanted: list[str] = []
    for name in names.split(","):
        wanted += known if name == "all" else GROUPS.get(name, (name,))
    if unknown := [n for n in wanted if n not in known]:
        raise ValueError(f"no run {', '.join(unknown)}; there are {', '.join(known)}, all, {', '.join(GROUPS)}")
    return [known[n] for n in dict.fromkeys(wanted)]
