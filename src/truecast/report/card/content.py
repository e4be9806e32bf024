"""What a card consists of: blocks of words, where every figure knows the record and the place in it that it comes from.

The same blocks become Markdown and HTML. Plain strings are the card's own words and never come from a record; whatever
does is a :class:`Figure`, numbers and texts alike, so that one list traces the whole document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Figure:
    """A value out of a record. ``text``: as the card prints it. ``pointer``: RFC 6901, into the record ``file``.

    ``how``: empty where ``value`` stands at the pointer; else how it was made from what stands there. ``code``: in a
    typewriter's face. ``link``: an address for it.
    """

    text: str
    value: Value
    file: str
    pointer: str
    how: str = ""
    code: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """A word of a command line or a name of a file, by us."""

    text: str


@dataclass(frozen=True, slots=True)
class Label:
    """What the user calls a column: escaped like a text out of a record."""

    text: str


Inline = str | Figure | Code | Label
Words = tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a level from 1 to 3."""

    level: int
    words: Words


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; ``quote``: set off as a note."""

    words: Words
    quote: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table; ``align`` has one of ``l`` and ``r`` a column."""

    align: str
    head: tuple[Words, ...]
    rows: tuple[tuple[Words, ...], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of items."""

    items: tuple[Words, ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """Lines of code, each of which is joined from its words without escaping; none holds a line break."""

    lines: tuple[Words, ...]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks behind a line of words, for what few will read; without a figure in the words."""

    summary: str
    blocks: tuple[Block, ...]


Block = Heading | Paragraph | Table | Listing | Fence | Details


def heading(level: int, *words: Inline) -> Heading:
    """A heading."""
    return Heading(level, words)


def paragraph(*words: Inline) -> Paragraph:
    """A paragraph."""
    return Paragraph(words)


def table(align: str, head: Sequence[Inline | Words], rows: Sequence[Sequence[Inline | Words]]) -> Table:
    """A table whose cells may be single words."""
    return Table(align, tuple(map(_cell, head)), tuple(tuple(map(_cell, row)) for row in rows))


def figures_of(blocks: Sequence[Block]) -> Iterator[Figure]:
    """Every figure, in the order in which a reader meets them."""
    for words in all_words(blocks):
        yield from (part for part in words if isinstance(part, Figure))


def all_words(blocks: Sequence[Block]) -> Iterator[Words]:
    """The words of every block, cell, item and line."""
    for block in blocks:
        match block:
            case Heading(words=words) | Paragraph(words=words):
                yield words
            case Table(head=head, rows=rows):
                yield from head
                for row in rows:
                    yield from row
            case Details(blocks=inner):
                yield from all_words(inner)
            case Listing(items=lines) | Fence(lines=lines):
                yield from lines


def joined(parts: Sequence[Words], between: str = ", ") -> Words:
    """Several words with something between them."""
    found: list[Inline] = []
    for part in parts:
        found += [between, *part] if found else part
    return tuple(found)


def _cell(cell: Inline | Words) -> Words:
    return cell if isinstance(cell, tuple) else (cell,)
