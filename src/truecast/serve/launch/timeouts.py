"""How long NCCL waits for a rank that is still repacking its weights."""

from __future__ import annotations

from truecast.serve.launch import experts
from truecast.serve.launch.case import CARD_000, Case
from truecast.serve.launch.setting import Setting

REPACKED = 92 * 896 * 3
"""Matrices that each rank repacked in the deployment of which it is known that NCCL's 600 s were not enough."""
SECONDS = 3600


def timeout_settings(case: Case) -> list[Setting]:
    """``--dist-timeout`` where the repack for Marlin may take more than half of what is known to be too long."""
    if experts.backend(case) != "marlin" or case.split.tp == 1:
        return []
    matrices = case.model.layers * case.model.experts * 3 // case.split.ep
    if matrices * 2 < REPACKED:
        return []
    why = (
        f"Marlin repacks about {matrices:,} matrices on each rank one by one after loading; with {REPACKED:,} NCCL's"
        f" 600 s ran out ({CARD_000})"
    )
    return [Setting("--dist-timeout", str(SECONDS), why)]
