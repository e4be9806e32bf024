"""The model card (README.md of a converted checkpoint), from its manifest alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FORMATS = {"nvfp4": "NVFP4", "mxfp4": "MXFP4", "bf16": "BF16"}


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
            "## Numbers",
            "",
            "| | |",
            "|---|---|",
            f"| source fingerprint | `{manifest['source']['fingerprint']}` |",
            f"| half blocks of 16 | {blocks['half_blocks']:,} |",
            f"| re-expressed with shifted codes, same values | {blocks['renormalised']:,} |",
            f"| with an E4M3-subnormal block scale | {blocks['subnormal_scales']:,} |",
            f"| not exact | {blocks['inexact']:,} |",
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
            "`verify` reads both checkpoints and compares every element as integers (sign, mantissa, exponent). What the",
            "source says of itself stands in `README.source.md`, if it came with a card.",
            "",
        ]
    )


def _claim(manifest: Mapping[str, Any]) -> str:
    target, blocks = manifest["target"], manifest["blocks"]
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
    return "NVFP4, scales of 1.0 or the source's" if target["activations"] == "nvfp4" else "not quantized (weight-only)"
