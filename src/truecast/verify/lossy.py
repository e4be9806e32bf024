"""Casts with loss as a whole: does the manifest speak of just these matrices, and what could not be judged?"""

from __future__ import annotations

from truecast.checkpoint.journal import MANIFEST
from truecast.errors import InputError
from truecast.layouts.calibration import Calibration
from truecast.verify.importance import Importance
from truecast.verify.manifest import Manifest
from truecast.verify.pairing import Pair, Pairing
from truecast.verify.report import Failures
from truecast.verify.rules import METHODS, Rules


def is_int4_cast(pair: Pair) -> bool:
    """Is this an INT4 matrix made of an MXFP4 one?"""
    return pair.out.format == "w4afp8" and pair.source.format == "mxfp4"


def check_lossy_claims(manifest: Manifest, pairing: Pairing, failures: Failures) -> None:
    """The manifest's figures must belong to matrices that were cast so; it must have them if there are any."""
    cast = {p.out.name for p in pairing.pairs if is_int4_cast(p)}
    said = manifest.int4.matrices.keys() if manifest.int4 else set[str]()
    if cast and manifest.int4 is None:
        failures.add("manifest", f"says nothing of how {len(cast)} INT4 matrices were made", file=MANIFEST)
    for name in sorted(said - cast):
        failures.add("manifest", f"has INT4 figures of {name}, which is no such matrix here", file=MANIFEST)
    for name in sorted(manifest.fp8.keys() - {r.out.name for r in pairing.recasts}):
        failures.add("manifest", f"has FP8 figures of {name}, which is no such module here", file=MANIFEST)


def check_importance(rules: Rules, importance: Importance | None) -> None:
    """The weights must be those of the manifest. Raises: InputError."""
    said = rules.int4.weights if rules.int4 else None
    if importance is not None and said is not None and importance.sha256 != said:
        raise InputError(
            f"is not the file by which the INT4 scales were chosen: its sha256 is {importance.sha256}, not {said}",
            where=str(importance.path),
        )


def unchecked_scales(rules: Rules, pairing: Pairing, importance: Importance | None) -> str:
    """Why the choice of INT4 scales could not be judged; empty where it was, or needs no judging."""
    claim = rules.int4
    cast = sum(is_int4_cast(pair) for pair in pairing.pairs)
    if not cast or claim is None or claim.method != "exact" or claim.weights is None or importance is not None:
        return ""
    kind = "by the second moments of a calibration" if claim.diagonal else "by weights"
    return (
        f"the INT4 scales were chosen {kind}: without that file it is not checked for {cast} matrices that"
        " no neighbouring scale has a smaller weighted error"
    )


def note_lossy(
    rules: Rules, pairing: Pairing, importance: Importance | None, calibration: Calibration | None
) -> list[str]:
    """What was reported, but not held against anything."""
    cast = [p.out.name for p in pairing.pairs if is_int4_cast(p)]
    notes = []
    claim = rules.int4
    if cast and claim is None:
        notes.append("nothing says how the INT4 scales were chosen: they are legal, and their figures are given")
    elif cast and claim is not None:
        if claim.method == "gptq":
            notes.append(
                f"the codes of {len(cast)} matrices were chosen by GPTQ, for the error of outputs: that they are the best is not"
                " claimed, and not all are nearest; legality and figures are checked, the share of nearest codes is given"
            )
        elif claim.method not in METHODS:
            notes.append(f"the INT4 method {claim.method!r} is not known here: legality and figures are checked only")
        elif why := unchecked_scales(rules, pairing, importance):
            notes.append(why)
    taken = claim is not None and claim.calibration is not None
    if taken and calibration is None and any("input_scale" in p.out.parts for p in pairing.pairs if is_int4_cast(p)):
        notes.append(
            "activation scales come from a calibration: without that file they are legal, but not derived again"
        )
    if calibration is not None and not taken:
        notes.append(f"{calibration.path} is not used: nothing says that anything was calibrated")
    if importance is not None and (claim is None or claim.weights is None):
        notes.append(f"{importance.path} is not used: nothing says that INT4 scales were chosen by weights")
    if pairing.recasts and rules.fp8 is None:
        notes.append(f"{len(pairing.recasts)} BF16 modules are FP8, which nothing declares: their figures are given")
    return notes
