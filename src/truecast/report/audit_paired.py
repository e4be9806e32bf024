"""Two candidates of one reference: what the paired comparison of their audits says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from truecast.report.words import as_html, figure


def paired_verdict(paired: Mapping[str, Any]) -> str:
    """In a sentence: which of the two costs less, if that can be told."""
    difference, other = paired["difference"], _name(paired["candidates"][1]) + _served(paired)[1]
    mean, ends = difference["mean"], difference["interval"]
    cost = f"{figure(abs(mean))} nats per token {'more' if mean > 0 else 'less'} than {other}"
    if ends is None:
        return f"It costs {cost}. One document gives no interval."
    between = f"95% interval of the difference {figure(ends[0])} to {figure(ends[1])}"
    if not paired["excludes_zero"]:
        return f"It cannot be told from {other}: {between} nats per token."
    return f"It costs {cost} ({between})."


def paired_section(paired: Mapping[str, Any] | None) -> str:
    """The section of the page; empty where nothing was compared."""
    if paired is None:
        return ""
    ratio, ends = paired["ratio"], paired["ratio_interval"]
    known = f", 95% interval {figure(ends[0])} to {figure(ends[1])}" if ends else ""
    rows = [
        *(
            (_where(side) + served, f"{figure(paired[key])} nats per token")
            for side, key, served in zip(paired["candidates"], "ab", _served(paired), strict=True)
        ),
        ("ratio of the two", "" if ratio is None else f"{figure(ratio)}{known}"),
    ]
    cells = "".join(
        f'<tr><th scope="row">{as_html(name)}</th><td>{as_html(words)}</td></tr>' for name, words in rows if words
    )
    return (
        f'<section class="facts"><h2>Against another candidate</h2><p>{as_html(paired_verdict(paired))}</p>'
        f"<table><tbody>{cells}</tbody></table></section>"
    )


def _served(paired: Mapping[str, Any]) -> list[str]:
    """What serving was taken to round on each side, to follow its name; nothing where that is alike."""
    how = [(side.get("activations", "none"), side.get("kv", "none")) for side in paired["candidates"]]
    return ["", ""] if how[0] == how[1] else [f" (activations {a}, KV {kv})" for a, kv in how]


def _name(side: Any) -> str:
    return _where(side).rstrip("/").rsplit("/", 1)[-1] or _where(side)


def _where(side: Any) -> str:
    return str(side.get("location", "")) if isinstance(side, Mapping) else str(side)
