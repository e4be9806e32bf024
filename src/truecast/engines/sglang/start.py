"""What happens when a model is about to be loaded: each fix is decided upon, applied, seen to work and reported."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from truecast.engines.sglang import binary, hooking, reading
from truecast.engines.sglang.choice import chosen
from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.fixes import FIXES
from truecast.engines.sglang.plugin import VARIABLE
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.source import installed
from truecast.errors import RefusedError


class State(Enum):
    """How it stands with one fix."""

    OFF = "off"
    NOT_NEEDED = "not needed"
    RIGHT = "stock is right"
    UNKNOWN = "unknown version"
    UNAVAILABLE = "unavailable"
    APPLIED = "applied"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A fix and its state; ``reason`` says why the run wants it, or why it could not be had."""

    fix: Fix
    state: State
    reason: str = ""
    required: bool = False


_applied: dict[str, list[Hook]] = {}
"""The hooks that are on, by fix. A draft model is loaded after the model, and may want others of the same fix."""
_printed: set[str] = set()


def load_model(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND ``ModelRunner.load_model``; the result is the original's.

    Raises: RefusedError if the checkpoint needs a fix that is not to be had.
    """
    names = chosen(FIXES, os.environ)
    try:
        situation = reading.situation(runner)
    except Exception as error:  # whatever SGLang has become
        raise RefusedError(
            f"which checkpoint is loaded and how cannot be read ({type(error).__name__}: {error}), so it is not known"
            " what it needs",
            where=f"SGLang {reading.version()}",
            fix=f"use a version of SGLang that this truecast knows, or set {VARIABLE}=off",
        ) from error
    outcomes = decide(FIXES, names, situation, installed())
    report = table(situation, outcomes, binary.kernels(situation))
    if situation.tp_rank == 0 and report not in _printed:
        _printed.add(report)
        print(report, file=sys.stderr, flush=True)
    demand(situation, outcomes)
    return original(runner, *args, **kwargs)


def decide(fixes: Iterable[Fix], names: frozenset[str], situation: Situation, sources: Sources) -> list[Outcome]:
    """Apply what is chosen, needed and possible."""
    return [_decide(fix, names, situation, sources) for fix in fixes]


def _decide(fix: Fix, names: frozenset[str], situation: Situation, sources: Sources) -> Outcome:
    need = fix.need(situation)
    if need is None:
        return Outcome(fix, State.NOT_NEEDED)
    if fix.name not in names:
        return Outcome(fix, State.OFF, need.why)
    if not _numbers(fix.versions[0]) <= _numbers(situation.version) < _numbers(fix.versions[1]):
        first, end = fix.versions
        reason = f"for {first} up to, not with, {end}; this is {situation.version}"
        return Outcome(fix, State.UNKNOWN, reason, need.required)
    return _apply(fix, need, situation, sources)


def _apply(fix: Fix, need: Need, situation: Situation, sources: Sources) -> Outcome:
    before = _applied.get(fix.name, [])
    try:
        if not before and not fix.faulty(sources):
            return Outcome(fix, State.RIGHT, need.why, need.required)
        more = [hook for hook in fix.hooks(situation) if hook not in before]
        targets = hooking.put_on(more)
    except LookupError as error:
        return Outcome(fix, State.UNAVAILABLE, str(error), need.required)
    except Exception as error:  # an import that fails, code that will not compile: this fix is not to be had
        return Outcome(fix, State.UNAVAILABLE, f"{type(error).__name__}: {error}", need.required)
    try:
        fix.selftest(situation)
    except Exception as error:  # a kernel may fail in its own ways: whatever it is, the fix does not work here
        hooking.take_off(targets, more)  # not what a model before this one was given
        return Outcome(fix, State.UNAVAILABLE, f"its self-test failed and it was taken off: {error!r}", need.required)
    _applied[fix.name] = before + more
    return Outcome(fix, State.APPLIED, need.why, need.required)


def demand(situation: Situation, outcomes: Iterable[Outcome]) -> None:
    """Stop where a required fix is missing.

    One that the user left out on purpose (state off) is not demanded. Raises: RefusedError.
    """
    lacking = [o for o in outcomes if o.required and o.state in (State.UNKNOWN, State.UNAVAILABLE)]
    if lacking:
        raise RefusedError(
            "; ".join(f"needs the fix {o.fix.name} ({o.fix.summary}), {o.state.value}: {o.reason}" for o in lacking),
            where=f"{situation.model} on SGLang {situation.version}",
            fix=f"use a version of SGLang that the fix is for, or leave it out by name with {VARIABLE} and take"
            " an answer that may be wrong",
        )


def table(situation: Situation, outcomes: Sequence[Outcome], kernels: binary.Finding | None = None) -> str:
    """The report at start: what was applied, what was not and why."""
    title = (
        f"truecast: {'draft model' if situation.is_draft else 'model'} {situation.model}, SGLang {situation.version}"
    )
    quiet = kernels is None or not kernels.wrong
    if quiet and all(outcome.state is State.NOT_NEEDED for outcome in outcomes):
        return f"{title}: none of {len(outcomes)} fixes is needed"
    width = max(len(outcome.fix.name) for outcome in outcomes)
    lines = [title]
    for outcome in outcomes:
        text = f"{outcome.fix.summary}: {outcome.reason}" if outcome.reason else outcome.fix.summary
        lines.append(f"  {outcome.fix.name:<{width}}  {outcome.state.value:<15}  {text}")
    if kernels is not None:
        lines += [f"  {line}" for line in kernels.text.splitlines()]
    return "\n".join(lines)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
