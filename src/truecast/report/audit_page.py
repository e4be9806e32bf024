"""The audit as one HTML page that opens without a network, from its JSON document alone.

No script, and a policy in the page forbids it to fetch anything. Every string of the document is escaped: names come from
checkpoints and corpora of strangers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from truecast.report import audit_charts as charts
from truecast.report import audit_served
from truecast.report.audit_paired import paired_section
from truecast.report.audit_style import STYLE
from truecast.report.words import as_html, counted, figure, percent

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_audit_page(document: Mapping[str, Any]) -> str:
    """HTML of a ``truecast.audit/1`` document. The same document gives the same text."""
    served = "measures" in document
    title = f"{_name(document['candidate'])} against {_name(document['reference'])}"
    drawn = [
        chart(document)
        for chart in (
            charts.distribution,
            charts.by_confidence,
            charts.by_position,
            charts.flips,
            charts.layers,
            charts.documents,
        )
    ]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{as_html(title)}: audit</title><style>{STYLE}</style></head><body><main>",
        f"<h1>{as_html(title)}</h1>",
        f'<p class="quiet">{as_html(_question(document))}</p>',
        f'<p class="verdict">{as_html(audit_served.verdict(document) if served else verdict(document))}</p>',
        *(f'<p class="alert">{as_html(text)}</p>' for text in _warnings(document)),
        f'<ul class="headline">{"".join(_headline(document))}</ul>',
        f'<div class="charts">{"".join(drawn)}</div>' if any(drawn) else "",
        paired_section(document.get("paired")),
        audit_served.measures_section(document) + audit_served.facts_section(document) if served else _facts(document),
        "</main></body></html>\n",
    ]
    return "\n".join(p for p in parts if p)


def verdict(document: Mapping[str, Any]) -> str:
    """What the figures say, in a sentence."""
    if document.get("identical"):
        return "The decoded weights are identical. Nothing is lost, so nothing had to be measured."
    kl, excess = document["kl"], document.get("excess")
    cost = f"{figure(kl['mean'])} nats per token"
    if excess is None:
        return f"The cast costs {cost}. No noise floor was run, so how much of it is rounding noise is not known."
    if excess.get("above_floor") is None:
        return f"The cast costs {cost}, {figure(excess['mean'])} above the noise floor. There is no interval."
    between = _interval(excess["interval"])
    if excess["above_floor"]:
        return (
            f"The cast costs {figure(excess['mean'])} nats per token more than rounding noise (95% interval {between})."
        )
    if excess["interval"][1] < 0:
        return f"The cast costs less than rounding noise: the 95% interval of the excess is {between} nats per token."
    return f"The cost cannot be told from rounding noise: the 95% interval of the excess is {between} nats per token."


def _question(document: Mapping[str, Any]) -> str:
    corpus = document["corpus"]
    if "measures" in document:
        return (
            "KL(reference || server) of the next token's distribution, from log-probabilities that the server gives, at"
            f" {corpus['scored']:,} positions of {counted(corpus['documents'], 'document')}."
        )
    return (
        "KL(reference || candidate) of the next token's distribution, over the whole vocabulary, at"
        f" {corpus['scored']:,} positions of {counted(corpus['documents'], 'document')}."
    )


def _warnings(document: Mapping[str, Any]) -> list[str]:
    found = document.get("warnings", [document["kl"].get("warning")])
    return [f"{text[0].upper()}{text[1:]}." for text in found if text]


def _headline(document: Mapping[str, Any]) -> list[str]:
    kl, floor, excess = document["kl"], document.get("floor"), document.get("excess")
    cards = [_card("mean KL", figure(kl["mean"]), "nats per token", _within(kl.get("interval")))]
    if floor:
        cards.append(_card("noise floor", figure(floor["mean"]), "nats per token", _floor_note(floor)))
    if excess:
        cards.append(
            _card("excess over the floor", figure(excess["mean"]), "nats per token", _within(excess["interval"]))
        )
    top1, perplexity = document.get("top1"), document.get("perplexity")
    if top1:
        ends = top1.get("interval")
        known = f"95% interval {percent(ends[0])} to {percent(ends[1])}" if ends else ""
        cards.append(_card("same first choice", percent(top1["agreement"]), "of tokens", known))
    if perplexity and perplexity.get("ratio") is not None:
        ends = perplexity.get("ratio_interval")
        cards.append(_card("perplexity ratio", figure(perplexity["ratio"], 5), "", _within(ends, 5)))
    return cards


def _floor_note(floor: Mapping[str, Any]) -> str:
    if "seeds" not in floor:
        return str(floor["how"])
    spread = f", sd {figure(floor['sd'])}" if floor.get("sd") is not None else ""
    return f"{counted(len(floor['seeds']), 'seed')} of rounding noise{spread}"


def _card(name: str, number: str, unit: str, note: str) -> str:
    return (
        f'<li><span class="name">{as_html(name)}</span>'
        f'<span class="number">{as_html(number)} <span class="unit">{as_html(unit)}</span></span>'
        f'<span class="small quiet">{as_html(note)}</span></li>'
    )


def _facts(document: Mapping[str, Any]) -> str:
    rows = [(name, words) for name, words in _fact_rows(document) if words]
    cells = "".join(f'<tr><th scope="row">{as_html(name)}</th><td>{as_html(words)}</td></tr>' for name, words in rows)
    return f'<section class="facts"><h2>All figures</h2><table><tbody>{cells}</tbody></table></section>'


def _fact_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    kl, corpus = document["kl"], document["corpus"]
    reverse, perplexity, read = (document.get(key) or {} for key in ("reverse_kl", "perplexity", "read"))
    return [
        ("reference", _where(document["reference"])),
        ("candidate", _where(document["candidate"])),
        ("corpus", _corpus(corpus)),
        ("run on", f"{document['device']}, {document['dtype']}"),
        ("activations, KV cache", f"{document['activations']}, {document['kv']}"),
        ("KL, CR1 interval", _nats(kl.get("cr1"))),
        ("KL, BCa bootstrap", _nats(kl.get("bca"))),
        ("standard error (CR1)", _nats_one(kl.get("se"))),
        ("design effect", f"{figure(kl['deff'])} times the variance of independent tokens" if kl.get("deff") else ""),
        ("median and 99th percentile", _nats([kl["median"], kl["p99"]], "and") if "p99" in kl else ""),
        ("worst 1% of tokens", f"{percent(kl['worst_1_percent_share'])} of the total" if "p99" in kl else ""),
        ("reverse KL", _reverse(reverse)),
        ("perplexity", _perplexity(perplexity)),
        ("read from disk", f"{read['bytes'] / 1e9:,.3f} GB" if read.get("bytes") else ""),
        ("time", f"{document['seconds']:,.0f} s" if document.get("seconds") is not None else ""),
    ]


def _corpus(corpus: Mapping[str, Any]) -> str:
    words = [
        str(corpus.get("location", "")),
        counted(corpus["documents"], "document"),
        f"{corpus['tokens']:,} tokens, {corpus['scored']:,} scored",
        f"sha256 {corpus['sha256']}" if corpus.get("sha256") else "",
    ]
    return ", ".join(w for w in words if w)


def _reverse(reverse: Mapping[str, Any]) -> str:
    if "mean" not in reverse:
        return ""
    known = _within(reverse.get("interval"))
    return f"{figure(reverse['mean'])} nats per token" + (f", {known}" if known else "")


def _perplexity(perplexity: Mapping[str, Any]) -> str:
    if perplexity.get("reference") is None or perplexity.get("candidate") is None:
        return ""
    return f"{figure(perplexity['reference'], 5)} reference, {figure(perplexity['candidate'], 5)} candidate"


def _nats(ends: Sequence[float] | None, between: str = "to") -> str:
    return f"{figure(ends[0])} {between} {figure(ends[1])} nats per token" if ends else ""


def _nats_one(number: float | None) -> str:
    return "" if number is None else f"{figure(number)} nats per token"


def _within(ends: Sequence[float] | None, digits: int = 3) -> str:
    return f"95% interval {figure(ends[0], digits)} to {figure(ends[1], digits)}" if ends else "no interval"


def _interval(ends: Sequence[float]) -> str:
    return f"{figure(ends[0])} to {figure(ends[1])}"


def _name(side: Any) -> str:
    """The last part of where a checkpoint lies; the name of the model that a server has, and where."""
    if isinstance(side, Mapping) and "engine" in side:
        return f"{side['model']} at {side['location']}"
    return _where(side).rstrip("/").rsplit("/", 1)[-1] or _where(side)


def _where(side: Any) -> str:
    return str(side.get("location", "")) if isinstance(side, Mapping) else str(side)
