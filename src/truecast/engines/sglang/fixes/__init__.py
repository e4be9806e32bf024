"""The fixes, in the order in which they are applied and listed."""

from __future__ import annotations

from truecast.engines.sglang.fix import Fix
from truecast.engines.sglang.fixes import (
    expert_load_filter,
    fp8_kv_gather,
    kda_precompile,
    load_barrier,
    marlin_ep_tile,
    marlin_repeatable,
    nvfp4_twins,
    situ_nvfp4,
    situ_w4afp8,
    w4a8_routing,
    w4afp8_config,
)

FIXES: tuple[Fix, ...] = (
    situ_nvfp4.FIX,
    load_barrier.FIX,
    expert_load_filter.FIX,
    fp8_kv_gather.FIX,
    marlin_ep_tile.FIX,
    w4a8_routing.FIX,
    situ_w4afp8.FIX,
    w4afp8_config.FIX,
    nvfp4_twins.FIX,
    marlin_repeatable.FIX,
    kda_precompile.FIX,
)
