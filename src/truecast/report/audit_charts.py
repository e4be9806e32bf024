"""The charts of the audit's page, each with its table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from truecast.report import svg
from truecast.report.words import as_html, figure, percent

MOST_DOCUMENTS = 60
"""With more documents the chart shows the costliest ones; the table has all up to ``MOST_ROWS``."""

MOST_ROWS = 500

Row = Mapping[str, Any]


def distribution(document: Mapping[str, Any]) -> str:
    """How the KL is spread over tokens; empty where no token has any."""
    spread = document.get("distribution") or {}
    edges, tokens, shares = (spread.get(key) or [] for key in ("log10_edges", "tokens", "kl_share"))
    if not tokens or not shares:
        return ""
    floors = spread.get("floor_tokens")
    total = document["kl"]["tokens"]
    x = svg.across(10.0 ** edges[0], 10.0 ** edges[-1], log=True)
    heights = [[n / total for n in tokens], shares, [n / total for n in floors or []]]
    y = svg.upwards([h for series in heights for h in series])

    def columns(series: Sequence[float]) -> list[tuple[float, float, float]]:
        return [(x(10.0 ** edges[i]), x(10.0 ** edges[i + 1]), y(h)) for i, h in enumerate(series)]

    body = [
        svg.y_axis(y, share=True),
        svg.bars(columns(heights[0])),
        svg.steps(columns(heights[2]), "third") if floors else "",
        svg.steps(columns(heights[1]), "second"),
        svg.x_axis([(x(t), _power(t)) for t in x.ticks()]),
    ]
    head = ["KL, nats", "tokens", "share of the KL", *(["tokens of the floor"] if floors else [])]
    rows = [
        [f"{_edge(10.0 ** edges[i])} to {_edge(10.0 ** edges[i + 1])}", f"{n:,}", percent(share)]
        + ([f"{floors[i]:,}"] if floors else [])
        for i, (n, share) in enumerate(zip(tokens, shares, strict=True))
    ]
    worst = document["kl"].get("worst_1_percent_share")
    zero = spread.get("zero_tokens", 0)
    notes = [f"The worst 1% of tokens make {percent(worst)} of the total."] if worst is not None else []
    notes += [f"{zero:,} tokens with a KL of 0 are not drawn."] if zero else []
    keys = [
        ("bar", "tokens"),
        ("second", "share of the total KL"),
        *([("third", "tokens, noise floor")] if floors else []),
    ]
    return _figure(
        "KL over tokens",
        " ".join(["Each bin is a quarter of a power of ten.", *notes]),
        svg.chart("KL over tokens", " ".join(notes), "KL of one token, nats", "share", body),
        head,
        rows,
        keys,
    )


def by_confidence(document: Mapping[str, Any]) -> str:
    """Mean KL by the reference's highest probability."""
    return _kl_by(
        document.get("by_confidence"),
        "KL by the reference's confidence",
        "Where the reference is undecided, any change moves its probabilities more.",
        "highest probability of the reference",
        lambda edge: f"{edge:g}",
    )


def by_position(document: Mapping[str, Any]) -> str:
    """Mean KL by depth in the document."""
    return _kl_by(
        document.get("by_position"),
        "KL by position",
        "A loss that builds up along the document rises to the right.",
        "position in the document, tokens",
        lambda edge: f"{edge / 1024:g}k" if edge >= 1024 else f"{edge:g}",
    )


def flips(document: Mapping[str, Any]) -> str:
    """How often the first choice changes, by the reference's margin."""
    rows = (document.get("top1") or {}).get("flips_by_margin") or []
    if not rows:
        return ""
    slots, marks = _slots(rows, lambda edge: f"{edge:g}")
    y = svg.upwards([r["rate"] for r in rows])
    body = [
        svg.y_axis(y, share=True),
        svg.bars([(left + 3, right - 3, y(r["rate"])) for r, (left, right) in zip(rows, slots, strict=True)]),
        svg.x_axis(marks),
    ]
    title = "Changed first choices by margin"
    text = "A change at a small margin is a near tie; one at a large margin is a real loss."
    table = [[_span(r), f"{r['tokens']:,}", f"{r['flips']:,}", percent(r["rate"])] for r in rows]
    drawn = svg.chart(title, text, "first choice ahead of the second by, nats", "share of tokens changed", body)
    return _figure(title, text, drawn, ["margin, nats", "tokens", "changed", "share"], table)


def layers(document: Mapping[str, Any]) -> str:
    """Error of the hidden state after each layer."""
    rows = document.get("layers") or []
    if not rows:
        return ""
    floors = [r.get("floor_error") for r in rows]
    floor = [f for f in floors if f is not None] if all(f is not None for f in floors) else []
    errors = [r["relative_error"] for r in rows]
    y = svg.upwards([*errors, *floor])
    x = svg.across(rows[0]["layer"] - 0.5, rows[-1]["layer"] + 0.5)
    places = [x(r["layer"]) for r in rows]
    few = len(rows) <= 40
    body = [
        svg.y_axis(y),
        svg.line([(at, y(f)) for at, f in zip(places, floor, strict=False)], "second") if floor else "",
        svg.line([(at, y(e)) for at, e in zip(places, errors, strict=True)], "first"),
        svg.dots(
            [(at, y(e), None) for at, e in zip(places, errors, strict=True)],
            [f"layer {r['layer']}: {figure(r['relative_error'])}" for r in rows],
            radius=3.5 if few else 2,
        ),
        svg.x_axis([(x(t), f"{t:g}") for t in x.ticks() if t == int(t) and t >= rows[0]["layer"]]),
    ]
    title = "Error of the hidden state by layer"
    text = "Size of the difference over the size of the reference's state. A step shows the layer that loses."
    table = [
        [str(r["layer"]), figure(r["relative_error"]), figure(r["max_error"])] + ([figure(f)] if floor else [])
        for r, f in zip(rows, floors, strict=True)
    ]
    head = ["layer", "relative error", "largest error", *(["relative error of the floor"] if floor else [])]
    keys = [("first", "candidate"), ("second", "noise floor")] if floor else []
    return _figure(title, text, svg.chart(title, text, "layer", "relative error", body), head, table, keys)


