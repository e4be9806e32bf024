"""What a fix of SGLang is. Each is one file below :mod:`truecast.engines.sglang.fixes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from truecast.engines.sglang.situation import Situation

Sources = Callable[[str], str]
"""The source text of a module by its dotted name, without importing it. Raises: LookupError if there is no such module."""


class Kind(Enum):
    """How a hook meets its target. ``AROUND`` gets the original first; ``REPLACE`` a function or a class in its place."""

    AROUND = "around"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Hook:
    """``target`` is a dotted path as SGLang's hook registry takes it: ``package.module.Class.method``."""

    target: str
    function: Callable[..., Any]
    kind: Kind = Kind.AROUND


@dataclass(frozen=True, slots=True)
class Need:
    """Why a run wants a fix. Where it is ``required`` the server must not start without: it would answer wrongly or not
    at all."""

    why: str
    required: bool


@dataclass(frozen=True, slots=True)
class Fix:
    """One fault of SGLang and what mends it.

    ``name`` is what ``TRUECAST_SGLANG`` takes. ``versions`` are the first one it was written for and the first one too
    late, of dotted numbers: ``("0.5.17", "0.5.24")``. ``need(situation)`` is None where this run does not want it.
    ``faulty(sources)`` tells by the installed source text whether the fault is still there; it raises
    :class:`LookupError` naming what it looked for where the code is so different that nothing can be said.
    ``hooks(situation)`` are put on when it is applied, and ``selftest(situation)`` runs after that, in each process that
    loads the model: it raises :class:`AssertionError` with what came out wrong. Both are asked again for a second model in
    the process, a draft: hooks that are on already stay, so one must be the same object each time, and must not hold what
    is true of one model only. ``settings`` are environment variables of
    this fix and a function each that checks the text and raises :class:`ValueError`.
    """

    name: str
    summary: str
    versions: tuple[str, str]
    need: Callable[[Situation], Need | None]
    faulty: Callable[[Sources], bool]
    hooks: Callable[[Situation], Sequence[Hook]]
    selftest: Callable[[Situation], None]
    settings: Mapping[str, Callable[[str], object]]
