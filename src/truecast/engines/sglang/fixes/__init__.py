"""The fixes, in the order in which they are applied and listed."""

from __future__ import annotations

from truecast.engines.sglang.fix import Fix
from truecast.engines.sglang.fixes import (
    expert_load_filter,
    load_barrier,
    marlin_ep_tile,
    nvfp4_repeatable,
    nvfp4_twins,
    situ_nvfp4,
    w4a8_routing,
)

FIXES: tuple[Fix, ...] = (
    situ_nvfp4.FIX,
    load_barrier.FIX,
    expert_load_filter.FIX,
    marlin_ep_tile.FIX,
    w4a8_routing.FIX,
    nvfp4_twins.FIX,
    nvfp4_repeatable.FIX,
)
