"""What is to be said of an interval from few documents."""

from __future__ import annotations

ENOUGH = 30
"""From this many documents on, no warning."""

COVERED: dict[int, tuple[float, float]] = {5: (0.0, 0.0), 10: (0.0, 0.0), 20: (0.0, 0.0)}
"""Documents -> lowest and highest coverage measured of a 95% interval, in percent.

Source: benchmarks/interval_coverage.py; lognormal KL of total log-sd 1 and 1.5, intraclass correlation 0.1 to 0.5.
"""


def warning(documents: int) -> str | None:
    """What a reader must know of an interval from so many documents; None where there are enough."""
    if documents == 1:
        return "one document: no interval, because the spread between documents cannot be seen"
    if documents >= ENOUGH:
        return None
    known = [number for number in COVERED if number <= documents]
    if not known:
        return f"{documents} documents: too few to trust an interval; use at least {ENOUGH}"
    nearest = max(known)
    low, high = COVERED[nearest]
    return (
        f"{documents} documents: in simulations with {nearest}, intervals meant to hold in 95% of cases held in"
        f" {low:.0f} to {high:.0f}%; use at least {ENOUGH}"
    )
