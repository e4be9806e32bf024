"""Audits on the card: KL to the source with floor and excess, how each was made, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from truecast.report.card.columns import ABSENT, Row, numbered, row, setups, with_interval
from truecast.report.card.content import Inline, Words
from truecast.report.card.record import Record
from truecast.report.card.server import server_words
from truecast.report.words import percent


def check_audit(record: Record, source: str) -> None:
    """Raises: InputError where a figure is missing or contradicts another, or the reference is not this source.

    ``source``: fingerprint of the checkpoint's source.
    """
    for key in ("reference", "candidate", "corpus", "kl", "top1"):
        record.object(key)
    reference = record.get("reference", "fingerprint")
    if reference is not None and reference != source:
        raise record.bad("is not the source that this checkpoint was made from", "reference", "fingerprint")
    exact = not served(record)
    mean = record.number("kl", "mean", **({"low": 0.0} if exact else {}))
    for key in ("kl", "excess"):
        if not record.get(key):
            continue
        record.estimate((key, "mean"), (key, "interval"))
    if record.get("floor") and exact:
        record.number("floor", "mean", low=0.0)
    if record.get("floor") and record.get("excess"):
        floor, excess = record.number("floor", "mean"), record.number("excess", "mean")
        if abs(mean - floor - excess) > 1e-9 + 1e-6 * abs(mean):
            raise record.bad("is not the KL less the floor", "excess", "mean")
    if record.get("identical") is True and mean != 0:
        raise record.bad("is not 0, and the weights are said to be identical", "kl", "mean")
    record.estimate(("top1", "agreement"), ("top1", "interval"), low=0.0, high=1.0)
    if record.count("corpus", "documents") < 1 or record.count("corpus", "scored") < 1:
        raise record.bad("names no document or no position", "corpus")


def served(record: Record) -> bool:
    """Was it measured through a server?"""
    return record.get("measures") is not None


def audit_setups(records: Sequence[Record]) -> list[list[Record]]:
    """Audits by the same means on the same documents, together."""
    return setups(records, lambda r: [r.get("corpus", "sha256"), r.get("corpus", "limit"), r.get("estimator")])


def audit_rows(records: Sequence[Record], columns: Sequence[str]) -> Iterator[Row]:
    """KL with its interval, the noise floor, the excess, and agreement of the first choice."""
    found = audit_setups(records)
    for number, same in enumerate(found):
        mark = numbered(number, len(found))
        how = "served" if served(same[0]) else "exact"
        least = ", at least" if same[0].get("estimator", "name") == "lower" else ""
        yield row(f"KL to the source ({how}), nats/token{least}{mark}", same, columns, _kl)
        yield row(f"its noise floor{mark}", same, columns, _floor)
        yield row(f"excess over the floor{mark}", same, columns, _excess)
        yield row(f"same first choice{mark}", same, columns, _first_choice)


def _equal(record: Record) -> bool:
    """Did both sides give the same probabilities throughout? A KL is nowhere negative, so its mean says so."""
    return not served(record) and record.number("kl", "mean") == 0


def _kl(record: Record) -> Words:
    if _equal(record):
        return record.figure("kl", "mean"), " at every position"
    return with_interval(record, ("kl", "mean"), ("kl", "interval"))


def _first_choice(record: Record) -> Words:
    if _equal(record):
        return (record.figure("top1", "agreement", words=percent),)
    return with_interval(record, ("top1", "agreement"), ("top1", "interval"), percent)


def _floor(record: Record) -> Words:
    return (record.figure("floor", "mean"),) if record.get("floor") else (ABSENT,)


def _excess(record: Record) -> Words:
    if _equal(record):
        return ("none",)
    return with_interval(record, ("excess", "mean"), ("excess", "interval")) if record.get("excess") else (ABSENT,)


def audit_how(record: Record, mark: str) -> Words:
    """How an audit was made, in a sentence."""
    words: list[Inline] = [record.name, f", audit{mark}: "]
    if served(record):
        words += [
            "through ",
            *server_words(record, "candidate"),
            ". ",
            record.text("estimator", "kl"),
            *_covered(record),
        ]
        words += ["; floor: "]
        words += [record.text("estimator", "floor") if record.get("estimator", "floor") else "not measured", "; "]
        words += ["text: ", record.text("sampled", "how"), ". "]
    elif record.get("identical"):
        words += ["the decoded weights are identical, so nothing had to be measured. "]
    else:
        words += ["exact, over the whole vocabulary, by truecast's reference model in ", record.text("dtype"), " on ",
                  record.text("device"), "; activations rounded to: ", record.text("activations"), "; KV cache to: ",
                  record.text("kv"), ". "]  # fmt: skip
    return (
        *words, record.counted("corpus", "scored"), " positions of ", record.counted("corpus", "documents"),
        " documents. Unit of sampling: document.",
    )  # fmt: skip


def _covered(record: Record) -> Words:
    """How much of the vocabulary a server gave, and the bounds on KL that follow."""
    words: list[Inline] = []
    if record.get("estimator", "top") is not None:
        words += ["; ", record.counted("estimator", "top"), " most probable tokens a position"]
    if record.get("covered", "mean") is not None:
        words += [", which hold ", record.figure("covered", "mean", words=percent), " of the source's probability"]
    for key, what in (("lower", "lower"), ("upper", "upper")):
        at = ("measures", key, "candidate")
        if record.get(*at, "mean") is not None:
            words += [f"; {what} bound ", *with_interval(record, (*at, "mean"), (*at, "interval"))]
    return tuple(words)


def audit_remarks(record: Record) -> Iterator[Words]:
    """Warnings of the audit's own report."""
    if record.get("warnings") is not None:
        for i in range(len(record.array("warnings"))):
            yield record.name, ", audit: ", record.text("warnings", i), "."
    elif record.get("kl", "warning") is not None:
        yield record.name, ", audit: ", record.text("kl", "warning"), "."
