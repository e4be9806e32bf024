"""The sections that the manifest alone gives: what was cast, what was copied, and what it cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from truecast.report.card.content import (
    Block,
    Code,
    Details,
    Figure,
    Inline,
    Paragraph,
    Words,
    heading,
    paragraph,
    table,
)
from truecast.report.card.record import Record
from truecast.report.outcome import RULES, decibels, is_lossy, rule, summed

FORMATS = {"nvfp4": "NVFP4", "mxfp4": "MXFP4", "bf16": "BF16", "w4afp8": "W4AFP8", "fp8": "FP8"}

FEW_ROWS = 12
"""A longer table of what few will read is folded away."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)

_SCALES = {
    "exact": "of least squared error, found exactly",
    "weighted": "of least weighted squared error, found exactly",
    "diagonal": "of least squared error weighted by the mean squares of a calibration's activations, found exactly",
    "gptq": "and codes that GPTQ chose for the least error of outputs on a calibration",
    "signed": "under which its largest value becomes -8",
    "amax": "under which its largest magnitude becomes 7",
}

_SCALED = {
    "1.0": "static scales of 1.0",
    "source": "static scales of the source",
    "calibrated": "static scales, the largest activation of a calibration over 448",
    "mixed": "static scales of the source or of a calibration, 1.0 where there is neither",
}


def check_cast(manifest: Record) -> None:
    """Raises: InputError where a part of the manifest that the card needs is missing or of another kind."""
    for name in ("format", "dialect", "activations"):
        manifest.string("target", name)
    if manifest.string("target", "format") not in FORMATS:
        raise manifest.bad("is no format that is known here", "target", "format")
    manifest.object("source", "card")
    manifest.object("inexact_matrices")
    for name in ("half_blocks", "renormalised", "subnormal_scales", "inexact"):
        manifest.count("blocks", name)
    lossy = [key for key in ("int4", "fp8") if manifest.get(key) is not None]
    if len(lossy) == 1:
        raise manifest.bad("stands alone: int4 and fp8 go together", lossy[0])
    for key in lossy:
        for name in manifest.object(key, "matrices"):
            for part in ("squared_error", "squared_sum"):
                manifest.number(key, "matrices", name, part, low=0)
            if not manifest.number(key, "matrices", name, "squared_sum") and manifest.get(
                key, "matrices", name, "squared_error"
            ):
                raise manifest.bad("is an error of nothing", key, "matrices", name, "squared_error")
            for part in ("groups", "exact_groups") if key == "int4" else ():
                manifest.count(key, "matrices", name, part)
    if not lossy:
        return
    manifest.string("int4", "method")
    if "weights" not in manifest.object("int4"):
        raise manifest.bad("is not there", "int4", "weights")
    if rule(manifest.object("int4")) not in RULES:
        raise manifest.bad("is no rule for scales that is known here", "int4", "method")


def title_of(manifest: Record) -> Words:
    """``Model-1.5, NVFP4 (modelopt)``."""
    return (*name_of(manifest), ", ", format_of(manifest), " (", manifest.text("target", "dialect"), ")")


def name_of(manifest: Record) -> Words:
    """What to call the model: the source's own name, without the organisation or folder before it."""
    paths: list[tuple[str | int, ...]] = [("source", "name"), ("source", "card", "base_model")]
    name = manifest.get(*paths[0])
    if not isinstance(name, str) or "/" not in name:
        paths.reverse()
    for path in (("source", "card", "model_name"), *paths):
        found = manifest.get(*path)
        short = found.rstrip("/").rpartition("/")[2] if isinstance(found, str) else ""
        if short and short.isprintable():
            return (manifest.derived(short, short, "the part behind the last slash" if "/" in found else "", *path),)
    return ("model",)


def format_of(manifest: Record) -> Figure:
    """``W4AFP8``."""
    name = manifest.string("target", "format")
    return manifest.derived(FORMATS[name], name, "written out", "target", "format")


def made_from(manifest: Record) -> Words:
    """The source's place on the hub, where its card or config has it; else nothing."""
    name = manifest.get("source", "card", "base_model")
    if not isinstance(name, str) or not _REPOSITORY.fullmatch(name):
        return ()
    link = f"https://huggingface.co/{name}"
    return "Made from ", replace(manifest.text("source", "card", "base_model"), link=link), ". "


