"""Text with a free licence from Debian packages: fetched, unpacked, and read as documents.

Each source is one package and a function that reads its documents. SOURCES.md names version and licence of each.
"""

from __future__ import annotations

import gzip
import html.parser
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Documents = Iterator[tuple[str, str]]
"""Pairs of a name (unique within its source) and the text."""


@dataclass(frozen=True, slots=True)
class Source:
    """A package and how to read it. ``packages`` are fetched and unpacked into one folder."""

    name: str
    packages: tuple[str, ...]
    licence: str
    read: Callable[[Path], Documents]


def fetch(source: Source, folder: Path) -> Path:
    """Download and unpack with Debian's own tools, once. Returns where the source's files lie."""
    unpacked = folder / source.name
    if unpacked.exists():
        return unpacked
    debs = folder / f"{source.name}.debs"
    debs.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *source.packages], cwd=debs, check=True, capture_output=True)
    partial = folder / f"{source.name}.partial"
    for deb in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg", "-x", deb, partial], check=True)
    partial.rename(unpacked)
    return unpacked


def versions(source: Source, folder: Path) -> list[str]:
    """``package version`` of what was fetched, read off the files' names."""
    names = sorted(path.name for path in (folder / f"{source.name}.debs").glob("*.deb"))
    return [" ".join(name.split("_")[:2]).replace("%3a", ":") for name in names]


def _novels(root: Path) -> Documents:
    """Jane Austen's six novels by chapter. R keeps them as compressed character vectors, a string per line."""
    data = next(root.rglob("janeaustenr/data/Rdata.rdb")).read_bytes()
    position = 0
    while position < len(data):
        reader = zlib.decompressobj()
        raw = reader.decompress(data[position + 4 :])  # a big-endian length comes first
        position = len(data) - len(reader.unused_data)
        lines = [m.decode("utf-8", "replace") for m in _r_strings(raw)]
        title = lines[0].title()
        chapters = re.split(r"\n(?=(?:CHAPTER|Chapter)\s+[IVXLC\d]+)", "\n".join(lines))
        for number, chapter in enumerate(chapters):
            yield f"{title} {number}", _unwrap(chapter)


def _r_strings(raw: bytes) -> Iterator[bytes]:
    """The strings of a serialized R character vector: flags ``00 04 00 09`` (or 08), a length, the bytes."""
    position = raw.index(b"\x00\x00\x00\x10") + 8
    while position + 8 <= len(raw) and raw[position : position + 2] == b"\x00\x04" and raw[position + 3] == 9:
        length = int.from_bytes(raw[position + 4 : position + 8], "big")
        yield raw[position + 8 : position + 8 + length]
        position += 8 + length


def _scripture(root: Path) -> Documents:
    """The King James Bible by chapter, through the package's own reader."""
    reader, library = root / "usr/bin/bible", root / "usr/lib"
    listed = subprocess.run([reader, "-p", library, "-f", "gen1:1-rev22:21"], capture_output=True, check=True)
    chapters: dict[str, list[str]] = {}
    for line in listed.stdout.decode("latin-1").splitlines():
        place, _, verse = line.partition(" ")
        chapters.setdefault(place.partition(":")[0], []).append(verse.strip())
    for name, verses in chapters.items():
        yield name, "\n".join(verses)


def _jargon(root: Path) -> Documents:
    text = gzip.decompress(next(root.rglob("jargon.txt.gz")).read_bytes()).decode("utf-8", "replace")
    paragraphs = [_unwrap(re.sub(r"(?m)^ +", "", p)) for p in re.split(r"\n{2,}", text)]
    for number, (_, entries) in enumerate(_grouped("entries", paragraphs, 4000)):
        yield f"entries {number}", entries


def _devil(root: Path) -> Documents:
    text = gzip.decompress(next(root.rglob("devil.dict.dz")).read_bytes()).decode("utf-8", "replace")
    yield from _grouped("entries", [_unwrap(p) for p in re.split(r"\n\n(?=[A-Z][A-Z]+)", text)], 3000)


def _grouped(name: str, paragraphs: list[str], size: int) -> Documents:
    """Neighbouring short entries joined into documents of about ``size`` characters."""
    held: list[str] = []
    for paragraph in paragraphs:
        held.append(paragraph.strip())
        if sum(map(len, held)) > size:
            yield f"{name} {held[0][:24]}", "\n\n".join(held)
            held = []
    if held:
        yield f"{name} {held[0][:24]}", "\n\n".join(held)


