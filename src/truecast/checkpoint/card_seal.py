"""The last lines of a README.md that truecast wrote: a comment with hashes, by which an edit of it is noticed.

    <!-- truecast.card/1
    sha256  records/audit.json        one line a file that the card is made from
    sha256 -->                        of every byte above this line

A README.md without the comment, or with another hash, is somebody's own and is never overwritten.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

SCHEMA = "truecast.card/1"
CARD = "README.md"
RECORDS = "records"
"""The folder beside the card that holds the records it is made from."""
MAX_BYTES = 1 << 26
"""No card is larger."""

_FILE = r"truecast\.json|records/[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*\.json"
RECORD_NAME = re.compile(_FILE)
"""Names that a card lists."""
_SEAL = re.compile(rf"<!-- {re.escape(SCHEMA)}\n((?:[0-9a-f]{{64}}  (?:{_FILE})\n)*)([0-9a-f]{{64}}) -->\n")


def seal(text: str, files: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a card. ``files``: name relative to the card -> sha256 of what it is made from."""
    listed = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted((files or {}).items()))
    above = f"{text.rstrip()}\n\n<!-- {SCHEMA}\n{listed}".encode()
    return above + f"{hashlib.sha256(above).hexdigest()} -->\n".encode()


def sealed_files(data: bytes) -> dict[str, str] | None:
    """Name -> sha256 of the files that a card lists; None where truecast did not write these bytes."""
    start = data.rfind(f"<!-- {SCHEMA}\n".encode())
    if start < 0 or len(data) > MAX_BYTES:
        return None
    found = _SEAL.fullmatch(data[start:].decode("utf-8", "replace"))
    if found is None:
        return None
    end = len(data) - len(f"{found[2]} -->\n")
    if hashlib.sha256(data[:end]).hexdigest() != found[2]:
        return None
    lines = [line.split("  ", 1) for line in found[1].splitlines()]
    return {name: sha256 for sha256, name in lines}
