"""The model card (README.md of a converted checkpoint), from its manifest alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_FORMATS = {"nvfp4": "NVFP4", "mxfp4": "MXFP4", "bf16": "BF16", "w4afp8": "W4AFP8", "fp8": "FP8"}

_SCALES = {
    "exact": "of least squared error, found exactly",
    "signed": "under which its largest value becomes -8",
    "amax": "under which its largest magnitude becomes 7",
}


def render_card(manifest: Mapping[str, Any]) -> str:
    """Markdown of the card. The same manifest gives the same text."""
    target, blocks = manifest["target"], manifest["blocks"]
    name = manifest["source"]["name"] or "model"
    title = f"{name}, {_FORMATS.get(target['format'], target['format'])} ({target['dialect']})"
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "base_model_relation: quantized",
            f"tags: [truecast, {target['format']}]",
            "---",
            "",
            f"# {title}",
            "",
            _claim(manifest),
            "",
            "## What changed",
            "",
            "| class | matrices | elements | from | to |",
            "|---|---:|---:|---|---|",
            *(
                f"| `{c['class']}` | {c['matrices']:,} | {c['elements']:,} | {c['from']} | {c['to']} |"
                for c in manifest["classes"]
                if c["from"] != c["to"]
            ),
            *(
                f"| `{c['class']}` | {c['tensors']:,} | {c['bytes'] // 2:,} | {c['dtype']} | FP8, 128 x 128 blocks |"
                for c in manifest["fp8_classes"]
            ),
            "",
            "## What did not",
            "",
            "Copied byte for byte:",
            "",
            "| class | dtype | tensors | bytes |",
            "|---|---|---:|---:|",
            *(
                f"| `{c['class']}` | {c['from']} | {c['matrices']:,} matrices | |"
                for c in manifest["classes"]
                if c["from"] == c["to"]
            ),
            *(f"| `{c['class']}` | {c['dtype']} | {c['tensors']:,} | {c['bytes']:,} |" for c in manifest["plain"]),
            "",
            *_error(manifest),
            "## Numbers",
            "",
            "| | |",
            "|---|---|",
            f"| source fingerprint | `{manifest['source']['fingerprint']}` |",
            *_blocks(target, blocks),
            f"| activations | {_activations(target)} |",
            f"| truecast | {manifest['version']} |",
            "",
            *(f"> {note}\n" for note in manifest["notes"]),
            "## Prove it again",
            "",
            "```bash",
            "truecast verify SOURCE THIS_FOLDER",
            "```",
            "",
            _proof(manifest),
            "What the source says of itself stands in `README.source.md`, if it came with a card.",
            "",
        ]
    )


def int4_line(int4: Mapping[str, Any]) -> str:
    """One line on the INT4 groups of a manifest."""
    figures = list(int4["matrices"].values())
    if not figures:
        return "INT4 groups and scales taken over as they were"
    total = {key: sum(f[key] for f in figures) for key in figures[0]}
    return (
        f"INT4: {total['groups']:,} groups of 128, {_decibels(total)}, {total['exact_groups']:,} of them exact;"
        f" scales by {int4['method']}{', weighted' if int4['weights'] else ''}"
    )


def _decibels(figures: Mapping[str, float]) -> str:
    error, total = figures["squared_error"], figures["squared_sum"]
    if not error:
        return "without error"
    return f"SQNR {10 * math.log10(total / error):.2f} dB (relative RMS error {(error / total) ** 0.5:.2%})"


def _error(manifest: Mapping[str, Any]) -> list[str]:
    """The section on what an INT4 cast costs; empty for the others."""
    if "int4" not in manifest:
        return []
    by_class: dict[str, dict[str, float]] = {}
    for key in ("int4", "fp8"):
        for name, figures in manifest[key]["matrices"].items():
            label = "INT4" if key == "int4" else "FP8"
            group = ".".join("*" if part.isdecimal() else part for part in name.split("."))
            row = by_class.setdefault(f"| `{group}` | {label} |", {"squared_error": 0.0, "squared_sum": 0.0})
            for part in row:
                row[part] += figures[part]
    return [
        "## What it costs",
        "",
        int4_line(manifest["int4"]) + ".",
        "",
        "| class | to | error against the source |",
        "|---|---|---|",
        *(f"{row} {_decibels(figures)} |" for row, figures in sorted(by_class.items())),
        "",
    ]


def _blocks(target: Mapping[str, Any], blocks: Mapping[str, Any]) -> list[str]:
    if target["format"] != "nvfp4":
        return []
    return [
        f"| half blocks of 16 | {blocks['half_blocks']:,} |",
        f"| re-expressed with shifted codes, same values | {blocks['renormalised']:,} |",
        f"| with an E4M3-subnormal block scale | {blocks['subnormal_scales']:,} |",
        f"| not exact | {blocks['inexact']:,} |",
    ]


def _proof(manifest: Mapping[str, Any]) -> str:
    if "int4" not in manifest:
        return "`verify` reads both checkpoints and compares every element as integers (sign, mantissa, exponent)."
    return (
        "`verify` reads both checkpoints, recomputes the error of every group from the bytes, and checks in integers that"
        " every code is the nearest one and that no neighbouring BF16 scale would do better."
    )


def _claim(manifest: Mapping[str, Any]) -> str:
    target, blocks = manifest["target"], manifest["blocks"]
    if manifest.get("fp8", {}).get("matrices") and not manifest["int4"]["matrices"]:
        return (
            "Recast by truecast: INT4 groups and scales are the source's; the rest of what changed is rounded to FP8."
        )
    if manifest.get("int4", {}).get("matrices"):
        return (
            "Requantized by truecast: experts to INT4 in groups of 128, each with the BF16 scale "
            + _SCALES[manifest["int4"]["method"]]
            + ". Values change; below stands by how much."
        )
    if blocks["inexact"] or manifest["inexact_matrices"]:
        count, rms = blocks["inexact"], blocks["inexact_relative_rms"]
        detail = f"{count:,} half blocks hold the nearest values (relative RMS error {rms:.3g} over them)" if count else (
            f"{len(manifest['inexact_matrices']):,} matrices hold rounded values"
        )  # fmt: skip
        return f"Recast by truecast. Not exact throughout: {detail}; `truecast.json` lists them."
    text = "Recast by truecast without a change of value: every weight equals the source's weight exactly."
    if target["format"] == "nvfp4":
        text += (
            " Block scales are powers of two taken over from the source, so nothing of NVFP4's finer scales is used:"
            " precision is the source's, neither better nor worse."
        )
    return text


def _activations(target: Mapping[str, Any]) -> str:
    if target["format"] == "w4afp8":
        return "FP8, static scales of 1.0 or the source's" if target["dialect"] == "sglang" else "FP8, scaled per token"
    if target["format"] == "fp8":
        return "FP8, scaled at run time"
    return "NVFP4, scales of 1.0 or the source's" if target["activations"] == "nvfp4" else "not quantized (weight-only)"
