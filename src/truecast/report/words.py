"""Numbers with what they count."""

from __future__ import annotations

import math
from html import escape


def counted(number: int, what: str) -> str:
    """``1 matrix``, ``2 matrices``, ``1,000 faults``."""
    plural = what[:-1] + "ces" if what.endswith("ix") else what + "s"
    return f"{number:,} {what if number == 1 else plural}"


def figure(number: float, digits: int = 3) -> str:
    """A number for people: ``0.00123``, ``12.3``, ``1,230``; powers of ten below 0.0001: ``1.23e-05``."""
    if number == 0:
        return "0"
    if not 1e-4 <= abs(number) < 1e6:
        return f"{number:.{digits - 1}e}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(number))), 0)
    return f"{number:,.{decimals}f}"


def upward(number: float, digits: int = 3) -> str:
    """As :func:`figure`, but never less than the number: for what is claimed of everything above it."""
    text = figure(number, digits)
    shown = float(text.replace(",", ""))
    if shown >= number * (1 - 1e-12):
        return text
    place = math.floor(math.log10(abs(number))) - digits + 1
    return figure(shown + 10.0 ** (min(place, 0) if abs(number) < 1e6 else place), digits)


def points_up(share: float) -> str:
    """A positive share in points to one decimal, or three digits below 0.1, never less than it is."""
    number = 100 * share
    return f"{math.ceil(10 * number - 1e-9) / 10:.1f}" if number >= 0.1 else upward(number)


def percent(share: float) -> str:
    """A share as percent with sensible digits: ``96.4%``, ``0.43%``, ``100%``; ``< 0.001%`` for what is less."""
    number = 100 * share
    if 0 < number < 0.001:
        return "< 0.001%"
    if number in (0, 100):
        return f"{number:.0f}%"
    if number > 99:  # what is missing tells
        return f"{100 - float(f'{100 * (1 - share):.2g}'):.12g}%"
    return f"{figure(number)}%"


def points(share: float) -> str:
    """A difference of shares in points, signed: ``-1.0``, ``+0.034``; ``0.0`` is nothing but 0."""
    number = 100 * share
    if number == 0 or abs(number) >= 0.1:
        return f"{number + 0.0:+.1f}"
    return f"{'-' if number < 0 else '+'}{figure(abs(number), 2)}"


def as_html(text: str) -> str:
    """Text that means only itself in HTML, also inside an attribute; characters that cannot be seen become escapes."""
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))