def claim(manifest: Record) -> Words:
    """What kind of recast this is, in a sentence or two."""
    document = manifest.document
    if is_lossy(document) and not document["int4"]["matrices"]:
        return (
            "Recast by truecast: INT4 groups and scales are the source's; the rest of what changed is rounded to FP8.",
        )
    if is_lossy(document):
        chosen = _SCALES[rule(document["int4"])]
        text = f"Requantized by truecast: experts to INT4 in groups of 128, each with the BF16 scale {chosen}."
        return (f"{text} Values change; below stands by how much.",)
    if rounded := _rounded(manifest):
        return "Recast by truecast. Not exact throughout: ", *rounded, "."
    came = {manifest.string("classes", i, "from").partition("-")[0] for i in _cast(manifest)}
    for lossy, says in (("w4afp8", "a W4AFP8 checkpoint: its own card says how far that is off"),
                        ("fp8", "an FP8 checkpoint: its own card says whether that was rounded")):  # fmt: skip
        if lossy in came:
            return (f"Recast by truecast without a change of value from its source, which is itself {says}.",)
    text = "Recast by truecast without a change of value: every weight equals the source's weight exactly."
    if manifest.get("target", "format") == "nvfp4" and "nvfp4" not in came:
        text += (
            " Block scales are powers of two taken over from the source, so nothing of NVFP4's finer scales is used:"
            " precision is the source's, neither better nor worse."
        )
    return (text,)


def changed(manifest: Record) -> Iterator[Block]:
    """What was cast and what was copied, class by class."""
    yield heading(2, "What changed")
    fp8 = range(len(manifest.array("fp8_classes")))
    cast: list[Sequence[Inline | Words]] = [
        (
            manifest.text("classes", i, "class", code=True),
            manifest.counted("classes", i, "matrices"),
            manifest.counted("classes", i, "elements"),
            manifest.text("classes", i, "from"),
            manifest.text("classes", i, "to"),
        )
        for i in _cast(manifest)
    ]
    for i in fp8:
        elements = fp8_elements(manifest, i)
        cast.append(
            (
                manifest.text("fp8_classes", i, "class", code=True),
                manifest.counted("fp8_classes", i, "tensors"),
                manifest.derived(f"{elements:,}", elements, "bytes / bytes of an element", "fp8_classes", i, "bytes"),
                manifest.text("fp8_classes", i, "dtype"),
                "FP8, 128 x 128 blocks",
            )
        )
    yield table("lrrll", ("class", "matrices", "elements", "from", "to"), cast)
    yield heading(2, "What did not")
    yield paragraph("Copied byte for byte:")
    kept: list[Sequence[Inline | Words]] = [
        (
            manifest.text("classes", i, "class", code=True),
            manifest.text("classes", i, "from"),
            (manifest.counted("classes", i, "matrices"), " matrices"),
            "",
        )
        for i in _kept(manifest)
    ]
    plain: list[Sequence[Inline | Words]] = [
        (
            manifest.text("plain", i, "class", code=True),
            manifest.text("plain", i, "dtype"),
            manifest.counted("plain", i, "tensors"),
            manifest.counted("plain", i, "bytes"),
        )
        for i in range(len(manifest.array("plain")))
    ]
    rows = [*kept, *plain]
    copied = table("llrr", ("class", "dtype", "tensors", "bytes"), rows)
    yield copied if len(rows) <= FEW_ROWS else Details("All classes", (copied,))


def cost(manifest: Record) -> Iterator[Block]:
    """The error of what was quantized anew; nothing where nothing was."""
    if not is_lossy(manifest.document):
        return
    yield heading(2, "What it costs")
    yield Paragraph((*_int4_words(manifest), "."))
    rows: dict[tuple[str, str, str], list[Mapping[str, float]]] = {}
    for key, label in (("int4", "INT4"), ("fp8", "FP8")):
        for name, figures in manifest.object(key, "matrices").items():
            group = ".".join("*" if part.isdecimal() else part for part in name.split("."))
            rows.setdefault((group, label, key), []).append(figures)
    yield table(
        "lll",
        ("class", "to", "error against the source"),
        [
            (
                manifest.derived(group, group, "numbers in the names as *", key, "matrices", code=True),
                label,
                _decibels(manifest, figures, f"from the sums over {group}", key),
            )
            for (group, label, key), figures in sorted(rows.items(), key=lambda row: row[0])
        ],
    )


def loses(manifest: Record) -> bool:
    """Does the manifest record a weight whose value changed?"""
    if manifest.count("blocks", "inexact") or any(manifest.object("inexact_matrices").values()):
        return True
    parts = [(key, name) for key in ("int4", "fp8") if manifest.get(key) for name in manifest.object(key, "matrices")]
    return any(manifest.number(key, "matrices", name, "squared_error") > 0 for key, name in parts)


