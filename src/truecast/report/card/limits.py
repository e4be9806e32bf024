"""What the card does not show, and what limits what it shows: as the records themselves say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from truecast.report.card.audits import audit_remarks
from truecast.report.card.content import Block, Code, Listing, Words, heading
from truecast.report.card.loads import load_remarks
from truecast.report.card.record import Record
from truecast.report.card.scored import eval_remarks

_WITHOUT: Mapping[str, Words] = {
    "audit": ("The KL to the source was not measured (", Code("truecast audit"), ")."),
    "eval": ("No task was run (", Code("truecast eval"), ")."),
    "bench": ("Speed was not measured (", Code("truecast bench"), ")."),
    "launch": ("No deployment was planned (", Code("truecast launch"), ")."),
}
_REMARKS = {"audit": audit_remarks, "eval": eval_remarks, "bench": load_remarks}


def limits(records: Sequence[Record]) -> Iterator[Block]:
    """The section: what was not measured for this checkpoint, then the warnings of all records."""
    present = {record.kind for record in records if not record.label}
    items: list[Words] = [words for kind, words in _WITHOUT.items() if kind not in present]
    for record in records:
        items += _REMARKS.get(record.kind, _none)(record)
    yield heading(2, "Limitations")
    if items:
        yield Listing(tuple(dict.fromkeys(items)))
    else:
        yield Listing((("None that the records name.",),))


def _none(record: Record) -> Iterator[Words]:
    return iter(())
