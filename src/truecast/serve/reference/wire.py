"""What goes over the wire: JSON that any text fits into, and server-sent events."""

from __future__ import annotations

import json
from typing import Any

DONE = b"data: [DONE]\n\n"


def json_bytes(document: Any) -> bytes:
    """JSON in ASCII: half a surrogate pair, which a request may hold, has no UTF-8."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode("ascii")


def event(document: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json_bytes(document) + b"\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The ``usage`` object."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}
