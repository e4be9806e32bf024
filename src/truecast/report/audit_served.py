"""What is said of an audit through servers: the verdict, the estimators, and the section of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from truecast.report.words import as_html, counted, figure, percent

MEASURES = {
    "estimate": "KL, estimate",
    "log_ratio": "log ratio of the text",
    "lower": "KL, lower bound",
    "upper": "KL, upper bound",
}
"""The estimators in the order in which they are shown."""


def verdict(document: Mapping[str, Any]) -> str:
    """What the figures say, in a sentence."""
    kl, excess, floor = document["kl"], document["excess"], document["floor"]
    least = "at least " if document["estimator"]["name"] == "lower" else ""
    cost = f"The deployment costs {least}{figure(kl['mean'])} nats per token{_between(kl['interval'])}"
    if excess is None or floor is None:
        return f"{cost}. No noise floor was measured, so how much of it is the serving stack's is not known."
    above = f"{figure(excess['mean'])} nats per token{_between(excess['interval'])}"
    if excess["above_floor"] is None:
        return f"{cost}; the floor is {figure(floor['mean'])}. One document gives no interval."
    if not excess["above_floor"]:
        return f"{cost}. That cannot be told from the noise floor of {figure(floor['mean'])}: the excess is {above}."
    return f"{cost}, of which the noise floor is {figure(floor['mean'])} and the excess {above}."


def facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How the figures were made, as names and words."""
    estimator, corpus, covered = document["estimator"], document["corpus"], document["covered"]
    kl, bound = document["kl"], document["measures"]["upper"]["candidate"]
    deff = f", design effect {figure(kl['deff'])}" if kl.get("deff") else ""
    assumed = (
        f"holds if no unseen token's log ratio is further than {figure(bound['tail_log_ratio_within'])} from the tail's,"
        f" as in {counted(bound['tail_tokens_seen'], 'token')} of it that the text shows"
        if bound is not None
        else "none: the text shows no token of the tail"
    )
    return [
        ("estimator", f"{estimator['kl']}; {estimator['top']:,} most probable tokens a position"),
        ("unit of sampling", f"{estimator['unit']}: {corpus['documents']:,} with {corpus['scored']:,} positions{deff}"),
        ("noise floor", estimator["floor"] or "not measured"),
        ("text", document["sampled"]["how"]),
        (
            "covered mass",
            f"{percent(covered['mean'])} of the reference's probability, at the worst position {percent(covered['least'])};"
            f" {percent(covered['following'])} of the tokens that follow",
        ),
        ("upper bound", assumed),
        ("reference", _side(document["reference"])),
        ("server", _side(document["candidate"])),
        *([("native server", _side(document["native"]))] if document["native"] else []),
        ("tokenizer", document["tokenizer"]),
    ]


def measures_section(document: Mapping[str, Any]) -> str:
    """The table of estimators, as HTML."""
    rows = []
    for name, words in MEASURES.items():
        sides = [document["measures"][name][side] for side in ("candidate", "floor", "excess")]
        cells = "".join(f"<td>{as_html(_figure(side))}</td>" for side in sides)
        rows.append(f'<tr><th scope="row">{as_html(words)}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{name}</th>' for name in ("nats per token", "server", "floor", "excess"))
    return (
        '<section class="facts"><h2>Estimators</h2><table><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></section>"
    )


def facts_section(document: Mapping[str, Any]) -> str:
    """How the figures were made, and the server's own arguments, as HTML."""
    rows = [*facts(document), *_recorded(document)]
    cells = "".join(f'<tr><th scope="row">{as_html(name)}</th><td>{as_html(words)}</td></tr>' for name, words in rows)
    return f'<section class="facts"><h2>How it was measured</h2><table><tbody>{cells}</tbody></table></section>'


def _recorded(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    corpus = document["corpus"]
    arguments = " ".join(f"{name} {value}".strip() for name, value in document["candidate"]["arguments"].items())
    return [
        ("corpus", f"{corpus['location']}, sha256 {corpus['sha256']}"),
        *([("server's arguments", arguments)] if arguments else []),
        ("date", document["date"]),
        ("truecast", f"{document['truecast']}: {' '.join(document['command'])}"),
    ]


def _figure(side: Mapping[str, Any] | None) -> str:
    return "" if side is None else f"{figure(side['mean'])}{_between(side['interval'])}"


def _between(interval: Any) -> str:
    return f" ({figure(interval[0])} to {figure(interval[1])})" if interval else ""


def _side(side: Mapping[str, Any]) -> str:
    if "engine" not in side:
        return f"checkpoint {side['location']}"
    version = f" {side['version']}" if side["version"] else ""
    engine = "server" if side["engine"] == "unknown" else side["engine"]
    return f"{engine}{version} at {side['location']}, model {side['model']}"