def _unwrap(text: str) -> str:
    """Lines of a paragraph joined; a blank line or an indented line starts a new one."""
    return re.sub(r"(?<=[^\n])\n(?=[^\s])", " ", text)


def _rst(pattern: str) -> Callable[[Path], Documents]:
    def read(root: Path) -> Documents:
        for path in sorted(root.rglob(pattern)):
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
            yield path.relative_to(root).as_posix(), re.sub(r"(?m)^\.\. (?:_|image|index|toctree).*$", "", text)

    return read


def _pod(root: Path) -> Documents:
    for path in sorted(root.rglob("*.pod")):
        if path.stem in ("perltoc", "perluniprops", "perlapi", "perlintern") or "delta" in path.stem:
            continue
        text = path.read_text("utf-8", "replace")
        text = re.sub(r"(?m)^=(?:head\d|item|over|back|cut|for|begin|end|encoding|pod)\b ?", "", text)
        yield path.stem, re.sub(r"[A-Z]<+ ?([^<>|]*\|)?([^<>]*?) ?>+", r"\2", text)


def _pages(*patterns: str) -> Callable[[Path], Documents]:
    def read(root: Path) -> Documents:
        for pattern in patterns:
            for path in sorted(root.rglob(pattern)):
                page = _Page()
                page.feed(path.read_text("utf-8", "replace"))
                yield path.relative_to(root).as_posix(), page.text()

    return read


class _Page(html.parser.HTMLParser):
    """The words of a page: navigation, scripts and heads left out, a line for each block."""

    _SILENT = frozenset(("script", "style", "nav", "head", "svg", "button", "form", "select"))
    _BLOCK = frozenset(
        ("p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "li", "tr", "pre", "dt", "dd", "br", "table", "blockquote")
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.silent = 0
        self.verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count what is silent or verbatim; break the line before a block."""
        self.silent += tag in self._SILENT
        self.verbatim += tag == "pre"
        if tag in self._BLOCK:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """Undo the count; break the line after a block."""
        self.silent = max(0, self.silent - (tag in self._SILENT))
        self.verbatim = max(0, self.verbatim - (tag == "pre"))
        if tag in self._BLOCK:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        """Keep the words; newlines only where the page shows them."""
        if not self.silent:
            self.parts.append(data if self.verbatim else re.sub(r"\s+", " ", data))

    def text(self) -> str:
        """All of it."""
        return "".join(self.parts)


SOURCES = (
    Source("austen", ("r-cran-janeaustenr",), "public domain (novels, 1811-1818); MIT (package)", _novels),
    Source("kjv", ("bible-kjv-text", "bible-kjv"), "public domain (text); GPL-2+ (program)", _scripture),
    Source("jargon", ("jargon-text",), "public domain", _jargon),
    Source("devil", ("dict-devil",), "public domain", _devil),
    Source("python", ("python3.11-doc",), "PSF-2.0", _rst("_sources/**/*.rst.txt")),
    Source("sqlite", ("sqlite3-doc",), "public domain", _pages("usr/share/doc/sqlite3/**/*.html")),
    Source("postgresql", ("postgresql-doc-15",), "PostgreSQL", _pages("html/*.html")),
    Source("perl", ("perl-doc",), "Artistic or GPL-1+", _pod),
    Source("git", ("git-doc",), "GPL-2", _rst("git-doc/**/*.txt")),
    Source("linux", ("linux-doc-6.1",), "GPL-2", _rst("Documentation/**/*.rst.gz")),
    Source(
        "rust",
        ("rust-doc",),
        "MIT or Apache-2.0",
        _pages(
            "html/book/*.html",
            "html/reference/**/*.html",
            "html/embedded-book/**/*.html",
            "html/rustc/*.html",
            "html/nomicon/*.html",
            "html/rust-by-example/**/*.html",
            "html/cargo/**/*.html",
            "html/std/*/index.html",
        ),
    ),
    Source("debian-reference", ("debian-reference-en",), "GPL-2+", _rst("debian-reference.en.txt.gz")),
    Source("developers-reference", ("developers-reference",), "GPL-2+", _rst("_sources/*.rst.txt")),
)