def numbers(manifest: Record) -> Iterator[Block]:
    """Fingerprint, half blocks, activations, version; then the conversion's notes."""
    rows: list[tuple[Inline | Words, Inline | Words]] = [
        ("source fingerprint", manifest.text("source", "fingerprint", code=True)),
    ]
    if manifest.get("target", "format") == "nvfp4":
        rows += [
            ("half blocks of 16", manifest.counted("blocks", "half_blocks")),
            ("re-expressed with shifted codes, same values", manifest.counted("blocks", "renormalised")),
            ("with an E4M3-subnormal block scale", manifest.counted("blocks", "subnormal_scales")),
            ("not exact", manifest.counted("blocks", "inexact")),
        ]
    rows += [("activations", _activations(manifest)), ("truecast", manifest.text("version"))]
    yield heading(2, "Numbers")
    yield table("ll", ("", ""), rows)
    for i in range(len(manifest.array("notes"))):
        yield Paragraph((manifest.text("notes", i),), quote=True)


def fp8_elements(manifest: Record, i: int) -> int:
    """Elements of a class that became FP8, from its bytes in the source."""
    return manifest.count("fp8_classes", i, "bytes") // (4 if manifest.get("fp8_classes", i, "dtype") == "F32" else 2)


def _cast(manifest: Record) -> list[int]:
    return [i for i in range(len(manifest.array("classes"))) if i not in _kept(manifest)]


def _kept(manifest: Record) -> list[int]:
    return [
        i
        for i in range(len(manifest.array("classes")))
        if manifest.string("classes", i, "from") == manifest.string("classes", i, "to")
    ]


def _rounded(manifest: Record) -> Words:
    """What had to be rounded, and where that stands; empty if nothing."""
    if manifest.count("blocks", "inexact"):
        rms = manifest.figure("blocks", "inexact_relative_rms", words=lambda x: f"{x:.3g}")
        return (
            manifest.counted("blocks", "inexact"), " half blocks hold the nearest values (relative RMS error ", rms,
            " over them); ", Code("truecast.json"), " lists them",
        )  # fmt: skip
    matrices = manifest.object("inexact_matrices")
    if not matrices:
        return ()
    total = sum(manifest.count("inexact_matrices", name) for name in matrices)
    unit = "half blocks" if manifest.get("target", "format") == "nvfp4" else "elements"
    return (
        manifest.derived(f"{total:,}", total, "sum", "inexact_matrices"), f" {unit} in ",
        manifest.derived(f"{len(matrices):,}", len(matrices), "number of entries", "inexact_matrices"),
        " matrix" if len(matrices) == 1 else " matrices", " are rounded; ", Code("truecast.json"), " counts them by matrix",
    )  # fmt: skip


def _int4_words(manifest: Record) -> Words:
    figures = list(manifest.object("int4", "matrices").values())
    if not figures:
        return ("INT4 groups and scales taken over as they were",)
    total = summed(figures)
    groups, exact = int(total["groups"]), int(total["exact_groups"])
    return (
        "INT4: ", manifest.derived(f"{groups:,}", groups, "sum of groups", "int4", "matrices"), " groups of 128, ",
        *_decibels(manifest, figures, "from the sums over all matrices", "int4"), ", ",
        manifest.derived(f"{exact:,}", exact, "sum of exact_groups", "int4", "matrices"),
        f" of them exact; scales: {RULES[rule(manifest.object('int4'))]}",
    )  # fmt: skip


def _decibels(manifest: Record, figures: Sequence[Mapping[str, Any]], how: str, key: str) -> Words:
    parts = ("squared_error", "squared_sum")
    total = summed([{part: float(f[part]) for part in parts} for f in figures])
    if not total["squared_sum"]:
        return ("without error",)
    share = total["squared_error"] / total["squared_sum"]
    return (manifest.derived(decibels(total), share, f"squared_error / squared_sum, {how}", key, "matrices"),)


def _activations(manifest: Record) -> Words:
    target = manifest.object("target")
    if target["activations"] == "none":
        return ("not quantized (weight-only)",)
    if target["format"] == "fp8":
        return ("FP8, scaled at run time",)
    known = target.get("activation_scales")
    scaled = _SCALED.get(known, "scaled per token") if isinstance(known, str) else "scaled per token"
    name = FORMATS.get(target["activations"], "quantized")
    how = "written out"
    return (manifest.derived(f"{name}, {scaled}", target["activations"], how, "target"),)
