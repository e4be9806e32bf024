"""What is proved: only what a record of ``truecast verify`` says of this very checkpoint."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from truecast.report.card.cast import fp8_elements
from truecast.report.card.content import Block, Code, Fence, Paragraph, Words, heading
from truecast.report.card.record import Record
from truecast.report.outcome import is_lossy, rule

_PROOFS = {
    "exact": "that no neighbouring BF16 scale would do better",
    "weighted": "that by these weights no neighbouring BF16 scale would do better",
    "diagonal": "that by these weights no neighbouring BF16 scale would do better",
    "signed": "that every scale is the one that the rule gives, recomputed from the source",
    "amax": "that every scale is the one that the rule gives, recomputed from the source",
}


def check_proof(record: Record, manifest: Record, out: str | None) -> None:
    """Raises: InputError where the proof is of another checkpoint, or none. ``out``: fingerprint of this one, if known."""
    if record.get("ok") is not True or record.count("failures_total") or record.get("failures"):
        raise record.bad("says that the claim does not hold, so there is no card to write", "ok")
    for key in ("manifest_checked", "declared"):
        if record.get(key) is not True:
            raise record.bad("is not true: the proof did not use this checkpoint's truecast.json", key)
    known = {"source": manifest.string("source", "fingerprint"), "manifest": manifest.sha256, "out": out}
    for key, expected in known.items():
        if expected is not None and record.string(key) != expected:
            raise record.bad("is another checkpoint's", key)
    for key in ("elements", "matrices", "copied_tensors", "inexact_half_blocks", "inexact_elements"):
        record.count("counts", key)
    _check_counts(record, manifest)
    if is_lossy(manifest.document) != isinstance(record.get("quality"), dict):
        raise record.bad("does not fit to what truecast.json says was quantized anew", "quality")


def _check_counts(record: Record, manifest: Record) -> None:
    """Raises: InputError where it read other amounts than the manifest has, or found more of a kind than there is."""
    classes = range(len(manifest.array("classes")))
    cast = [i for i in classes if manifest.string("classes", i, "from") != manifest.string("classes", i, "to")]
    fp8 = range(len(manifest.array("fp8_classes")))
    anew = {
        "elements": sum(fp8_elements(manifest, i) for i in fp8),
        "matrices": sum(manifest.count("fp8_classes", i, "tensors") for i in fp8),
    }
    for key, quantized in anew.items():
        low, high = (quantized + sum(manifest.count("classes", i, key) for i in which) for which in (cast, classes))
        if not low <= record.count("counts", key) <= high:  # what was copied may count as either
            raise record.bad(f"is not the {high:,} that truecast.json records", "counts", key)
    inexact = {
        "inexact_half_blocks": manifest.count("blocks", "inexact"),
        "inexact_elements": sum(
            manifest.count("inexact_matrices", name) for name in manifest.object("inexact_matrices")
        ),
    }
    if sum(inexact.values()) < sum(record.count("counts", key) for key in inexact):
        raise record.bad("differ more than truecast.json declares", "counts")
    for part, some, of in (("int4", "nearest", "elements"), ("int4", "unbeaten", "groups")):
        if record.get("quality", part, some) is not None:
            record.number("quality", part, some, low=0, high=record.count("quality", part, of))
    if record.get("quality") and rule(manifest.object("int4")) != "gptq":
        record.same(record.count("quality", "int4", "elements"), "quality", "int4", "nearest")


def proved(record: Record | None) -> Words:
    """What was proved, or that nothing was."""
    if record is None:
        return (
            "This is what the conversion recorded; it is not proved here. ", Code("truecast verify SOURCE THIS_FOLDER"),
            " proves it from the bytes.",
        )  # fmt: skip
    words: Words = (
        "Proved by ", Code("truecast verify"), ", which read both checkpoints: ", record.counted("counts", "elements"),
        " elements of ", record.counted("counts", "matrices"), " matrices compared, ",
        record.counted("counts", "copied_tensors"), " tensors equal byte for byte, every file as ", Code("truecast.json"),
        " has it",
    )  # fmt: skip
    if record.get("quality") is not None:
        return *words, "; ", *_quality(record)
    for key, unit in (("inexact_half_blocks", "half blocks"), ("inexact_elements", "elements")):
        if record.count("counts", key):
            return (
                *words,
                "; ",
                record.counted("counts", key),
                f" {unit} differ, as ",
                Code("truecast.json"),
                " declares.",
            )
    return *words, "; no value differs."


def _quality(record: Record) -> Words:
    found: list[Words] = []
    if record.count("quality", "int4", "matrices"):
        nearest, elements = record.counted("quality", "int4", "nearest"), record.counted("quality", "int4", "elements")
        found.append((nearest, " of ", elements, " INT4 codes are the nearest"))
        if record.get("quality", "int4", "unbeaten") is not None:
            unbeaten, groups = (
                record.counted("quality", "int4", "unbeaten"),
                record.counted("quality", "int4", "groups"),
            )
            found.append((unbeaten, " of ", groups, " groups have a scale that no neighbouring one beats"))
    if record.count("quality", "fp8", "matrices"):
        found.append((record.counted("quality", "fp8", "matrices"), " FP8 matrices recomputed"))
    words: Words = ()
    for part in found:
        words = (*words, ", ", *part) if words else part
    return *words, "; errors as recorded."


def again(manifest: Record) -> Iterator[Block]:
    """The command that proves it, and what it does."""
    yield heading(2, "Prove it again")
    yield Fence((("truecast verify SOURCE THIS_FOLDER", *_weights(manifest)),))
    yield Paragraph((*_method(manifest), " What the source says of itself stands in ", Code("README.source.md"),
                     ", if it came with a card."))  # fmt: skip


def _weights(manifest: Record) -> Words:
    """The options that name importance vectors and calibration again; empty where there were none."""
    words: Words = ()
    for option, key in (("weights", "weights"), ("calibration", "calibration")):
        if not manifest.get("int4", key) or (key == "weights" and manifest.get("int4", "rounding") == "diagonal"):
            continue
        name = manifest.string("int4", key, "file")
        if not name.isprintable():
            raise manifest.bad("is no name on one line", "int4", key, "file")
        quoted = manifest.derived(shlex.quote(name), name, "quoted", "int4", key, "file")
        words = (*words, f" --{option} ", quoted)
    return words


def _method(manifest: Record) -> Words:
    verify = Code("verify")
    if not is_lossy(manifest.document):
        return verify, " reads both checkpoints and compares every element as integers (sign, mantissa, exponent)."
    if not manifest.object("int4", "matrices"):
        return (
            verify, " reads both checkpoints, compares INT4 codes and scales as integers, and recomputes scales, codes and"
            " errors of what became FP8.",
        )  # fmt: skip
    chosen = rule(manifest.object("int4"))
    if chosen == "gptq":
        return (
            verify, " reads both checkpoints, recomputes the error of every group from the bytes, and counts the codes that"
            " are nearest. That GPTQ chose well it does not claim.",
        )  # fmt: skip
    return (
        verify, " reads both checkpoints, recomputes the error of every group from the bytes, and checks in integers that"
        f" every code is the nearest one and {_PROOFS[chosen]}.",
    )  # fmt: skip
