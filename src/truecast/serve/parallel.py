"""Over how many GPUs the quantized modules of a checkpoint may be split.

Tensor parallelism inside the experts (TP) cuts the intermediate width: rows of gate and up, columns of down. Every rank
must keep whole scale groups along the columns of its part of down, and what else the engine's kernel wants. Expert
parallelism (EP) divides the number of experts. FP8 modules beside the experts are cut in whole tiles of 128, attention
heads are not cut at all.

Sources (multiples of the width that a rank gets):
W4AFP8 in SGLang 0.5.20: 128, the group (layers/quantization/w4afp8.py). With 512 scales are interleaved by four and the
kernel reads tiles of 512, else by one and tiles of 128 (the dispatch of sglang-kernel's w4a8_grouped_mm_c3x.cu).
W4AFP8 as compressed-tensors in vLLM 0.33: 256, asserted (compressed_tensors_moe_w4a8_fp8.py).
MXFP4: 32, the group; Marlin and FlashInfer pad a rank's part to 128 (mxfp4.py of both engines), which costs memory.
NVFP4: 16, the group; Marlin wants 64 (SGLang marlin_utils.py, check_moe_marlin_supports_layer; vLLM pads to that).
FP8 by blocks: 128, checked (SGLang layers/quantization/fp8.py). FP8 by channels: 16, the alignment of FP8 GEMMs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from truecast.errors import UsageError

LIMIT = 128
"""The largest size that is looked at."""

TILE = 128
"""Rows and columns of an FP8 tile."""

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.([^.]+)$")
_COLUMNS_SPLIT = {"w2", "down_proj", "o_proj"}
_ROWS_SPLIT = {"w1", "w3", "gate_proj", "up_proj", "q_proj", "k_proj", "v_proj", "g_proj", "q_b_proj", "kv_b_proj"}


@dataclass(frozen=True, slots=True)
class Module:
    """A quantized module as it will be stored: ``[rows, cols]`` (out, in) and its format."""

    name: str
    rows: int
    cols: int
    format: str


@dataclass(frozen=True, slots=True)
class Parallel:
    """Legal sizes, ascending, up to :data:`LIMIT`."""

    tp: tuple[int, ...]
    """Ranks over which each expert may be split."""
    unpadded: tuple[int, ...]
    """Those of ``tp`` that kernels take as they are: nothing padded, scales in their ordinary order."""
    ep: tuple[int, ...]
    """Ranks over which the experts of a layer may be divided."""
    dense: tuple[int, ...]
    """Ranks over which attention and the FP8 modules beside the experts may be split."""

    def split(self, gpus: int) -> tuple[int, int] | None:
        """``(tp, ep)`` with ``tp * ep == gpus``, as many whole experts a rank as possible; None where there is none."""
        if gpus not in self.dense:
            return None
        for tp in self.tp:
            if gpus % tp == 0 and gpus // tp in self.ep:
                return tp, gpus // tp
        return None


_UNITS: dict[tuple[str, str | None], tuple[int, int]] = {
    ("w4afp8", "sglang"): (128, 512),
    ("w4afp8", "compressed-tensors"): (256, 256),
    ("mxfp4", None): (32, 128),
    ("nvfp4", None): (16, 64),
    ("fp8", "deepseek"): (TILE, TILE),
    ("fp8", "compressed-tensors"): (16, 16),
    ("bf16", None): (1, 1),
}
"""(format, dialect or None for all) -> multiples of a rank's width: that are accepted, and that need no padding."""

_BOTH_AXES = {("w4afp8", "compressed-tensors")}
"""Where the axis that is not cut must be such a multiple too."""


def legal_parallel(modules: Iterable[Module], target: str, dialect: str, heads: int | None = None) -> Parallel:
    """Legal sizes for modules that were cast to ``target`` in ``dialect``; ``heads``: attention heads, where known.

    Modules of another format than the target's are judged by tiles if they are FP8, else not at all.
    Raises: UsageError for a target of which no engine's rule is known.
    """
    units = _UNITS.get((target, dialect)) or _UNITS.get((target, None))
    if units is None:
        raise UsageError(f"no engine's rule is known for {target} in the {dialect} dialect")
    accepted, plain = units
    widths: set[int] = set()
    tiled: set[int] = {heads} if heads else set()
    banks: dict[str, set[str]] = {}
    for module in modules:
        if found := _EXPERT.match(module.name):
            banks.setdefault(found.group(1), set()).add(found.group(2))
            if module.format == target and (width := _split_axis(module)):
                widths.add(width)
                if (target, dialect) in _BOTH_AXES and module.rows * module.cols // width % accepted:
                    widths.add(1)
        elif module.format == "fp8" and (width := _split_axis(module)):
            tiled.add(width // TILE if width % TILE == 0 else 1)
    experts = gcd(*(len(bank) for bank in banks.values()))
    return Parallel(
        tp=_sizes(width // accepted for width in widths) if not any(w % accepted for w in widths) else (),
        unpadded=_sizes(width // plain for width in widths) if not any(w % plain for w in widths) else (),
        ep=_sizes([experts or 1]),
        dense=_sizes(tiled),
    )


def _split_axis(module: Module) -> int:
    """Length of the axis that tensor parallelism cuts; 0 where it is not known which."""
    leaf = module.name.rpartition(".")[2]
    return module.cols if leaf in _COLUMNS_SPLIT else module.rows if leaf in _ROWS_SPLIT else 0


def _sizes(counts: Iterable[int]) -> tuple[int, ...]:
    """Sizes that divide every count of indivisible pieces."""
    pieces = gcd(*counts)
    return tuple(size for size in range(1, LIMIT + 1) if pieces % size == 0)
