"""The fixes, in the order in which they are applied and listed."""

from __future__ import annotations

from truecast.engines.sglang.fix import Fix
from truecast.engines.sglang.fixes import (
    fp8_kv_gather,
    load_barrier,
    nvfp4_repeatable,
    nvfp4_twins,
    situ_nvfp4,
    situ_w4afp8,
    w4afp8_config,
)

FIXES: tuple[Fix, ...] = (
    situ_nvfp4.FIX,
    load_barrier.FIX,
    fp8_kv_gather.FIX,
    situ_w4afp8.FIX,
    w4afp8_config.FIX,
    nvfp4_twins.FIX,
    nvfp4_repeatable.FIX,
)
