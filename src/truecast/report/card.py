"""The model card (README.md of a converted checkpoint), from its manifest alone."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from truecast.report.words import counted

_FORMATS = {"nvfp4": "NVFP4", "mxfp4": "MXFP4", "bf16": "BF16", "w4afp8": "W4AFP8", "fp8": "FP8"}

_SCALES = {
    "exact": "of least squared error, found exactly",
    "weighted": "of least weighted squared error, found exactly",
    "diagonal": "of least squared error weighted by the mean squares of a calibration's activations, found exactly",
    "gptq": "and codes that GPTQ chose for the least error of outputs on a calibration",
    "signed": "under which its largest value becomes -8",
    "amax": "under which its largest magnitude becomes 7",
}

_RULES = {
    "exact": "least squared error",
    "weighted": "least weighted squared error",
    "diagonal": "least squared error weighted by activations",
    "gptq": "GPTQ, for the error of outputs",
    "signed": "largest value to -8",
    "amax": "largest magnitude to 7",
}

_PROOFS = {
    "exact": "that no neighbouring BF16 scale would do better",
    "weighted": "that by these weights no neighbouring BF16 scale would do better",
    "diagonal": "that by these weights no neighbouring BF16 scale would do better",
    "signed": "that every scale is the one that the rule gives, recomputed from the source",
    "amax": "that every scale is the one that the rule gives, recomputed from the source",
}

_SCALED = {
    "1.0": "static scales of 1.0",
    "source": "static scales of the source",
    "calibrated": "static scales, the largest activation of a calibration over 448",
    "mixed": "static scales of the source or of a calibration, 1.0 where there is neither",
}


def render_card(manifest: Mapping[str, Any]) -> str:
    """Markdown of the card. The same manifest gives the same text."""
    target, blocks = manifest["target"], manifest["blocks"]
    title = f"{_name(manifest)}, {_FORMATS.get(target['format'], target['format'])} ({target['dialect']})"
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in manifest["source"]["card"].items()),
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
            "truecast verify SOURCE THIS_FOLDER" + _weights(manifest),
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
    total = _summed(figures)
    return (
        f"INT4: {total['groups']:,} groups of 128, {_decibels(total)}, {total['exact_groups']:,} of them exact;"
        f" scales: {_RULES[_rule(int4)]}"
    )


def outcome_line(manifest: Mapping[str, Any]) -> str:
    """One line on what became of the values: exact, rounded where and how often, or how large the loss is."""
    blocks, cast = manifest["blocks"], [c for c in manifest["classes"] if c["from"] != c["to"]]
    if _is_lossy(manifest):
        fp8 = list(manifest["fp8"]["matrices"].values())
        more = f"; FP8: {counted(len(fp8), 'module')}, {_decibels(_summed(fp8))}" if fp8 else ""
        return int4_line(manifest["int4"]) + more
    if rounded := _rounded(manifest):
        return f"not exact: {rounded}"
    if all(c["from"].startswith(manifest["target"]["format"] + "-") for c in cast):
        return "exact: codes and scales changed their form only"
    line = f"exact: all {sum(c['elements'] for c in cast):,} elements"
    if manifest["target"]["format"] == "nvfp4":
        line += f", {blocks['half_blocks']:,} half blocks, {blocks['renormalised']:,} of them with shifted codes"
    return line


def _is_lossy(manifest: Mapping[str, Any]) -> bool:
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


def _rule(int4: Mapping[str, Any]) -> str:
    if int4.get("rounding", "data-free") != "data-free":
        return str(int4["rounding"])
    return "weighted" if int4["weights"] else str(int4["method"])


def _summed(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: sum(f[key] for f in figures) for key in figures[0]}


def _name(manifest: Mapping[str, Any]) -> str:
    """What to call the model: the source's own name, without the organisation or folder before it."""
    name = manifest["source"]["name"]
    if not isinstance(name, str) or "/" not in name:
        name = manifest["source"]["card"].get("base_model", name)
    name = name.rstrip("/").rpartition("/")[2] if isinstance(name, str) else ""
    return name if name and name.isprintable() else "model"


def _weights(manifest: Mapping[str, Any]) -> str:
    """The options that name importance vectors and calibration again; empty where there were none."""
    int4 = manifest.get("int4") or {}
    weights = int4.get("weights") if int4.get("rounding") != "diagonal" else None
    given = (("weights", weights), ("calibration", int4.get("calibration")))
    return "".join(f" --{option} {shlex.quote(used['file'])}" for option, used in given if used)


def _decibels(figures: Mapping[str, float]) -> str:
    error, total = figures["squared_error"], figures["squared_sum"]
    if not error:
        return "without error"
    return f"SQNR {10 * math.log10(total / error):.2f} dB (relative RMS error {(error / total) ** 0.5:.2%})"


def _error(manifest: Mapping[str, Any]) -> list[str]:
    """The section on what was quantized anew; empty where nothing was."""
    if not _is_lossy(manifest):
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
    if not _is_lossy(manifest):
        return "`verify` reads both checkpoints and compares every element as integers (sign, mantissa, exponent)."
    if not manifest["int4"]["matrices"]:
        return (
            "`verify` reads both checkpoints, compares INT4 codes and scales as integers, and recomputes scales, codes"
            " and errors of what became FP8."
        )
    if _rule(manifest["int4"]) == "gptq":
        return (
            "`verify` reads both checkpoints, recomputes the error of every group from the bytes, and counts the codes that are"
            " nearest. That GPTQ chose well it does not claim."
        )
    return (
        "`verify` reads both checkpoints, recomputes the error of every group from the bytes, and checks in integers that"
        f" every code is the nearest one and {_PROOFS[_rule(manifest['int4'])]}."
    )


def _claim(manifest: Mapping[str, Any]) -> str:
    target = manifest["target"]
    if _is_lossy(manifest) and not manifest["int4"]["matrices"]:
        return (
            "Recast by truecast: INT4 groups and scales are the source's; the rest of what changed is rounded to FP8."
        )
    if _is_lossy(manifest):
        return (
            "Requantized by truecast: experts to INT4 in groups of 128, each with the BF16 scale "
            + _SCALES[_rule(manifest["int4"])]
            + ". Values change; below stands by how much."
        )
    if rounded := _rounded(manifest):
        return f"Recast by truecast. Not exact throughout: {rounded}."
    came = {c["from"].partition("-")[0] for c in manifest["classes"] if c["from"] != c["to"]}
    for lossy, says in (("w4afp8", "a W4AFP8 checkpoint: its own card says how far that is off"),
                        ("fp8", "an FP8 checkpoint: its own card says whether that was rounded")):  # fmt: skip
        if lossy in came:
            return f"Recast by truecast without a change of value from its source, which is itself {says}."
    text = "Recast by truecast without a change of value: every weight equals the source's weight exactly."
    if target["format"] == "nvfp4" and "nvfp4" not in came:
        text += (
            " Block scales are powers of two taken over from the source, so nothing of NVFP4's finer scales is used:"
            " precision is the source's, neither better nor worse."
        )
    return text


def _activations(target: Mapping[str, Any]) -> str:
    if target["activations"] == "none":
        return "not quantized (weight-only)"
    if target["format"] == "fp8":
        return "FP8, scaled at run time"
    scaled = _SCALED.get(target["activation_scales"], "scaled per token")
    return f"{_FORMATS[target['activations']]}, {scaled}"
