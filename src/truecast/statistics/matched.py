"""Two yes-or-no answers to each of n problems: the interval of the difference of shares, and McNemar's exact test."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_STEPS = 60
"""Halvings of [-1, 1]: beyond the digits of a float."""


@lru_cache(maxsize=4096)
def matched_interval(gained: int, lost: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of (gained - lost) / n, where ``gained`` and ``lost`` of ``n`` pairs differ one way and the other.

    All differences that a score test does not reject: it takes the variance under the difference that it tests, so
    that it holds also where few pairs differ, or none. Unlike the textbook's, it then does not shrink to a point.
    Source: Tango, Statistics in Medicine 17, 1998, 891-908. Raises: ValueError for counts that do not fit.
    """
    if not (gained >= 0 and lost >= 0 and 0 < n >= gained + lost):
        raise ValueError(f"{gained} and {lost} of {n} pairs")
    z = NormalDist().inv_cdf((1 + level) / 2)
    return _end(gained, lost, n, z, -1.0), _end(gained, lost, n, z, 1.0)


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p: is a pair that differs as likely to differ one way as the other? 1 where none differs."""
    n = gained + lost
    logs = (math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(min(gained, lost) + 1))
    return min(1.0, 2 * math.fsum(math.exp(log - n * math.log(2)) for log in logs))


def _end(gained: int, lost: int, n: int, z: float, outer: float) -> float:
    """The last difference on the way to ``outer`` (-1 or 1) that is not rejected."""
    inner = (gained - lost) / n
    for _ in range(_STEPS):
        middle = (inner + outer) / 2
        if abs(_score(gained, lost, n, middle)) <= z:
            inner = middle
        else:
            outer = middle
    return inner


def _score(gained: int, lost: int, n: int, difference: float) -> float:
    """Standard errors between what was seen and ``difference``; the chance of a loss is its likeliest under that."""
    linear = (2 * n - gained + lost) * difference - gained - lost
    root = math.sqrt(max(linear * linear + 8 * n * lost * difference * (1 - difference), 0.0))
    loss = (root - linear) / (4 * n)
    variance = n * (2 * loss + difference * (1 - difference))
    apart = gained - lost - n * difference
    if variance <= 0:
        return 0.0 if abs(apart) < 1e-9 else math.copysign(math.inf, apart)
    return apart / math.sqrt(variance)
