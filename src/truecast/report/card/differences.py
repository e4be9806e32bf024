"""Comparisons on the card: the difference, its interval, and the effect that could have been seen. Never one alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from truecast.report.card.content import Figure, Label, Words
from truecast.report.card.loads import level_of
from truecast.report.card.record import Record
from truecast.report.card.scored import task_of
from truecast.report.words import points, points_up, upward

_ABOUT = {"bench": "load tests", "audit": "audits"}
KINDS = ("eval", "bench", "audit")
_RATES = {"stream": "tok/s per stream", "aggregate": "aggregate tok/s"}


def check_comparison(record: Record, records: Sequence[Record]) -> tuple[Record, Record]:
    """The records that it compares. Raises: InputError where they are not among those given, or their figures differ."""
    if record.get("kind") not in KINDS:
        raise record.bad(f"is none of {', '.join(KINDS)}", "kind")
    a, b = (_find(record, side, records) for side in ("a", "b"))
    {"eval": _check_evals, "bench": _check_loads, "audit": _check_audits}[record.string("kind")](record, a, b)
    return a, b


def _check_evals(record: Record, a: Record, b: Record) -> None:
    """Raises: InputError where the difference is not that of the two scores, or says more than the evals hold."""
    record.same(record.number("b", "score") - record.number("a", "score"), "difference", "mean")
    record.estimate(("difference", "mean"), ("difference", "interval"), low=-1.0, high=1.0)
    most = min(side.count("scores", "scored_problems") for side in (a, b))
    if record.count("problems") > most:
        raise record.bad(f"is more than the {most:,} that both records scored", "problems")
    _no_less_than_zero(
        record,
        ("difference", "se"),
        ("power", "detectable"),
        ("power", "margin_in_reach"),
        ("equivalence", "smallest_margin"),
    )


def _check_loads(record: Record, a: Record, b: Record) -> None:
    """Raises: InputError where a ratio is not that of the two load tests' runs."""
    for i in range(len(record.array("levels"))):
        for name in _RATES:
            place = ("levels", i, "figures", name)
            if record.get(*place) is None:
                continue
            logs = [_mean_log(side, record.count("levels", i, "concurrency"), name) for side in (a, b)]
            record.same(math.exp(logs[1] - logs[0]), *place, "ratio")
            record.estimate((*place, "ratio"), (*place, "interval"), low=0.0)
            _no_less_than_zero(record, *((*place, key) for key in ("detectable", "smallest_margin", "margin_in_reach")))


def _mean_log(load: Record, concurrency: int, name: str) -> float:
    at = ("levels", level_of(load, concurrency) or 0, "figures", name, "runs")
    runs = [load.number(*at, i, low=1e-12) for i in range(len(load.array(*at)))]
    return math.fsum(map(math.log, runs)) / len(runs)


def _check_audits(record: Record, a: Record, b: Record) -> None:
    """Raises: InputError where the difference is not that of the two KLs."""
    if record.get("paired"):
        said, expected = record.number("paired", "difference", "mean"), b.number("kl", "mean") - a.number("kl", "mean")
        if not math.isclose(said, expected, rel_tol=1e-6, abs_tol=1e-9):
            raise record.bad(
                f"is {said:.12g}, and the two KLs differ by {expected:.12g}", "paired", "difference", "mean"
            )
        record.estimate(("paired", "difference", "mean"), ("paired", "difference", "interval"))
    _no_less_than_zero(record, ("detectable",))


def _no_less_than_zero(record: Record, *paths: Sequence[str | int]) -> None:
    for path in paths:
        if record.get(*path) is not None:
            record.number(*path, low=0.0)


def difference_words(record: Record, a: Record, b: Record) -> Iterator[Words]:
    """Sentences on what B is against A."""
    yield from {"eval": _evals, "bench": _loads, "audit": _audits}[record.string("kind")](record, a.name, b.name)
    if record.get("warnings") is not None:
        for i in range(len(record.array("warnings"))):
            about = task_of(record) if record.get("kind") == "eval" else (_ABOUT[record.string("kind")],)
            yield *about, ", compared: ", record.text("warnings", i), "."


def _factor(record: Record, *path: str | int) -> Figure:
    """1 and the share: what a rate is multiplied or divided by."""
    factor = 1 + record.number(*path)
    return record.derived(upward(factor), factor, "1 + the value", *path)


