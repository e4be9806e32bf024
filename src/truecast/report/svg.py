"""Charts as inline SVG: scales, axes and marks. Colours and type come from the page's classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from truecast.report.words import as_html

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 12, 46

Interval = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Scale:
    """From figures ``low`` to ``high`` to the chart's coordinates ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, figure: float) -> float:
        """The coordinate; figures outside are drawn at the edge."""
        low, high, at = self.low, self.high, figure
        if self.log:
            low, high, at = (math.log10(x) for x in (low, high, max(figure, 1e-300)))
        share = min(max((at - low) / (high - low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """About five round figures; on a log scale powers of ten, over few decades also twice and five times them."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last - first < 3:
                every = (m * 10.0**e for e in range(first - 1, last + 1) for m in (1, 2, 5))
                return [t for t in every if self.low * (1 - 1e-9) <= t <= self.high * (1 + 1e-9)]
            step = max(1, math.ceil((last - first) / 5))
            return [10.0**e for e in range(first, last + 1, step)]
        width = _round_step((self.high - self.low) / 5)
        return [i * width for i in range(math.ceil(self.low / width - 1e-9), math.floor(self.high / width + 1e-9) + 1)]


def across(low: float, high: float, log: bool = False) -> Scale:
    """A horizontal scale over the chart's width."""
    return Scale(low, high, LEFT, WIDTH - RIGHT, log)


def upwards(figures: Sequence[float], log: bool = False) -> Scale:
    """A vertical scale that holds all figures: from 0, or on a log scale from whole decades."""
    largest = max(figures, default=0.0)
    if log:
        positive = [f for f in figures if f > 0] or [1.0]
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        return Scale(10.0**low, 10.0 ** max(high, low + 1), HEIGHT - BOTTOM, TOP, log=True)
    return Scale(0.0, largest * 1.06 if largest > 1e-300 else 1.0, HEIGHT - BOTTOM, TOP)


def chart(title: str, description: str, x_label: str, y_label: str, body: Sequence[str]) -> str:
    """One chart. ``title`` and ``description`` are for readers who do not see it."""
    middle = (LEFT + WIDTH - RIGHT) / 2
    height = (TOP + HEIGHT - BOTTOM) / 2
    return "".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{as_html(f"{title}. {description}")}">',
            f"<title>{as_html(title)}</title>",
            *body,
            f'<text class="label" x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{as_html(x_label)}</text>',
            f'<text class="label" transform="translate(11 {height:.0f}) rotate(-90)" text-anchor="middle">'
            f"{as_html(y_label)}</text>",
            "</svg>",
        ]
    )


def y_axis(y: Scale, share: bool = False) -> str:
    """Rules across the chart at the scale's ticks, with their figures; ``share``: as percent."""
    parts = []
    for tick in y.ticks():
        at = y(tick)
        words = f"{100 * tick:.6g}%" if share else f"{tick:.6g}"
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{words}</text>')
    return "".join(parts)


def x_axis(marks: Sequence[tuple[float, str]]) -> str:
    """The base line, and words under it at the given coordinates."""
    base = HEIGHT - BOTTOM
    parts = [f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>']
    for at, words in marks:
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{base}" y2="{base + 4}"/>')
        parts.append(f'<text x="{at:.1f}" y="{base + 17}" text-anchor="middle">{as_html(words)}</text>')
    return "".join(parts)


def bars(columns: Sequence[tuple[float, float, float]]) -> str:
    """Columns ``(left, right, top)`` down to the base line."""
    base = HEIGHT - BOTTOM
    return "".join(
        f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 0.5):.1f}" height="{base - top:.1f}"/>'
        for left, right, top in columns
    )


def line(points: Sequence[tuple[float, float]], kind: str) -> str:
    """A line through points; ``kind`` is its class."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="line {kind}" points="{joined}"/>'


def steps(columns: Sequence[tuple[float, float, float]], kind: str) -> str:
    """The outline of columns ``(left, right, top)``."""
    base = float(HEIGHT - BOTTOM)
    points = [(columns[0][0], base)] if columns else []
    for left, right, top in columns:
        points += [(left, top), (right, top)]
    return line([*points, (columns[-1][1], base)] if columns else [], kind)


def dots(points: Sequence[tuple[float, float, Interval]], words: Sequence[str], radius: float = 4) -> str:
    """Points ``(x, y, (y of low, y of high))`` with whiskers; ``words`` appear when pointed at."""
    parts = []
    for (x, y, ends), text in zip(points, words, strict=True):
        parts.append(f"<g><title>{as_html(text)}</title>")
        if ends is not None:
            parts.append(f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}"/>')
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/></g>')
    return "".join(parts)


def _round_step(step: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))
