"""The whole card from its records. Every check comes before the first line, so a bad record leaves nothing written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from truecast.report.card.audits import audit_how, audit_rows, audit_setups, check_audit
from truecast.report.card.cast import changed, check_cast, claim, cost, loses, made_from, name_of, numbers, title_of
from truecast.report.card.columns import Row, columns_of, numbered
from truecast.report.card.content import (
    Block,
    Code,
    Figure,
    Heading,
    Label,
    Listing,
    Words,
    figures_of,
    heading,
    paragraph,
    table,
)
from truecast.report.card.deployment import check_launch, deployment
from truecast.report.card.differences import check_comparison, difference_words
from truecast.report.card.front_matter import front_matter
from truecast.report.card.limits import limits
from truecast.report.card.loads import check_load, load_how, load_rows, load_setups
from truecast.report.card.markdown import as_markdown
from truecast.report.card.proof import again, check_proof, proved
from truecast.report.card.record import THIS, Record
from truecast.report.card.scored import check_eval, eval_how, eval_rows, eval_setups
from truecast.report.card.server import check_format
from truecast.report.card.sources import sources


@dataclass(frozen=True)
class Card:
    """``markdown``: the README.md but for its seal. ``blocks``: the same without front matter. ``figures``: all in it."""

    title: Words
    front: tuple[str, ...]
    blocks: tuple[Block, ...]
    figures: tuple[Figure, ...]
    records: tuple[Record, ...]

    @property
    def markdown(self) -> str:
        """The text."""
        return "\n".join(self.front) + "\n\n" + as_markdown(self.blocks)


def render_card(manifest: Mapping[str, Any]) -> str:
    """Markdown of the card from the manifest alone, as ``convert`` writes it. The same manifest gives the same text."""
    return make_card([Record("manifest", "truecast.json", "truecast.json", manifest)]).markdown


def make_card(records: Sequence[Record], out: Mapping[str, str] | None = None) -> Card:
    """The card. ``records``: the manifest first, then in the order in which the user gave them; ``out``: ``fingerprint`` and
    ``weights`` of the checkpoint, where its shards are at hand.

    The same records give the same card. Raises: InputError for a record that is broken, contradicts itself, or is of
    another checkpoint.
    """
    manifest, rest = records[0], records[1:]
    check_cast(manifest)
    pairs = _checked(manifest, rest, out)
    by_kind = {kind: [r for r in rest if r.kind == kind] for kind in ("verify", "bench", "audit", "eval", "launch")}
    lines, figures = front_matter(manifest, [r for r in by_kind["eval"] if not r.label])
    proof = by_kind["verify"][0] if by_kind["verify"] else None
    blocks: list[Block] = [
        Heading(1, title_of(manifest)),
        paragraph(*made_from(manifest), *claim(manifest)),
        paragraph(*proved(proof)),
    ]
    blocks += _comparison(by_kind)
    blocks += _differences(pairs)
    blocks += changed(manifest)
    blocks += cost(manifest)
    blocks += numbers(manifest)
    for plan in by_kind["launch"]:
        blocks += deployment(plan, any(r.kind in ("bench", "eval", "audit") for r in rest))
    blocks += limits(rest)
    blocks += again(manifest)
    blocks += _licence(manifest)
    blocks += sources(records) if manifest.sha256 else _manifest_only()
    return Card(name_of(manifest), tuple(lines), tuple(blocks), (*figures, *figures_of(blocks)), tuple(records))


def _checked(
    manifest: Record, rest: Sequence[Record], out: Mapping[str, str] | None
) -> list[tuple[Record, Record, Record]]:
    target = manifest.string("target", "format"), manifest.string("target", "dialect")
    for record in rest:
        match record.kind:
            case "verify":
                check_proof(record, manifest, None if out is None else out["fingerprint"])
            case "launch":
                check_launch(record, target)
            case "bench":
                check_load(record)
            case "eval":
                check_eval(record)
            case "audit":
                check_audit(record, manifest.string("source", "fingerprint"))
                if not record.label and record.get("identical") is True and loses(manifest):
                    raise record.bad("is not so: truecast.json records an error of what was quantized", "identical")
                for key, ours in (out or {}).items():
                    if not record.label and record.get("candidate", key) not in (None, ours):
                        raise record.bad(f"is not {THIS}'s: name whose audit it is with LABEL=", "candidate", key)
        if not record.label and record.kind in ("bench", "eval", "audit"):
            check_format(record, "candidate" if record.kind == "audit" else "server", target[0])
    pairs: list[tuple[Record, Record, Record]] = []
    for record in rest:
        if record.kind == "compare":
            a, b = check_comparison(record, rest)
            for other, *sides in pairs:
                if sides == [a, b]:
                    raise record.bad(f"compares what {other.where} compares")
            pairs.append((record, a, b))
    return pairs


def _comparison(by_kind: Mapping[str, Sequence[Record]]) -> Iterator[Block]:
    loads, audits, evals = by_kind["bench"], by_kind["audit"], by_kind["eval"]
    yield heading(2, "Measured")
    if not (loads or audits or evals):
        yield paragraph("Nothing was measured yet: no speed, no KL, no task.")
        return
    columns = columns_of([*loads, *audits, *evals])
    rows: list[Row] = [*load_rows(loads, columns), *audit_rows(audits, columns), *eval_rows(evals, columns)]
    head: list[Words] = [(), *((Label(label or THIS),) for label in columns)]
    yield table("l" + "r" * len(columns), head, rows)
    if loads:
        yield paragraph(
            "Speed: tok/s per stream is the median over requests of the output tokens after the first chunk over the time"
            " from the first token to the last; aggregate is output tokens over the same steady window; seconds to the first"
            " token, of any channel, are the median over requests. Each is the mean over runs, in brackets its 95% interval"
            " (t, unit of sampling: run)."
        )
    if audits:
        yield paragraph(
            "KL: KL(source || checkpoint) of the next token, in nats per token; in brackets the 95% interval. The noise floor"
            " is what rounding noise alone gives, the excess the KL less that."
            + (" A letter marks rows that were measured in different ways." if len(audit_setups(audits)) > 1 else "")
        )
    if evals:
        yield paragraph(
            "Scores: the mean over problems of the mean over their answers, with the 95% interval; errors of server or"
            " scorer are not scored; cut off means that the token budget ended the answer."
        )
    yield heading(3, "How it was measured")
    items: list[Words] = []
    for groups, how in (
        (load_setups(loads), load_how),
        (audit_setups(audits), audit_how),
        (eval_setups(evals), eval_how),
    ):
        for number, group in enumerate(groups):
            items += [how(record, numbered(number, len(groups))) for record in group]
    yield Listing(tuple(items))


def _differences(pairs: Sequence[tuple[Record, Record, Record]]) -> Iterator[Block]:
    if pairs:
        yield heading(2, "Differences")
        yield Listing(tuple(words for record, a, b in pairs for words in difference_words(record, a, b)))


def _licence(manifest: Record) -> Iterator[Block]:
    card = manifest.object("source", "card")
    yield heading(2, "Licence")
    if "license" not in card:
        yield paragraph("The source's card names no licence. Look for one with the source.")
        return
    words: list[Any] = ["That of the source: ", manifest.text("source", "card", "license", code=True)]
    for key, said in (("license_name", ", named "), ("license_link", ", to be read at ")):
        if key in card:
            words += [said, manifest.text("source", "card", key, code=True)]
    yield paragraph(*words, ".")


def _manifest_only() -> Iterator[Block]:
    yield heading(2, "Where the figures come from")
    yield paragraph("Every figure above stands in ", Code("truecast.json"), ".")
