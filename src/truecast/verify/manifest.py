"""What ``truecast.json`` says, held against itself: it is a claim, and proves nothing alone."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from truecast.checkpoint.files import ByteFile
from truecast.checkpoint.journal import MANIFEST
from truecast.verify.report import Failures
from truecast.verify.rules import CodeClaim, Int4Claim, Place, Promised, Rules

SCHEMA = "truecast.manifest/1"
MAX_BYTES = 1 << 30
"""No manifest is larger: a sparse file of any size must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The parts of a manifest that verification uses. ``files``: name -> (size in bytes, sha256).

    ``sha256``: of the manifest's own bytes.
    """

    fingerprint: str
    files: dict[str, tuple[int, str]]
    target_format: str
    allow_inexact: bool
    dropped: dict[str, str]
    inexact: dict[str, dict[Place, float]]
    rounded: dict[str, int]
    renormalised: int
    int4: Int4Claim | None = None
    fp8: dict[str, Promised] = field(default_factory=dict)
    code: dict[str, CodeClaim] = field(default_factory=dict)
    sha256: str = ""

    @property
    def rules(self) -> Rules:
        """What it allows and prescribes about matrices."""
        canonical = self.target_format == "nvfp4"
        return Rules(canonical, self.allow_inexact, self.inexact, self.rounded, int4=self.int4, fp8=self.fp8)


def read_manifest(file: ByteFile, failures: Failures) -> Manifest | None:
    """Read and check a manifest; whatever is wrong with it is a failure, and then it is not used (None)."""
    if file.size > MAX_BYTES:
        failures.add("manifest", f"has {file.size} bytes, more than any manifest ({MAX_BYTES})", file=MANIFEST)
        return None
    raw = file.read(0, file.size)
    try:
        document = json.loads(raw.decode("utf-8"))
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"is no {SCHEMA} document")
        _check_own_hash(document, raw)
        return replace(_parse(document), sha256=hashlib.sha256(raw).hexdigest())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        why = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        failures.add("manifest", f"is damaged: {why}", file=MANIFEST)
        return None


def _check_own_hash(document: dict[str, Any], raw: bytes) -> None:
    body = {k: v for k, v in document.items() if k != "sha256"}
    said = document.get("sha256")
    if said != hashlib.sha256(_encode(body)).hexdigest():
        raise ValueError("its content does not have the sha256 that it states of itself")
    body["sha256"] = said
    if _encode(body) != raw:
        raise ValueError("its bytes are not those that truecast writes for this content")


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def _parse(document: dict[str, Any]) -> Manifest:
    inexact: dict[str, dict[Place, float]] = defaultdict(dict)
    for entry in document["inexact"]:
        inexact[str(entry["matrix"])][int(entry["row"]), int(entry["column"])] = float(entry["squared_error"])
    files = {str(name): (int(f["bytes"]), str(f["sha256"])) for name, f in document["files"].items()}
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name or str(path) != name:
            raise ValueError(f"names the file {name!r}, which is no path inside the folder")
    allow = document["target"]["inexact"]
    if allow not in ("allow", "error"):
        raise ValueError(f"target.inexact is {allow!r}")
    if inexact and allow != "allow":
        raise ValueError("lists inexact half blocks although target.inexact is 'error'")
    return Manifest(
        fingerprint=str(document["source"]["fingerprint"]),
        files=files,
        target_format=str(document["target"]["format"]),
        allow_inexact=allow == "allow",
        dropped={str(k): str(v) for k, v in document["dropped"].items()},
        inexact=dict(inexact),
        rounded={str(k): int(v) for k, v in document["inexact_matrices"].items()},
        renormalised=int(document["blocks"]["renormalised"]),
        int4=_int4(document["int4"]) if document.get("int4") is not None else None,
        fp8=_promised((document.get("fp8") or {"matrices": {}})["matrices"], _FP8_FIGURES),
        code=_code(document.get("code", [])),
    )


_FP8_FIGURES: dict[str, type] = {"squared_error": float, "squared_sum": float}
_INT4_FIGURES: dict[str, type] = {
    **_FP8_FIGURES,
    "groups": int,
    "exact_groups": int,
    "zero_groups": int,
    "negative_scales": int,
}


def _int4(said: dict[str, Any]) -> Int4Claim:
    method, signs = said["method"], said["signs"]
    if not isinstance(method, str) or signs not in ("both", "positive"):
        raise ValueError(f"int4.method is {method!r}, int4.signs {signs!r}")
    weights = None if said["weights"] is None else str(said["weights"]["sha256"])
    taken = said.get("calibration")
    calibration = None if taken is None else str(taken["sha256"])
    diagonal = said.get("rounding") == "diagonal"
    if diagonal and (weights is None or weights != calibration):
        raise ValueError("int4.rounding is 'diagonal', but int4.weights is not the calibration")
    return Int4Claim(
        method, signs == "both", weights, _promised(said["matrices"], _INT4_FIGURES), calibration, diagonal
    )


def _code(said: list[dict[str, Any]]) -> dict[str, CodeClaim]:
    claims = {}
    for entry in said:
        name, *values = (entry[key] for key in ("file", "rule", "before", "after"))
        if not all(isinstance(value, str) for value in (name, *values)) or name in claims:
            raise ValueError(f"code holds {entry!r:.80}")
        claims[name] = CodeClaim(*values)
    return claims


def _promised(said: dict[str, Any], terms: dict[str, type]) -> dict[str, Promised]:
    found: dict[str, Promised] = {}
    for name, figures in said.items():
        for term, kind in terms.items():
            if type(figures[term]) is not kind and not (kind is float and type(figures[term]) is int):
                raise ValueError(f"{term} of {name} is {figures[term]!r}, no {kind.__name__}")
        found[str(name)] = {term: kind(figures[term]) for term, kind in terms.items()}
    return found
