"""How a cast with loss is shown: how good it is by class, where it is worst, and over all groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from truecast.cli.output import table

CLASSES_SHOWN = 30
WORST_SHOWN = 5
_BAR = 40


def render_quality(console: Console, quality: Mapping[str, Any]) -> None:
    """Print the ``quality`` section of a verification's document."""
    classes = quality["classes"]
    rows = [_row(name, figures) for name, figures in list(classes.items())[:CLASSES_SHOWN]]
    rows += [_row(f"all {kind.upper()}", quality[kind]) for kind in ("int4", "fp8") if quality[kind]["matrices"]]
    columns = [
        "class",
        ">matrices",
        ">SQNR dB",
        ">rel. error",
        ">lossless groups",
        ">nearest",
        ">unbeaten",
        ">negative",
    ]
    console.print("Loss against the source")
    console.print(table("", columns, rows))
    if quality["fp8"]["matrices"]:
        console.print(
            "FP8: nearest to the float32 quotient is required; the share is of codes nearest in exact arithmetic"
        )
    if len(classes) > CLASSES_SHOWN:
        console.print(f"      and {len(classes) - CLASSES_SHOWN:,} more classes: see --json")
    layers = [(f["sqnr_db"], name) for name, f in quality["layers"].items() if f["sqnr_db"] is not None]
    if len(layers) > 1:
        (low, worst), (high, best) = min(layers), max(layers)
        console.print(f"layers  from {low:.2f} dB ({worst}) to {high:.2f} dB ({best})", markup=False)
    for entry in quality["worst"][:WORST_SHOWN]:
        console.print(f"worst   {entry['sqnr_db']:6.2f} dB  {entry['matrix']}", markup=False)
    _histogram(console, quality["histogram"])


def _row(name: str, figures: Mapping[str, Any]) -> Sequence[object]:
    groups = figures["groups"]
    return (
        name,
        figures["matrices"],
        "-" if figures["sqnr_db"] is None else f"{figures['sqnr_db']:.2f}",
        f"{figures['relative_error']:.3%}",
        figures["exact_groups"] if groups else "-",
        _share(figures["nearest_share"]),
        _share(figures["unbeaten_share"]) if groups else "-",
        figures["negative_scales"] if groups else "-",
    )


def _share(value: float | None) -> str:
    """A share in percent; 100% only where it is all of them, nothing where it is not known."""
    if value is None:
        return ""
    return "100%" if value == 1 else f"{min(value, 0.99999):.3%}"


def _histogram(console: Console, bins: Mapping[str, int]) -> None:
    if not bins:
        return
    low, high = (limit(int(key) for key in bins) for limit in (min, max))
    largest = max(bins.values())
    console.print("INT4 groups by SQNR")
    for decibels in range(low, high + 1):
        number = bins.get(str(decibels), 0)
        bar = "#" * -(-_BAR * number // largest)
        console.print(f"{decibels:>5} dB {number:>13,}  {bar}", markup=False)
