"""All checks, in the order in which they are reported."""

from __future__ import annotations

from truecast.serve.doctor.finding import Check

CHECKS: tuple[Check, ...] = ()
