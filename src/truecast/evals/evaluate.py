"""A task asked of a server: what is missing is asked, what came is kept, and the record is made from what was kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample

from truecast.errors import InputError
from truecast.evals.answers import Answer, answers_of, models_of
from truecast.evals.journal import Journal, Key, write_json
from truecast.evals.record import SCHEMA, parse_record
from truecast.evals.running import Server, run
from truecast.evals.scores import scores
from truecast.evals.tasks.definition import Definition

_MISSING = "never asked"
Tell = Callable[[int, int, int], None]
"""Told answered, failed and all samples, whenever one ends."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user set; None leaves it to the task. ``limit``: only the first so many samples of the data."""

    samples: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    limit: int | None = None


def evaluate(
    definition: Definition,
    server: Server,
    choices: Choices,
    folder: Path,
    described: Mapping[str, Any],
    header: Mapping[str, Any],
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Run or go on with ``definition`` in ``folder``; returns the record, which ``folder/eval.json`` holds too.

    ``described``: what the server says of itself. ``header``: version, command and date, for the record.
    Raises: InputError where nothing was answered; RefusedError where the folder is another run's; KeyboardInterrupt, all
    that was answered kept.
    """
    samples = list(definition.dataset)[: choices.limit]
    seeds = range(definition.samples if choices.samples is None else choices.samples)
    budget = choices.max_tokens or definition.max_tokens
    sampling = [_sampling(definition, choices, seed) for seed in seeds]
    task = {**definition.identity, "first": choices.limit}
    settings = {"samples": len(seeds), "max_tokens": budget, "sampling": _told(sampling)}
    with Journal(folder, {"task": task, "settings": settings, "server": dict(described)}) as journal:
        errors = _ask(definition, server, samples, sampling, budget, journal, tell)
        if not journal.answers:
            most = Counter(errors.values()).most_common(1)
            raise InputError(
                f"nothing was answered: {most[0][0] if most else _MISSING}",
                where=server.url,
                fix="is the server well, does it serve this model, and do prompt and --max-tokens fit its context?",
            )
        problems = _problems(definition, samples, seeds, journal.answers, errors)
        first, models = journal.first, sorted(journal.models)
    record = {
        "schema": SCHEMA,
        **header,
        "task": task,
        "settings": settings,
        "server": first["server"],
        "problems": problems,
        "scores": scores(problems, budget),
    }
    if (changed := _changed(first["server"], described)) and isinstance(record["scores"], dict):
        record["scores"]["warnings"].append(f"the server's {', '.join(changed)} changed between parts of the run")
    if len(models) > 1 and isinstance(record["scores"], dict):
        names = ", ".join(f"{name:.80}" for name in models[:5])
        record["scores"]["warnings"].append(
            f"the replies name {len(models):,} models: {names}: what was measured is a mixture"
        )
    parse_record(record, str(folder / "eval.json"))
    write_json(folder / "eval.json", record)
    return record


def _ask(
    definition: Definition,
    server: Server,
    samples: Sequence[Sample],
    sampling: Sequence[Mapping[str, float]],
    budget: int,
    journal: Journal,
    tell: Tell | None,
) -> dict[Key, str]:
    """Ask for what the journal lacks; returns the errors."""
    pending = {seed: [s for s in samples if (str(s.id), seed) not in journal.answers] for seed in range(len(sampling))}
    errors: dict[Key, str] = {}
    total = len(samples) * len(sampling)

    def finished(sample: EvalSample, seed: int) -> bool:
        found = answers_of(sample, definition.parts)
        key = (str(sample.id), seed)
        if isinstance(found, str):
            errors[key] = found
        else:
            journal.add(key, found, models_of(sample))
        if tell is not None:
            tell(len(journal.answers), len(errors), total)
        return not isinstance(found, str)

    if any(pending.values()):
        settings = {seed: {**given, "max_tokens": budget} for seed, given in enumerate(sampling)}
        if run(definition, pending, settings, server, journal.folder / "logs", finished):
            raise KeyboardInterrupt
    return errors


def _sampling(definition: Definition, choices: Choices, seed: int) -> dict[str, float]:
    given = {"temperature": choices.temperature, "top_p": choices.top_p}
    return {**definition.sampling(seed), **{k: v for k, v in given.items() if v is not None}}


def _told(sampling: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Sampling by runs of seeds: ``[{"seeds": "0", ...}, {"seeds": "1-7", ...}]``."""
    found: list[dict[str, Any]] = []
    for seed, given in enumerate(sampling):
        if found and {k: v for k, v in found[-1].items() if k != "seeds"} == given:
            found[-1]["seeds"] = f"{found[-1]['seeds'].partition('-')[0]}-{seed}"
        else:
            found.append({"seeds": str(seed), **given})
    return found


def _problems(
    definition: Definition,
    samples: Sequence[Sample],
    seeds: Sequence[int],
    answers: Mapping[Key, Sequence[Answer]],
    errors: Mapping[Key, str],
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for sample in samples:
        name = str(sample.id)
        kept = {seed: {a.problem: a for a in answers.get((name, seed), ())} for seed in seeds}
        parts = list(dict.fromkeys(part for by_part in kept.values() for part in by_part)) or [name]
        for part in parts:
            entries = [_entry(kept[seed].get(part), seed, errors.get((name, seed), _MISSING)) for seed in seeds]
            problem: dict[str, Any] = {"id": part}
            if definition.parts:
                problem["cluster"] = name
            found.append({**problem, "samples": entries})
    return found


def _entry(answer: Answer | None, seed: int, error: str) -> dict[str, Any]:
    if answer is None:
        return {"seed": seed, "correct": None, "truncated": False, "empty": False, "error": error, "tokens": None}
    found = asdict(answer)
    del found["problem"]
    return {"seed": seed, **found, "error": None}


def _changed(before: Any, now: Mapping[str, Any]) -> list[str]:
    return (
        sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k)) if isinstance(before, dict) else []
    )
