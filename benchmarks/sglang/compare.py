"""One table of all runs: does it load, is it repeatable, and how far is it from the model and from native MXFP4."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.sglang import loading
from benchmarks.sglang.client import Scores
from benchmarks.sglang.runs import Run
from truecast.engines.sglang.fixes import FIXES

STATES = ("applied", "not needed", "stock is right", "unknown version", "unavailable", "off")


@dataclass
class Outcome:
    """What one server did. ``error``: why there are no scores. ``read_calls``: :func:`.loading.read_calls` when ready."""

    run: Run
    ready_seconds: float | None = None
    scores: Scores | None = None
    again: Scores | None = None
    error: str = ""
    log: str = ""
    fixes: dict[str, str] = field(default_factory=dict)
    read_calls: dict[str, int] = field(default_factory=dict)


def fix_states(log: str, names: Sequence[str] = tuple(fix.name for fix in FIXES)) -> dict[str, str]:
    """State of each fix by the plug-in's start-up table in a server's log."""
    found = {}
    for name in names:
        for line in re.sub(r"\x1b\[[0-9;]*m", "", log).splitlines():
            if hit := re.search(rf"(?<![\w-]){name}(?![\w-])\W+({'|'.join(STATES)})\b", line):
                found[name] = hit[1]
    return found


def reason(log: str) -> str:
    """The last exception of a log, or its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\[.*?\] )?[\w.]*(Error|Exception|SystemExit|truecast)\b.*:", line)]
    return (errors or lines or ["no log"])[-1][:300]


def distance(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean and largest absolute difference of log-probabilities, their mean difference, and how many are equal."""
    a, b = (np.concatenate([np.asarray(d, np.float64) for d in side]) for side in (ours, theirs))
    gap = a - b
    return {
        "mean": float(np.abs(gap).mean()),
        "max": float(np.abs(gap).max()),
        "nll": float(-gap.mean()),  # positive: ours finds the text less likely
        "equal": int((gap == 0).sum()),
        "of": len(gap),
    }


def divergence(reference: Sequence[Any], ours: Sequence[Any]) -> float | None:
    """Mean KL(reference || ours) in nats over all positions of the whole-vocabulary prompts."""
    total, count = 0.0, 0
    for p, q in zip(reference, ours, strict=False):
        a, b = np.asarray(p, np.float64), np.asarray(q, np.float64)
        b = np.where(np.isfinite(b), b, -100.0)
        total, count = total + float((np.exp(a) * (a - b)).sum()), count + len(a)
    return total / count if count else None


def same_answers(a: Scores, b: Scores) -> str:
    """``8/8``: greedy answers that agree in every token."""
    return f"{sum(x == y for x, y in zip(a.answers, b.answers, strict=False))}/{len(a.answers)}"


def agreement(a: Scores, b: Scores) -> str:
    """What agrees in every bit: ``all``, or how many documents and answers, and where the first others differ."""
    if a.same_bits(b):
        return "all"
    same = [x == y for x, y in zip(a.scored, b.scored, strict=True)]
    parts = [f"{sum(same)}/{len(same)} documents", f"answers {same_answers(a, b)}"]
    for document, (x, y) in enumerate(zip(a.scored, b.scored, strict=True)):
        if x != y:
            first = next(i for i, (p, q) in enumerate(zip(x, y, strict=True)) if p != q)
            parts.append(f"no. {document} from token {first + 1} of {len(x) + 1}")
    return "; ".join(parts[:5])


def row(
    outcome: Outcome, native: Scores | None, references: Mapping[str, Scores], twin: Scores | None
) -> dict[str, Any]:
    """All that is said of one run."""
    run, scores = outcome.run, outcome.scores
    out: dict[str, Any] = {
        "run": run.name,
        "ready_s": outcome.ready_seconds,
        "fixes": outcome.fixes,
        "error": outcome.error,
        "read_calls": outcome.read_calls,
        "load_filter": loading.filtered(outcome.log),
    }
    if run.must_fail:
        out["failed_as_it_must"] = bool(scores is None and re.search(run.must_fail, outcome.log))
    if scores is None:
        return out
    out["first_s"], out["accepted"] = scores.first_seconds, scores.accepted
    out["repeats"] = agreement(scores, outcome.again) if outcome.again else None
    if twin is not None:
        out["same_bits_as"] = {run.same_as: agreement(scores, twin)}
    if native is not None:
        out["answers_as_mxfp4"] = same_answers(scores, native)
    if scores.scored:
        reference = references.get(run.reference)
        out["vs_reference"] = distance(scores.scored, reference.scored) if reference else None
        out["vs_mxfp4"] = distance(scores.scored, native.scored) if native and native.scored else None
        out["kl"] = divergence(reference.full, scores.full) if reference and scores.full else None
    return out


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else "nan" if math.isnan(value) else format(value, form)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """For a terminal and for docs: Markdown."""
    head = (
        "run | ready s | repeats bit for bit | mean / max abs dlogp to the model | NLL difference | KL | "
        "mean / max to MXFP4 (equal) | answers as MXFP4 | plug-in applied"
    )
    lines = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    for r in rows:
        ready = _number(r["ready_s"], ".0f")
        applied = ", ".join(n for n, state in r["fixes"].items() if state == "applied") or "-"
        if r["error"]:
            note = {True: "fails as it must: ", False: "**FAILED OTHERWISE**: ", None: "**FAILED**: "}[
                r.get("failed_as_it_must")
            ]
            lines.append(f"| {r['run']} | {ready} | {note}{r['error'].replace('|', '/')} | | | | | | {applied} |")
            continue
        near, native = r.get("vs_reference"), r.get("vs_mxfp4")
        same = "".join(f"; as {name}: {what}" for name, what in r.get("same_bits_as", {}).items())
        accepted = f"; {r['accepted']:.2f} tokens a step" if r["accepted"] else ""
        cells = [
            r["run"] + ("; **did not fail**" if "failed_as_it_must" in r else ""),
            ready,
            (r["repeats"] or "-") + same,
            f"{near['mean']:.4f} / {near['max']:.3f}" if near else "-",
            f"{near['nll']:+.5f}" if near else "-",
            _number(r.get("kl"), ".2e"),
            f"{native['mean']:.4f} / {native['max']:.3f} ({native['equal']}/{native['of']})" if native else "-",
            r.get("answers_as_mxfp4", "-") + accepted,
            applied,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
