"""What became of the values in a conversion, as one line: exact, rounded where and how often, or how large the loss is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from truecast.report.words import counted

RULES = {
    "exact": "least squared error",
    "weighted": "least weighted squared error",
    "diagonal": "least squared error weighted by activations",
    "gptq": "GPTQ, for the error of outputs",
    "signed": "largest value to -8",
    "amax": "largest magnitude to 7",
}
"""How the scale of an INT4 group was chosen."""


def int4_line(int4: Mapping[str, Any]) -> str:
    """One line on the INT4 groups of a manifest."""
    figures = list(int4["matrices"].values())
    if not figures:
        return "INT4 groups and scales taken over as they were"
    total = summed(figures)
    return (
        f"INT4: {total['groups']:,} groups of 128, {decibels(total)}, {total['exact_groups']:,} of them exact;"
        f" scales: {RULES[rule(int4)]}"
    )


def outcome_line(manifest: Mapping[str, Any]) -> str:
    """One line on what became of the values: exact, rounded where and how often, or how large the loss is."""
    blocks, cast = manifest["blocks"], [c for c in manifest["classes"] if c["from"] != c["to"]]
    if is_lossy(manifest):
        fp8 = list(manifest["fp8"]["matrices"].values())
        more = f"; FP8: {counted(len(fp8), 'module')}, {decibels(summed(fp8))}" if fp8 else ""
        return int4_line(manifest["int4"]) + more
    if rounded := _rounded(manifest):
        return f"not exact: {rounded}"
    if all(c["from"].startswith(manifest["target"]["format"] + "-") for c in cast):
        return "exact: codes and scales changed their form only"
    line = f"exact: all {sum(c['elements'] for c in cast):,} elements"
    if manifest["target"]["format"] == "nvfp4":
        line += f", {blocks['half_blocks']:,} half blocks, {blocks['renormalised']:,} of them with shifted codes"
    return line


def is_lossy(manifest: Mapping[str, Any]) -> bool:
    """Was anything quantized anew?"""
    return any(manifest.get(key, {}).get("matrices") for key in ("int4", "fp8"))


def _rounded(manifest: Mapping[str, Any]) -> str:
    """What had to be rounded, and where that stands; empty if nothing."""
    blocks, matrices = manifest["blocks"], manifest["inexact_matrices"]
    if count := blocks["inexact"]:
        rms = blocks["inexact_relative_rms"]
        return (
            f"{count:,} half blocks hold the nearest values (relative RMS error {rms:.3g} over them);"
            " `truecast.json` lists them"
        )
    if not matrices:
        return ""
    unit = "half blocks" if manifest["target"]["format"] == "nvfp4" else "elements"
    return (
        f"{sum(matrices.values()):,} {unit} in {counted(len(matrices), 'matrix')} are rounded;"
        " `truecast.json` counts them by matrix"
    )


def rule(int4: Mapping[str, Any]) -> str:
    """The key in ``RULES``."""
    if int4.get("rounding", "data-free") != "data-free":
        return str(int4["rounding"])
    return "weighted" if int4["weights"] else str(int4["method"])


def summed(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figures of several matrices, added up."""
    return {key: sum(f[key] for f in figures) for key in figures[0]}


def decibels(figures: Mapping[str, float]) -> str:
    """Error against the source, from squared error and squared sum."""
    error, total = figures["squared_error"], figures["squared_sum"]
    if not error:
        return "without error"
    return f"SQNR {10 * math.log10(total / error):.2f} dB (relative RMS error {(error / total) ** 0.5:.2%})"
