"""Numbers that the forecasts rest on, each with its source. Those that were fitted are in ``fitted.py``."""

from __future__ import annotations

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
