"""Releases of SGLang whose sources were read, and what came in between."""

from __future__ import annotations

import re

from truecast.errors import UsageError

FIRST, LAST = (0, 5, 17), (0, 5, 23)
"""Kimi-K3 is in SGLang from 0.5.17 on; 0.5.17, 0.5.20 and 0.5.23 were read whole, those between where it matters."""
NEWEST = "0.5.23"

SINCE = {"--speculative-draft-kv-cache-dtype": (0, 5, 18)}
"""Arguments that a launch may use and not every release has."""


def version_numbers(text: str) -> tuple[int, ...]:
    """``0.5.20`` or ``0.5.20.post1`` as ``(0, 5, 20)``. Raises: UsageError for a release that is not known."""
    found = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)([.+-]?\w+)*", text)
    numbers = tuple(map(int, found.group(1, 2, 3))) if found else ()
    if not FIRST <= numbers <= LAST:
        raise UsageError(
            f"SGLang {text} is not known here, and its arguments are not guessed",
            fix=f"name one of 0.5.17 to {NEWEST} with --sglang, or a folder with one of them with --site-packages",
        )
    return numbers


def has(argument: str, version: tuple[int, ...]) -> bool:
    """Does this release take the argument?"""
    return version >= SINCE.get(argument, FIRST)
