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

DRAFT_BYTES, DRAFT_WHOLE, DRAFT_LAYERS, DRAFT_KV_HEADS, DRAFT_KV_WIDTH = 4_500_000_000, 5 * 7168 * 7168 * 2, 5, 16, 64
"""RadixArk/Kimi-K3-DSpark: 2.25e9 weights in BF16, five layers of attention with 16 key and value heads of 64. Ranks
divide all but the projection of five of the model's hidden states (SGLang 0.5.20, models/dflash.py)."""

BF16_FLOPS = {"h100": 989e12, "h200": 989e12, "gh200": 989e12, "gh200-144": 989e12, "b200": 2250e12, "b300": 2250e12}
"""Dense BF16 multiplications and additions a second (NVIDIA's data sheets)."""

DENSE_READ = 0.8
"""Share of a GPU's bandwidth at which weights other than experts, KV cache and states are read (AIConfigurator)."""

HOPPER_EXPERT_READ = 0.47
"""The same for experts on Hopper: SGLang's W4A8 kernel reads 2.2 to 2.35 TB/s of an H200's 4.8 for 100 to 400 tokens of
Kimi-K3 under EP32 (measured, one GPU). Marlin was not measured; it is taken to read as fast."""

WRONG_TILE = 2.03
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


FITTED = Fitted(layer=5.315e-05, spread=0.7815, message=7.208e-05, network=3.809e10)
"""Fitted on 2026-11-30 to the 34 points of ``published.py`` that are marked so; ``python -m benchmarks.forecast_error``."""

ERROR, ERROR_OUTSIDE = 0.12, 0.30
"""Relative errors that the interval is made of. The first: four of five points of deployments that the fit had not seen
are nearer. The second, for what is unlike every fitted deployment: the largest error on a machine it had not seen."""

SMALLEST = 0.02
"""Of Kimi-K3's arithmetic a token; nothing is forecast below. nano-K3, at 0.0003 of it, was forecast with some 2,900 tokens
a second and stream on an H200 and ran at 119 to 220: its steps are the host's work."""

REPLICA_LOSS = 0.14
"""Two replicas behind a router gave 35.7 tokens a second and stream where one replica's curve says 41.6 (GH200, W4AFP8,
25 streams each)."""

NODE_READ = 1.75e9
"""Bytes a second that a node reads of a checkpoint where nobody measured it: between the two that published start times
imply, 1.4e9 (8 nodes of 4 GH200) and 2.27e9 (2 nodes of 8 B200, a network disk). Storage differs far more than that."""

NODE_READS = {"GH200 8x4": 1.4e9, "B200 2x8": 2.27e9}
"""The two: 1,561 and 295 GB a node in 20 and 5 minutes leave 90 s that are no reading; 16.5 minutes until ready less
those and the graphs."""

RANK_READ = 2.3e9
"""Bytes a second that one process takes from the page cache to its GPU: 16 processes took the whole checkpoint each at
about this rate. 539 GB were published to take 290 s from the cache, which would be 1.9e9."""

START = 90.0
"""Seconds of imports, processes and communicators, by the same two times of the GH200 deployment."""

REPACK = 0.010
"""Seconds to repack an expert for Marlin, one after another in Python: 82,432 of them (EP1) were published to take longer
than 600 s (0.0073 each); an hour's timeout was enough."""

GRAPH = 11.8
"""Seconds to capture one decode graph of Kimi-K3: 18 in 212 s on 16 B200."""

READY_FACTOR = 1.6
"""The two deployments with published start times, each forecast from the other's read rate, are off by up to this."""
