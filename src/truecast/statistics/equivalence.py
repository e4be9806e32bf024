"""What a difference and its error can show: equivalence within a margin, and the least effect that would have been seen.

Two one-sided tests at 5% (TOST) show that a difference lies within +-margin exactly where its 90% interval does.
Source: Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15(6), 1987, 657-680.
"""

from __future__ import annotations

from dataclasses import dataclass

from truecast.statistics.student import t_quantile

POWER = 0.8
TOST_LEVEL = 0.90
"""Level of the interval that two one-sided tests at 5% amount to."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, its standard ``error`` (same unit), and the ``degrees`` of freedom of its t (infinity: normal)."""

    mean: float
    error: float
    degrees: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """mean -+ t error."""
        reach = t_quantile((1 + level) / 2, self.degrees) * self.error
        return self.mean - reach, self.mean + reach


def smallest_margin(tost_interval: tuple[float, float]) -> float:
    """The margin beyond which equivalence is shown: the far end of the interval at ``TOST_LEVEL``."""
    low, high = tost_interval
    return max(-low, high)


def detectable(estimate: Estimate, power: float = POWER) -> float:
    """The difference that a two-sided test at 5% finds with probability ``power``: (t_0.975 + t_power) error.

    Source: Miller, arXiv 2411.00640, 2024, section 5, with t for the normal.
    """
    return (t_quantile(0.975, estimate.degrees) + t_quantile(power, estimate.degrees)) * estimate.error


def margin_in_reach(estimate: Estimate, power: float = POWER) -> float:
    """The least margin that TOST shows with probability ``power`` where there is no difference at all.

    (t_0.95 + t_{(1 + power) / 2}) error: either of the two tests may fail.
    """
    return (t_quantile(0.95, estimate.degrees) + t_quantile((1 + power) / 2, estimate.degrees)) * estimate.error
