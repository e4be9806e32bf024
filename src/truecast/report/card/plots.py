"""Plots of a card: speed over concurrency, KL with its floor, scores. Each only where its records are."""

from __future__ import annotations

from collections.abc import Sequence

from truecast.report import svg
from truecast.report.card.audits import audit_setups
from truecast.report.card.columns import columns_of, numbered
from truecast.report.card.loads import load_setups
from truecast.report.card.markdown import plain
from truecast.report.card.record import THIS, Record
from truecast.report.card.scored import eval_setups, task_of
from truecast.report.words import as_html, figure, percent

_KINDS = ("", "second", "third")
"""Classes of lines; more labels than these share the last."""

Point = tuple[str, float, tuple[float, float] | None]


def plots(records: Sequence[Record]) -> str:
    """All plots, as HTML; empty where there is nothing to plot."""
    by_kind = {kind: [r for r in records if r.kind == kind] for kind in ("bench", "audit", "eval")}
    loads, audits, evals = load_setups(by_kind["bench"]), audit_setups(by_kind["audit"]), eval_setups(by_kind["eval"])
    drawn = [_speed(same, numbered(i, len(loads))) for i, same in enumerate(loads)]
    drawn += [_dots(f"KL to the source{numbered(i, len(audits))}", "Mean with its 95% interval.", "nats per token",
                    [_point(r, ("kl", "mean"), ("kl", "interval")) for r in _ordered(same)], False)
              for i, same in enumerate(audits)]  # fmt: skip
    drawn += [_dots(f"{plain(task_of(same[0]))}, score{numbered(i, len(evals))}", "Mean over problems with its 95% interval.",
                    "score", [_point(r, ("scores", "score"), ("scores", "interval")) for r in _ordered(same)], True)
              for i, same in enumerate(evals)]  # fmt: skip
    return f'<div class="charts">{"".join(drawn)}</div>' if any(drawn) else ""


def _ordered(records: Sequence[Record]) -> list[Record]:
    columns = columns_of(records)
    return sorted(records, key=lambda record: columns.index(record.label))


def _point(record: Record, mean: tuple[str, ...], interval: tuple[str, ...]) -> Point:
    ends = None
    if record.interval(*interval) is not None:
        ends = record.number(*interval, 0), record.number(*interval, 1)
    return record.label or THIS, record.number(*mean), ends


def _speed(records: Sequence[Record], mark: str) -> str:
    """Tokens a second of a stream over concurrency, a line a label."""
    lines: list[tuple[str, list[tuple[float, float]]]] = []
    for record in _ordered(records):
        points = []
        for i in range(len(record.array("levels"))):
            if record.get("levels", i, "figures", "stream", "value") is not None:
                at = float(record.count("levels", i, "concurrency"))
                points.append((at, record.number("levels", i, "figures", "stream", "value")))
        if points:
            lines.append((record.label or THIS, sorted(points)))
    if not lines:
        return ""
    largest = max(x for _, points in lines for x, _ in points)
    x = svg.across(0.0, largest * 1.05)
    y = svg.upwards([speed for _, points in lines for _, speed in points])
    body = [svg.y_axis(y)]
    for kind, (name, points) in zip(_kinds(len(lines)), lines, strict=True):
        body.append(svg.line([(x(c), y(speed)) for c, speed in points], kind))
        body.append(
            svg.dots([(x(c), y(s), None) for c, s in points], [f"{name}, {c:g}: {figure(s)} tok/s" for c, s in points])
        )
    body.append(svg.x_axis([(x(t), f"{t:g}") for t in x.ticks()]))
    title, text = f"Speed of a stream{mark}", "Median over requests, by streams at the same time."
    keys = "".join(
        f'<li class="{kind}">{as_html(name)}</li>' for kind, (name, _) in zip(_kinds(len(lines)), lines, strict=True)
    )
    return _figure(
        title, text, f'<ul class="key">{keys}</ul>' + svg.chart(title, text, "concurrent streams", "tok/s", body)
    )


def _kinds(count: int) -> list[str]:
    return [_KINDS[min(i, len(_KINDS) - 1)] for i in range(count)]


def _dots(title: str, text: str, unit: str, points: Sequence[Point], share: bool) -> str:
    """A dot a label, with its interval."""
    x = svg.across(0.0, float(len(points)))
    y = svg.upwards([f for _, mean, ends in points for f in (mean, *(ends or ()))])
    marks = [
        (x(i + 0.5), y(mean), None if ends is None else (y(ends[0]), y(ends[1])))
        for i, (_, mean, ends) in enumerate(points)
    ]
    say = percent if share else figure
    told = [
        f"{name}: {say(mean)}" + (f" ({say(ends[0])} to {say(ends[1])})" if ends else "") for name, mean, ends in points
    ]
    axis = [(x(i + 0.5), name if len(name) < 20 else f"{name[:18]}...") for i, (name, _, _) in enumerate(points)]
    body = [svg.y_axis(y, share), svg.dots(marks, told), svg.x_axis(axis)]
    return _figure(title, text, svg.chart(title, text, "", unit, body))


def _figure(title: str, text: str, drawn: str) -> str:
    return f"<figure><figcaption><h2>{as_html(title)}</h2><p>{as_html(text)}</p></figcaption>{drawn}</figure>"