def documents(document: Mapping[str, Any]) -> str:
    """Mean KL of each document, the costliest first."""
    rows = sorted(document.get("per_document") or [], key=lambda r: -r["mean"])
    shown = [r for r in rows[:MOST_DOCUMENTS] if r["mean"] > 0]
    if len(shown) < 2:
        return ""
    y = svg.upwards([f for r in shown for f in (r["mean"], *(r["interval"] or []))], log=True)
    x = svg.across(0.0, len(shown) + 1.0)
    points = [(x(i), y(r["mean"]), _ends(r["interval"], y)) for i, r in enumerate(shown, 1)]
    body = [
        svg.y_axis(y),
        svg.dots(points, [f"{r['id']}: {_with_interval(r)}" for r in shown], radius=3 if len(shown) > 30 else 4),
        svg.x_axis([(x(1), "1"), *((x(t), f"{t:g}") for t in x.ticks() if 1 < t <= len(shown) and t == int(t))]),
    ]
    which = f"the {len(shown)} costliest of {len(rows):,}" if len(rows) > len(shown) else f"all {len(rows)}"
    title = "KL by document"
    text = f"Mean of each document, {which}, costliest first. Intervals are from within the document."
    table = [[r["id"], f"{r['tokens']:,}", figure(r["mean"]), _interval(r["interval"])] for r in rows[:MOST_ROWS]]
    drawn = svg.chart(title, text, "documents, costliest first", "nats per token", body)
    return _figure(title, text, drawn, ["document", "tokens", "KL, nats per token", "95% interval"], table)


def _kl_by(rows: Sequence[Row] | None, title: str, text: str, x_label: str, words: Callable[[float], str]) -> str:
    if not rows:
        return ""
    slots, marks = _slots(rows, words)
    y = svg.upwards([f for r in rows for f in (r["mean"], *(r["interval"] or [])[1:] * (r["tokens"] >= 30))])
    points = [
        ((left + right) / 2, y(r["mean"]), _ends(r["interval"], y))
        for r, (left, right) in zip(rows, slots, strict=True)
    ]
    body = [
        svg.y_axis(y),
        svg.dots(points, [f"{_span(r)}: {_with_interval(r)}" for r in rows]),
        svg.x_axis(marks),
    ]
    head = ["bucket", "tokens", "documents", "KL, nats per token", "95% interval", "share of the KL"]
    table = [
        [
            _span(r),
            f"{r['tokens']:,}",
            f"{r['documents']:,}",
            figure(r["mean"]),
            _interval(r["interval"]),
            percent(r["kl_share"]),
        ]
        for r in rows
    ]
    return _figure(title, text, svg.chart(title, text, x_label, "nats per token", body), head, table)


def _slots(
    rows: Sequence[Row], words: Callable[[float], str]
) -> tuple[list[tuple[float, float]], list[tuple[float, str]]]:
    """Equal widths for the buckets, a gap where one is missing, and the edges' words at the borders."""
    edges: list[float | None] = []
    places: list[int] = []
    for row in rows:
        if not edges or edges[-1] != row["from"]:
            edges.append(row["from"])
        places.append(len(edges) - 1)
        edges.append(row["to"])
    x = svg.across(0.0, float(len(edges) - 1))
    slots = [(x(i), x(i + 1)) for i in places]
    return slots, [(x(i), "" if edge is None else words(edge)) for i, edge in enumerate(edges)]


def _figure(
    title: str,
    text: str,
    drawn: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    keys: Sequence[tuple[str, str]] = (),
) -> str:
    key = "".join(f'<li class="{kind}">{as_html(words)}</li>' for kind, words in keys)
    names = "".join(f'<th scope="col">{as_html(name)}</th>' for name in head)
    cells = ("".join(f"<td>{as_html(cell)}</td>" for cell in row) for row in rows)
    return "".join(
        [
            f"<figure><figcaption><h2>{as_html(title)}</h2><p>{as_html(text)}</p></figcaption>",
            f'<ul class="key">{key}</ul>' if key else "",
            drawn,
            '<details><summary>Figures as a table</summary><div class="scroll" tabindex="0">',
            f"<table><thead><tr>{names}</tr></thead><tbody>",
            *(f"<tr>{row}</tr>" for row in cells),
            "</tbody></table></div></details></figure>",
        ]
    )


def _span(row: Row) -> str:
    return f"{row['from']:g} and more" if row["to"] is None else f"{row['from']:g} to {row['to']:g}"


def _with_interval(row: Row) -> str:
    known = f", 95% interval {_interval(row['interval'])}" if row["interval"] else ""
    return f"{figure(row['mean'])} nats per token{known}"


def _interval(ends: Sequence[float] | None) -> str:
    return "none" if ends is None else f"{figure(ends[0])} to {figure(ends[1])}"


def _ends(ends: Sequence[float] | None, y: svg.Scale) -> svg.Interval:
    return None if ends is None else (y(ends[0]), y(ends[1]))


def _edge(number: float) -> str:
    return figure(number, 2)


def _power(number: float) -> str:
    exponent = round(math.log10(number))
    return f"{number:g}" if -3 <= exponent <= 2 else f"1e{exponent}"