def _evals(record: Record, a: Label, b: Label) -> Iterator[Words]:
    head: Words = (
        *task_of(record),
        ": ",
        b,
        " less ",
        a,
        ": ",
        record.figure("difference", "mean", words=points),
        " points",
    )
    ends = record.interval("difference", "interval", words=points)
    if ends is None:
        yield *head, ". There is no interval, so nothing is shown either way."
        return
    se = record.figure("difference", "se", words=lambda x: points(x)[1:])
    margin = record.figure("equivalence", "smallest_margin", words=points_up)
    reach = record.figure("power", "margin_in_reach", words=points_up)
    yield (
        *head, " (95% interval ", *ends, "; standard error ", se, "; ", record.counted("problems"), " problems)."
        " A difference of ", record.figure("power", "detectable", words=points_up), " points would have been found with 80%"
        " power. Equivalence is shown for margins above ", margin,
        " points; of two that are equal, above ", reach, " with 80% power.",
    )  # fmt: skip


def _loads(record: Record, a: Label, b: Label) -> Iterator[Words]:
    for i in range(len(record.array("levels"))):
        at = record.counted("levels", i, "concurrency")
        for name in _RATES:
            place = ("levels", i, "figures", name)
            if record.get(*place) is None:
                continue
            head: Words = (
                f"{_RATES[name]}, ",
                at,
                " concurrent: ",
                b,
                " is ",
                record.figure(*place, "ratio"),
                " times ",
                a,
            )
            ends = record.interval(*place, "interval")
            if ends is None:
                yield *head, ". There is no interval, so nothing is shown either way."
                continue
            yield (
                *head, ", by the geometric means of the runs (95% interval over runs ", *ends, "). A factor of ",
                _factor(record, *place, "detectable"), " either way would have been found with 80% power. Equivalence is"
                " shown for margins above a factor of ", _factor(record, *place, "smallest_margin"), " either way; of two"
                " that are equal, above ", _factor(record, *place, "margin_in_reach"), " with 80% power.",
            )  # fmt: skip


def _audits(record: Record, a: Label, b: Label) -> Iterator[Words]:
    if not record.get("paired"):
        yield "KL of ", b, " and of ", a, ": no positions were kept of both, so their difference has no interval."
        return
    at = ("paired", "difference")
    head: Words = ("KL of ", b, " less that of ", a, ": ", record.figure(*at, "mean"), " nats per token")
    ends = record.interval(*at, "interval")
    if ends is None:
        yield *head, ". There is no interval, so nothing is shown either way."
        return
    least: Words = ()
    if record.get("detectable") is not None:
        least = (
            " A difference of ",
            record.figure("detectable", words=upward),
            " would have been found with 80% power.",
        )
    yield *head, " (95% interval ", *ends, ").", *least


def _find(record: Record, side: str, records: Sequence[Record]) -> Record:
    kind = record.string("kind")
    described = "candidate" if kind == "audit" else "server"
    sha256 = record.get(side, "sha256")
    found = [
        other
        for other in records
        if other.kind == kind
        and sha256 in (None, other.sha256)
        and other.get(described) == record.get(side, described)
        and _same(record, side, other)
    ]
    if not found:
        raise record.bad(
            f"is none of the records given: its file, server and figures are in none of --{kind}'s files", side
        )
    if sha256 is None and len({other.label for other in found}) > 1:
        places = " or ".join(other.where for other in found)
        raise record.bad(f"may be {places}, which it does not tell apart: compare again", side)
    return found[0]


def _same(record: Record, side: str, other: Record) -> bool:
    """Does the comparison hold the figures of this record?"""
    kind = record.get("kind")
    if kind == "audit":
        return _equal(record.number(side, "kl", "mean"), other.number("kl", "mean"))
    if kind == "eval":
        if record.get("task") != other.get("task") or record.get("settings") != other.get("settings"):
            return False
        left = record.get("left_out")
        return (isinstance(left, dict) and any(left.values())) or _equal(
            record.number(side, "score"), other.number("scores", "score")
        )
    for i in range(len(record.array("levels"))):
        j = level_of(other, record.count("levels", i, "concurrency"))
        if j is None:
            return False
        for name in _RATES:
            said = record.get("levels", i, "figures", name)
            if said is not None and not _equal(
                record.number("levels", i, "figures", name, side), other.number("levels", j, "figures", name, "value")
            ):
                return False
    return True


def _equal(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
