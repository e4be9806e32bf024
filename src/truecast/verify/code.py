"""Modelling code that came along: the source's bytes, or those followed by an addition that is known here.

``convert`` adds a loading rule for ``A_log`` after the last byte of Kimi-K3's modelling code. Here the output's file is cut
where the source's ends: what stands before must be the source, what stands after must have a sha256 of this table. The
table was written down when the rule was read, and is not computed from what ``convert`` writes today.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from truecast.checkpoint.journal import MANIFEST
from truecast.checkpoint.source import Checkpoint
from truecast.verify.report import Failures
from truecast.verify.rules import CodeClaim
from truecast.verify.tree import open_optional

KNOWN = {"a_log/1": "feebad01c16b41a6b7682be999f4fdff6b495c24bcdf7e30ffaa1d5d6bdf5483"}
"""Rule -> sha256 of what it appends."""
MAX_BYTES = 64 << 20
"""Larger files of code are not read whole: none is changed."""


def check_code(
    source: Checkpoint,
    out: Checkpoint,
    files: Mapping[str, tuple[int, str]],
    claims: Mapping[str, CodeClaim],
    failures: Failures,
) -> int:
    """Hold every Python file that came along against the source's. ``files``: name -> size and sha256 by the manifest.

    Returns the number of bytes read.
    """
    read = 0
    for name in sorted(claims.keys() - source.auxiliary.keys()):
        failures.add("manifest", f"says that {name} was changed, which the source does not have", file=MANIFEST)
    for name in sorted(n for n in source.auxiliary if n in claims or (n.endswith(".py") and n in files)):
        was = _content(source, name)
        if name not in claims:
            if was is not None and hashlib.sha256(was).hexdigest() != files[name][1]:
                why = "is other code than the source's, and the manifest does not say that it was changed"
                failures.add("code", why, file=name)
            continue
        now = _content(out, name)
        read += len(now or b"")
        if why := _wrong(was, now, claims[name]):
            failures.add("code", why, file=name)
    return read


def _wrong(was: bytes | None, now: bytes | None, claim: CodeClaim) -> str:
    """Why a changed file is not the source's plus what its rule appends; empty if it is."""
    if claim.rule not in KNOWN:
        return f"was changed by a rule that is not known here: {claim.rule!r:.40}"
    if was is None or now is None:
        return "cannot be read on both sides, so what was changed in it is not known"
    if hashlib.sha256(was).hexdigest() != claim.before:
        return "the source's file is not the one that the manifest says was changed"
    if now[: len(was)] != was:
        at = next((i for i, (a, b) in enumerate(zip(now, was, strict=False)) if a != b), len(now))
        return f"differs from the source at byte {at}, before what {claim.rule} appends"
    if hashlib.sha256(now[len(was) :]).hexdigest() != KNOWN[claim.rule]:
        return f"what follows the source's {len(was)} bytes is not what {claim.rule} appends"
    if hashlib.sha256(now).hexdigest() != claim.after:
        return "does not have the sha256 that the manifest says it has after the change"
    return ""


def _content(checkpoint: Checkpoint, name: str) -> bytes | None:
    file = open_optional(checkpoint, name)
    if file is None:
        return None
    try:
        return file.read(0, file.size) if file.size <= MAX_BYTES else None
    finally:
        file.close()
