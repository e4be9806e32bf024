"""Fix 6: W4AFP8's routing map by counting instead of ``torch.sort``.

Up to 0.5.20 ``cutlass_w4a8_moe`` sorts all routes of a layer to learn where each goes: half a dozen launches. The map made
here is the stable sort's in every slot, so that outputs keep their bits. The caller's mapping of ``-1`` to the number of
local experts stays with the caller: three later kernels read the mapped ids.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.source import function

if TYPE_CHECKING:
    from torch import Tensor

SETTING = "K3_W4_SRC2DST"
MODULE = "sglang.kernels.ops.moe.ep_moe_kernels"
NAME = "cutlass_w4_run_moe_ep_preproess"  # SGLang's spelling
CALLER = "sglang.srt.layers.moe.cutlass_w4a8_moe"

_bins = 0
"""Enough for each model of this process."""


def parse(text: str) -> bool:
    """Whether to count."""
    if text not in ("count", "sort"):
        raise ValueError("neither count nor sort")
    return text == "count"


def bins(situation: Situation) -> int:
    """A power of two above all ids that may come: ``-1``, this rank's experts, shared ones, one past the last."""
    shared = situation.config.get("n_shared_experts") or situation.config.get("num_shared_experts") or 0
    return max(1024, 1 << (situation.experts + int(shared) + 1).bit_length())


def _need(situation: Situation) -> Need | None:
    if (
        situation.quantization != "w4afp8"
        or not situation.experts
        or not parse(situation.environment.get(SETTING, "count"))
    ):
        return None
    return Need("each W4A8 expert layer would sort its routes", required=False)


def _faulty(sources: Sources) -> bool:
    caller = ast.parse(function(sources, CALLER, "cutlass_w4a8_moe"))
    other = {
        id(n)
        for branch in ast.walk(caller)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "_is_cuda"
        for statement in branch.orelse
        for n in ast.walk(statement)
    }
    calls = [n for n in ast.walk(caller) if isinstance(n, ast.Call) and ast.unparse(n.func) == NAME]
    if not calls and "cutlass_prepare_moe_input(" not in ast.unparse(caller):
        raise LookupError(f"{CALLER}.cutlass_w4a8_moe makes its routing map in a way that is not known")
    if all(id(call) in other for call in calls):
        return False  # not called where there is CUDA
    return "torch.sort(" in function(sources, MODULE, NAME)


def _hooks(situation: Situation) -> Sequence[Hook]:
    global _bins
    _bins = max(_bins, bins(situation))
    return [Hook(f"{MODULE}.{NAME}", counted)]


def counted(original: Callable[[Tensor], Tensor], topk_ids: Tensor) -> Tensor:
    """Around the sort: the same map."""
    from truecast.engines.sglang.kernels import expert_counts, routing

    if not topk_ids.is_cuda or (topk_ids.numel() > routing.SHORT and _bins > expert_counts.MOST_BINS):
        return original(topk_ids)
    return routing.places(topk_ids.view(-1), _bins)


def _selftest(situation: Situation) -> None:
    """A decode step's and a prefill's routes on this GPU, against ``torch.sort``."""
    if situation.capability is None:
        return
    import torch

    made = getattr(importlib.import_module(CALLER), NAME)
    last = situation.experts // situation.ep_size
    for tokens in (3, 100, 200, 512, 1024):  # each kernel that a run may want is compiled here
        ids = torch.randint(0, last + 1, (tokens, 16), dtype=torch.int32, device="cuda")
        order = torch.sort(ids.view(-1), stable=True).indices
        wanted = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device="cuda"))
        try:
            found = made(ids).long()
        except Exception as error:  # whatever the compiler raises: the sort is as right, so the server may go on
            raise AssertionError(f"the map of {16 * tokens} routes: {type(error).__name__}: {error}") from error
        assert torch.equal(found, wanted), f"the map of {16 * tokens} routes is not the stable sort's"


FIX = Fix(
    name="w4a8-routing",
    summary="W4AFP8's routing map by counting, the same as by sorting",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=_hooks,
    selftest=_selftest,
    settings={SETTING: parse},
)
