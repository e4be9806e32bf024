"""What is to be said of an interval from few documents."""

from __future__ import annotations

ENOUGH = 30
"""From this many documents on, no warning."""

COVERED: dict[int, tuple[float, float]] = {5: (87.2, 95.7), 10: (89.5, 96.7), 20: (91.5, 97.3)}
"""Documents -> lowest and highest coverage measured of a 95% interval, in percent.

Source: benchmarks/interval_coverage.py, 4,000 corpora each: lognormal KL of total log-sd 1 and 1.5, intraclass
correlation 0.1 to 0.5, correlation with the document's length -0.4 to 0.4. Where most documents cost almost nothing it is
less: docs/audit-statistics.md.
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
