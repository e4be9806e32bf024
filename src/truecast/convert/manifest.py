"""``truecast.json``: what was converted into what, and the sha256 of every file. Nothing in it depends on time or place.

Its own last key, ``sha256``, is the hash of the document without that key, so that a flipped bit in it shows too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from truecast import __version__
from truecast.convert.a_log_rule import RULE, CodeChange
from truecast.convert.calibrated import scale_origins, taken
from truecast.convert.int4_plan import quantized_anew
from truecast.convert.plan import Plan, summary
from truecast.convert.scan import Scan
from truecast.convert.source_card import read_source_card
from truecast.errors import RefusedError

SCHEMA = "truecast.manifest/1"
_NAMED = 8
"""So many matrices are named in a note."""
_ACTIVATIONS = {"w4afp8": "fp8", "fp8": "fp8"}
"""Formats whose engines always quantize activations, and to what."""


def build_manifest(
    plan: Plan,
    scan: Scan,
    digest: str,
    files: Mapping[str, dict[str, Any]],
    records: Iterable[Mapping[str, Any]],
    code: Mapping[str, CodeChange],
    notes: Sequence[str],
    calibrated_on: Iterable[str] = (),
) -> dict[str, Any]:
    """Assemble the manifest; ``files`` maps name to bytes and sha256, ``records`` are those of the shards.

    ``code``: files of modelling code that were changed; ``notes``: what a reader has to know besides the plan's notes.
    ``calibrated_on``: hashes of the documents that the source was calibrated on.
    """
    facts = summary(plan)
    records = sorted(records, key=lambda r: str(r["file"]))
    inexact = [_sorted(entry) for r in records for entry in r["inexact"]]
    error = sum(float(e["squared_error"]) for e in inexact)
    total = sum(float(e["squared_sum"]) for e in inexact)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "source": {
            "fingerprint": plan.source.fingerprint(),
            "layouts": sorted(plan.contents.layouts),
            "tensors": facts["source_tensors"],
            "bytes": facts["source_bytes"],
            "name": plan.source.config.get("_name_or_path") or plan.source.config.get("model_type"),
            "card": read_source_card(plan.source),
            **({"calibrated_on": earlier} if (earlier := sorted(calibrated_on)) else {}),
        },
        "target": {
            "layout": plan.layout.NAME,
            "format": plan.layout.FORMAT,
            "dialect": plan.layout.DIALECT,
            "activations": _ACTIVATIONS.get(plan.layout.FORMAT, "nvfp4" if plan.activations else "none"),
            "activation_scales": _activation_scales(plan),
            "inexact": "allow" if plan.target.allow_inexact else "error",
        },
        "plan": digest,
        "family": plan.family.name,
        "tensors": facts["out_tensors"],
        "classes": facts["classes"],
        "plain": facts["plain"],
        "fp8_classes": facts["fp8"],
        "blocks": {
            "half_blocks": sum(r["half_blocks"] for r in records),
            "renormalised": sum(r["renormalised"] for r in records),
            "subnormal_scales": sum(r["subnormal_scales"] for r in records),
            "inexact": len(inexact),
            "inexact_relative_rms": (error / total) ** 0.5 if total else 0.0,
        },
        "inexact": inexact,
        **(_lossy(plan, records) if plan.layout.FORMAT == "w4afp8" else {}),
        "inexact_matrices": dict(sorted(scan.inexact_matrices.items())),
        "near_overflow": sorted(scan.near_overflow),
        "dropped": plan.dropped,
        "notes": [*plan.notes, *notes, *_subnormal_note(records)],
        "code": [
            {"file": name, "rule": RULE, "before": code[name].before, "after": files[name]["sha256"]}
            for name in sorted(code)
        ],
        "files": {name: files[name] for name in sorted(files)},
    }


def _subnormal_note(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """What engines below Blackwell make of block scales that the cast could not keep normal; none if it could."""
    found: dict[str, int] = {}
    for record in records:
        for name, count in record.get("subnormal_live", {}).items():
            found[name] = found.get(name, 0) + count
    if not found:
        return []
    worst = sorted(found, key=lambda name: (-found[name], name))
    named = ", ".join(f"{name} ({found[name]:,})" for name in worst[:_NAMED])
    more = f" and {len(worst) - _NAMED:,} more matrices" if len(worst) > _NAMED else ""
    return [
        f"half blocks that are not zero under an E4M3-subnormal block scale: {sum(found.values()):,}, in"
        f" {len(found):,} of the matrices: {named}{more}. The values are exact, and Blackwell reads them right; Marlin, which"
        " runs NVFP4 on Hopper and Ampere, reads them as zero with BF16 activations: serve the MXFP4 form there"
    ]


def _activation_scales(plan: Plan) -> str | None:
    """Where the activation scales come from: ``source``, ``calibrated``, ``1.0`` or ``mixed``; None without any."""
    origins = scale_origins((t for s in plan.shards for t in s.tensors), plan.calibration)
    return "mixed" if len(origins) > 1 else next(iter(origins), None)


def _lossy(plan: Plan, records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How INT4 groups were chosen, and how far each matrix and each FP8 module is off."""
    int4 = {name: _sorted(figures) for r in records for name, figures in r["int4"].items()}
    fp8 = {name: _sorted(figures) for r in records for name, figures in r["fp8"].items()}
    calibration, rounding = plan.calibration, plan.rounding
    chosen_by = calibration if rounding == "diagonal" else plan.importance
    weights = None if chosen_by is None else {"file": chosen_by.path.name, "sha256": chosen_by.sha256}
    anew = quantized_anew(plan.cast)
    return {
        "int4": {
            "method": "gptq" if rounding == "gptq" else plan.target.method,
            "rounding": rounding,
            "signs": "both",
            "weights": weights,
            "calibration": None if calibration is None else taken(calibration, rounding, plan.layout, anew),
            "matrices": {name: int4[name] for name in sorted(int4)},
        },
        "fp8": {"matrices": {name: fp8[name] for name in sorted(fp8)}},
    }


def _sorted(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The order of keys in which the journal gives back the entries of a run that was killed."""
    return dict(sorted(entry.items()))


def encode_manifest(document: Mapping[str, Any]) -> bytes:
    """Bytes of the manifest, its own hash included."""
    body = {k: v for k, v in document.items() if k != "sha256"}
    body["sha256"] = hashlib.sha256(_canonical(body)).hexdigest()
    return _canonical(body)


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def load_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest that this program wrote. Raises: RefusedError if a byte of it has changed since."""
    try:
        content = path.read_bytes()
        document: dict[str, Any] = json.loads(content)
        intact = encode_manifest(document) == content and document["schema"] == SCHEMA
        intact = intact and {"source", "plan", "version", "files"} <= document.keys()
    except (OSError, ValueError, AttributeError, KeyError, RecursionError):
        intact = False
    if not intact:
        raise RefusedError("is damaged", where=str(path), fix="remove the output folder and start again")
    return document
