"""The fixes, in the order in which they are applied and listed."""

from __future__ import annotations

from truecast.engines.sglang.fix import Fix

FIXES: tuple[Fix, ...] = ()
