"""What an eval leaves behind, ``truecast.eval/1``, read as input that nobody vouches for.

    task       a string or an object: which problems, which prompt, which scorer; equal on both sides of a comparison
    settings   an object: what changes answers (temperature, max_tokens, samples, ...); equal too, key by key
    server     an object: what the server says of itself
    problems   [{id, cluster?, samples: [{correct, truncated, empty, error, tokens, seed}]}]

``correct`` is true, false, or a share from 0 to 1; with an ``error`` (text) the sample is not scored. ``cluster`` names
problems that were drawn together, such as the questions on one passage. ``tokens`` and ``seed`` are not read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from truecast.errors import InputError

SCHEMA = "truecast.eval/1"
_AGAIN = "give the eval.json that `truecast eval` wrote"


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer that was scored. ``correct``: from 0 to 1. ``binary``: it was scored right or wrong."""

    correct: float
    binary: bool
    truncated: bool
    empty: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """``samples`` are the scored ones; ``errors`` is how many were not, for a server's or a scorer's fault."""

    id: str
    cluster: str | None
    samples: tuple[Sample, ...]
    errors: int


@dataclass(frozen=True, slots=True)
class Record:
    """One run of a task at one server. ``where``: the file, for messages."""

    where: str
    task: Any
    settings: Mapping[str, Any]
    server: Mapping[str, Any]
    problems: Mapping[str, Problem]


def parse_record(document: Mapping[str, Any], where: str) -> Record:
    """A document of ``truecast eval``. Raises: InputError naming the field that is missing or senseless."""
    if document.get("schema") != SCHEMA:
        raise InputError(f"schema is not {SCHEMA}", where=where, fix=_AGAIN)
    task = document.get("task")
    if not isinstance(task, (str, dict)) or not task:
        raise _bad("is neither a name nor an object", where, "task")
    problems: dict[str, Problem] = {}
    for index, entry in enumerate(_list(document.get("problems"), where, "problems")):
        problem = _problem(entry, where, f"problems[{index}]")
        if problem.id in problems:
            raise _bad(f"{problem.id!r} came before", where, f"problems[{index}].id")
        problems[problem.id] = problem
    if len({p.cluster is None for p in problems.values()}) > 1:
        raise _bad("some have a cluster and some have none", where, "problems")
    return Record(
        where, task, _object(document, "settings", where), _object(document, "server", where, optional=True), problems
    )


def _problem(entry: Any, where: str, place: str) -> Problem:
    if not isinstance(entry, dict):
        raise _bad("is no object", where, place)
    name, cluster = entry.get("id"), entry.get("cluster")
    if not isinstance(name, str) or not name:
        raise _bad("is no text", where, f"{place}.id")
    if cluster is not None and not isinstance(cluster, str):
        raise _bad("is no text", where, f"{place}.cluster")
    samples, errors = [], 0
    for index, sample in enumerate(_list(entry.get("samples"), where, f"{place}.samples")):
        at = f"{place}.samples[{index}]"
        if not isinstance(sample, dict):
            raise _bad("is no object", where, at)
        if sample.get("error") is not None:
            errors += 1
        else:
            samples.append(_sample(sample, where, at))
    return Problem(name, cluster, tuple(samples), errors)


def _sample(sample: Mapping[str, Any], where: str, place: str) -> Sample:
    correct = sample.get("correct")
    if not isinstance(correct, (bool, int, float)) or not 0 <= correct <= 1:
        raise _bad("is neither true, false nor a share from 0 to 1", where, f"{place}.correct")
    flags = [sample.get(name) for name in ("truncated", "empty")]
    for name, flag in zip(("truncated", "empty"), flags, strict=True):
        if not isinstance(flag, bool):
            raise _bad("is neither true nor false", where, f"{place}.{name}")
    return Sample(float(correct), correct in (0, 1), bool(flags[0]), bool(flags[1]))


def _object(document: Mapping[str, Any], key: str, where: str, optional: bool = False) -> dict[str, Any]:
    value = document.get(key, {} if optional else None)
    if not isinstance(value, dict):
        raise _bad("is no object", where, key)
    return value


def _list(value: Any, where: str, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _bad("is no list with entries", where, place)
    return value


def _bad(problem: str, where: str, place: str) -> InputError:
    return InputError(f"{place} {problem}", where=where, fix=_AGAIN)
