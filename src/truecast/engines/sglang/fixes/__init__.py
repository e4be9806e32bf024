"""The fixes, in the order in which they are applied and listed."""

from __future__ import annotations

from truecast.engines.sglang.fix import Fix
from truecast.engines.sglang.fixes.fp8_kv_gather import FIX as FP8_KV_GATHER

FIXES: tuple[Fix, ...] = (FP8_KV_GATHER,)
