"""How long NCCL waits for a rank that is still repacking its weights."""

from __future__ import annotations

from truecast.serve.forecast.ready import repack_seconds
from truecast.serve.launch import experts
from truecast.serve.launch.case import CARD_000, Case
from truecast.serve.launch.setting import Setting

NCCL, LONG = 600, 3600
"""Seconds: NCCL's own, and what the published deployment waits in which they ran out."""


def timeout_settings(case: Case) -> list[Setting]:
    """``--dist-timeout`` where the repack for Marlin may take more than half of what NCCL waits."""
    if experts.backend(case) != "marlin" or case.split.tp == 1:
        return []
    seconds = repack_seconds(case.model, case.split.ep)
    if seconds < NCCL / 2:
        return []
    why = (
        f"Marlin repacks experts one by one after loading, some {seconds:,.0f} s on each rank; the first that is done"
        f" waits in NCCL, by itself {NCCL} s ({CARD_000})"
    )
    return [Setting("--dist-timeout", str(LONG), why)]
