"""The card as one HTML page that opens without a network: the same blocks, with plots of what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from truecast.report.audit_style import STYLE
from truecast.report.card.content import (
    Block,
    Code,
    Details,
    Fence,
    Figure,
    Heading,
    Inline,
    Label,
    Listing,
    Paragraph,
    Table,
    Words,
)
from truecast.report.card.markdown import plain
from truecast.report.card.plots import plots
from truecast.report.card.render import Card
from truecast.report.words import as_html

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
main > h1 { font-size: 1.6rem; } main > h2 { margin: 2rem 0 .5rem; font-size: 1.25rem; } main > h3 { margin: 1.25rem 0 .25rem; }
p, li { max-width: 52rem; } code { font-size: .9em; overflow-wrap: anywhere; }
pre { background: var(--card); border-radius: .5rem; padding: .9rem; overflow: auto; overflow-wrap: normal; }
blockquote { margin: .5rem 0; padding-left: .75rem; border-left: 4px solid var(--rule); color: var(--quiet); }
.wide { overflow: auto; margin: .5rem 0 1rem; overflow-wrap: normal; } .wide table { width: auto; min-width: 50%; }
.wide td, .wide th { vertical-align: top; } .wide .l { text-align: left; min-width: 7rem; } .charts { margin: 1rem 0; }
"""


def render_card_page(card: Card) -> str:
    """HTML of a card. The same card gives the same text."""
    body: list[str] = []
    for block in card.blocks:
        if isinstance(block, Heading) and plain(block.words) == "How it was measured":
            body.append(plots(card.records))
        body.append(_block(block))
    title = as_html(plain(card.title))
    head = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{STYLE}{_STYLE}</style></head><body><main>",
    ]
    return "\n".join([*head, *(part for part in body if part), "</main></body></html>\n"])


def _block(block: Block) -> str:
    match block:
        case Heading(level, words):
            return f"<h{level}>{_words(words)}</h{level}>"
        case Paragraph(words, quote):
            text = f"<p>{_words(words)}</p>"
            return f"<blockquote>{text}</blockquote>" if quote else text
        case Details(summary, inner):
            return f"<details><summary>{as_html(summary)}</summary>{''.join(map(_block, inner))}</details>"
        case Listing(items):
            return "<ul>" + "".join(f"<li>{_words(item)}</li>" for item in items) + "</ul>"
        case Fence(lines):
            text = "\n".join("".join(as_html(plain((part,))) for part in line) for line in lines)
            return f'<pre tabindex="0"><code>{text}</code></pre>'
        case Table():
            return _table(block)


def _table(block: Table) -> str:
    head = "".join(f'<th scope="col" class="{side}">{_words(cell)}</th>' for side, cell in _sides(block, block.head))
    rows = (
        "<tr>" + "".join(f'<td class="{side}">{_words(cell)}</td>' for side, cell in _sides(block, cells)) + "</tr>"
        for cells in block.rows
    )
    shown = f"<thead><tr>{head}</tr></thead>" if any(block.head) and any(map(plain, block.head)) else ""
    return f'<div class="wide" tabindex="0"><table>{shown}<tbody>{"".join(rows)}</tbody></table></div>'


def _sides(block: Table, cells: Sequence[Words]) -> list[tuple[str, Words]]:
    return list(zip(block.align, cells, strict=True))


def _words(words: Words) -> str:
    return "".join(map(_inline, words))


def _inline(part: Inline) -> str:
    match part:
        case str():
            return as_html(part)
        case Code(text):
            return f"<code>{as_html(text)}</code>"
        case Label(text):
            return as_html(text)
        case Figure():
            text = as_html(part.text)
            title = as_html(
                f"{part.file}{part.pointer and '#' + part.pointer}" + (f" ({part.how})" if part.how else "")
            )
            tag = "code" if part.code else "span"
            told = f'<{tag} title="{title}">{text}</{tag}>'
            return f'<a href="{as_html(part.link)}">{told}</a>' if part.link else told
