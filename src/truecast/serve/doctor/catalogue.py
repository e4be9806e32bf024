"""All checks, in the order in which they are reported."""

from __future__ import annotations

from truecast.serve.doctor import (
    arguments,
    checkpoint,
    context_parallel,
    faults,
    kernels,
    moe,
    speculation,
    versions,
)
from truecast.serve.doctor.finding import Check

CHECKS: tuple[Check, ...] = (
    *versions.CHECKS,
    *kernels.CHECKS,
    *faults.CHECKS,
    *checkpoint.CHECKS,
    *moe.CHECKS,
    *context_parallel.CHECKS,
    *speculation.CHECKS,
    *arguments.CHECKS,
)
