"""The fixes, in the order in which they are applied and listed."""

from __future__ import annotations

from truecast.engines.sglang.fix import Fix
from truecast.engines.sglang.fixes import expert_load_filter, marlin_ep_tile, w4a8_routing

FIXES: tuple[Fix, ...] = (expert_load_filter.FIX, marlin_ep_tile.FIX, w4a8_routing.FIX)
