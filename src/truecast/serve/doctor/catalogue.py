"""All checks, in the order in which they are reported."""

from __future__ import annotations

from truecast.serve.doctor import (
    addresses,
    arguments,
    checkpoint,
    collectives,
    context_parallel,
    devices,
    faults,
    fit,
    host,
    kernels,
    moe,
    parallelism,
    planned,
    rdma,
    running,
    speculation,
    timeouts,
    versions,
)
from truecast.serve.doctor.finding import Check

CHECKS: tuple[Check, ...] = (
    *planned.CHECKS,
    *versions.CHECKS,
    *kernels.CHECKS,
    *faults.CHECKS,
    *checkpoint.CHECKS,
    *moe.CHECKS,
    *parallelism.CHECKS,
    *context_parallel.CHECKS,
    *speculation.CHECKS,
    *arguments.CHECKS,
    *fit.CHECKS,
    *timeouts.CHECKS,
    *addresses.CHECKS,
    *collectives.CHECKS,
    *rdma.CHECKS,
    *host.CHECKS,
    *devices.CHECKS,
    *running.CHECKS,
)
