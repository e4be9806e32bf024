"""The fixes, in the order in which they are applied and listed."""

from __future__ import annotations

from truecast.engines.sglang.fix import Fix
from truecast.engines.sglang.fixes import situ_w4afp8, w4afp8_config

FIXES: tuple[Fix, ...] = (situ_w4afp8.FIX, w4afp8_config.FIX)
