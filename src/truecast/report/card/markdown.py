"""Blocks as Markdown. Text out of records can be nothing but text: each character that means something becomes an entity."""

from __future__ import annotations

import re
from collections.abc import Sequence

from truecast.report.card.content import (
    Block,
    Code,
    Details,
    Fence,
    Heading,
    Inline,
    Label,
    Listing,
    Paragraph,
    Table,
    Words,
)

_SPECIAL = re.compile(
    r"[\\`*\[\]<>|~$&#!@{}]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # a _ within a word means nothing
    r"|:(?=//)|(?<=www)\."  # links
    r"|^[-+=]+(?=\s|$)|^\d{1,9}(?=[.)](?:\s|$))",  # lists and underlines
    re.IGNORECASE,
)
_NOT_CODE = re.compile(r"[`|\\$<>&]|^\s|\s$|^$")
"""What a code span in a table cannot hold, or what a hub's Markdown would take for mathematics."""


def as_markdown(blocks: Sequence[Block]) -> str:
    """The text, with a blank line between blocks and one line break at its end."""
    return "\n\n".join(map(_block, blocks)) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(level, words):
            return f"{'#' * level} {_words(words)}"
        case Paragraph(words, quote):
            return ("> " if quote else "") + _words(words)
        case Details(summary, inner):
            return f"<details><summary>{summary}</summary>\n\n{as_markdown(inner)}\n</details>"
        case Listing(items):
            return "\n".join(f"- {_words(item)}" for item in items)
        case Fence(lines):
            text = "\n".join("".join(_plain(part) for part in line) for line in lines)
            ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            return f"{ticks}bash\n{text}\n{ticks}"
        case Table(align, head, rows):
            rule = "|".join("---:" if side == "r" else "---" for side in align)
            return "\n".join([_row(head), f"|{rule}|", *map(_row, rows)])


def _row(cells: Sequence[Words]) -> str:
    return "".join(f"| {text} " if (text := _words(cell)) else "| " for cell in cells) + "|"


def _words(words: Words) -> str:
    return "".join(map(_inline, words))


def _inline(part: Inline) -> str:
    if isinstance(part, Code):
        return f"`{part.text}`"
    if isinstance(part, str):
        return part
    if isinstance(part, Label):
        return _escaped(part.text)
    if part.code and not _NOT_CODE.search(part.text):
        text = f"`{part.text}`"
    else:
        text = _escaped(part.text)
    return f"[{text}]({part.link})" if part.link else text


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: "".join(f"&#{ord(c)};" for c in found[0]), text)


def _plain(part: Inline) -> str:
    return part if isinstance(part, str) else part.text


def plain(words: Words) -> str:
    """Words without any mark-up."""
    return "".join(map(_plain, words))
