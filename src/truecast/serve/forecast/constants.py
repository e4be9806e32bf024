"""Numbers that the forecasts rest on, each with its source. Those of :data:`FITTED` were fitted, all others are given."""

from __future__ import annotations

from dataclasses import dataclass

GIB, MIB = 1 << 30, 1 << 20

CUDA_MEMORY = {
    "h100": round(79.11 * GIB),
    "h200": round(139.80 * GIB),
    "gh200": round(94.50 * GIB),
    "gh200-144": 153_008_209_920,
    "b200": round(178.35 * GIB),
    "b300": round(267.69 * GIB),
}
"""Bytes that CUDA reports for a whole GPU, as out-of-memory messages and device properties in public logs print them.

It is not the vendor's figure: an H200 "of 141 GB" shows 150.1e9 bytes, a GH200 "of 96 GB" 101.5e9."""

DRIVER_MEMORY_MIB = {
    "h100": 81_559, "h200": 143_771, "gh200": 97_871, "gh200-144": 146_831, "b200": 183_359, "b300": 275_040,
}  # fmt: skip
"""MiB that nvidia-smi prints; SGLang's own rule for ``--mem-fraction-static`` starts from it. The one of gh200-144 is
derived from its device properties, the others are from public logs."""

PROCESS = round(2.5 * GIB)
"""CUDA context and NCCL's communicators before weights are loaded: H200 logs go from 139.8 to 137.3 GiB (TP8,
sgl-project/sglang pull request 11716)."""

RUNTIME_LEAST = round(3.5e9)
"""Activations, graphs and workspaces that no deployment was seen to do without: AIConfigurator's "other" memory."""

MULTIMODAL = 100 * MIB
"""Set aside for the embedding cache of a multimodal model (SGLang 0.5.20, SGLANG_VLM_CACHE_SIZE_MB)."""

SYMMETRIC_MEMORY = 4 * GIB
"""Allocated ahead with ``--enable-symm-mem`` (SGLang 0.5.20, arg_groups/memory_hook.py)."""

REPLAY_LENGTH = 16
"""Steps that the ring of ``--enable-linear-replayssm-spec`` holds (SGLang 0.5.20, linear_replayssm_cache_len)."""

PADDING = {"mxfp4": 128, "nvfp4": 64}
"""A rank's part of the experts' width is padded to a multiple of this on Marlin (SGLang 0.5.20, mxfp4.py and
marlin_utils.py)."""

ON_MARLIN = ("mxfp4", "nvfp4")
"""Formats that SGLang runs on Marlin on Hopper."""

DRAFT_BYTES, DRAFT_LAYERS = 4.5e9, 5
"""RadixArk/Kimi-K3-DSpark: 2.25e9 weights in BF16, five layers of attention with 16 key and value heads of 64; every
rank holds and reads it whole."""

BF16_FLOPS = {"h100": 989e12, "h200": 989e12, "gh200": 989e12, "gh200-144": 989e12, "b200": 2250e12, "b300": 2250e12}
"""Dense BF16 multiplications and additions a second (NVIDIA's data sheets)."""

DENSE_READ = 0.8
"""Share of a GPU's bandwidth at which weights other than experts, KV cache and states are read (AIConfigurator)."""

HOPPER_EXPERT_READ = 0.47
"""The same for experts on Hopper: SGLang's W4A8 kernel reads 2.2 to 2.35 TB/s of an H200's 4.8 for 100 to 400 tokens of
Kimi-K3 under EP32 (measured, one GPU). Marlin was not measured; it is taken to read as fast."""

WRONG_TILE = 1.9
"""How much longer experts take where Marlin's tile is chosen from a rank's own experts: from one published pair, 23.6
against 29.6 tokens a second at 50 streams on 32 GH200."""

DECODE_FLOPS, PREFILL_FLOPS = 0.5, 0.25
"""Shares of BF16's peak. Prefill: 8,192 tokens in 0.378 s on 8 B300. Decode: assumed."""

NVLINK, HOP = 450e9, 10e-6
"""Bytes a second and GPU inside a node, and seconds from node to node (AIConfigurator, systems/h200_sxm.yaml)."""

PREFILL_NETWORK = 287e9
"""Bytes a second of NCCL's all-reduce of large messages over two nodes of 8 B200 (bus bandwidth, published)."""

ACCEPTED = {1: 1.84, 2: 2.45, 3: 2.87, 4: 3.22, 5: 3.44, 6: 3.54, 7: 3.78, 8: 3.88}
"""Tokens a step by tokens drafted: DSpark for Kimi-K3 on coding with thinking (InferenceX, golden_al_distribution).
On other text it is less: 2.2 of 7 on English prose, published for 16 B200."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """``layer``: seconds of a layer's launches and small kernels; ``spread``: exponent, at most 1, that turns tokens into
    independent draws of experts; ``message``: seconds that a sum over nodes takes before any byte; ``network``: bytes a
    second and GPU of such a sum."""

    layer: float
    spread: float
    message: float
    network: float


FITTED = Fitted(layer=5.234e-05, spread=0.7637, message=7.258e-05, network=3.828e10)
"""Fitted on 2026-11-30 to the 34 points of ``published.py`` that are marked so; ``python -m benchmarks.forecast_error``."""

ERROR, ERROR_OUTSIDE = 0.12, 0.34
"""Relative errors that the interval is made of. The first: four of five points of deployments that the fit had not seen
are nearer. The second, for what is unlike every fitted deployment: the largest error on a machine it had not seen."""

REPLICA_LOSS = 0.14
"""Two replicas behind a router gave 35.7 tokens a second and stream where one replica's curve says 41.6 (GH200, W4AFP8,
25 streams each)."""
