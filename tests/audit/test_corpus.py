"""The corpus file: what it says, and what is refused with the line, the document and the position."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from truecast.audit import corpus
from truecast.audit.corpus import check_counted_once, read_corpus
from truecast.errors import InputError

HEADER: dict[str, Any] = {
    "schema": "truecast.corpus/1",
    "tokenizer_sha256": "0" * 64,
    "tokenizer_files": {},
    "vocab": 8,
}
DOCUMENT = {"id": "a", "tokens": [1, 2, 3], "scored_from": 1}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_documents_and_header_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "c", {**HEADER, "source": "x"}, DOCUMENT, {"id": "b", "tokens": [7, 0]})
    found = read_corpus(path, 8)
    assert [(d.id, d.tokens.tolist(), d.scored_from, d.scored) for d in found.documents] == [
        ("a", [1, 2, 3], 1, 1),
        ("b", [7, 0], 0, 1),
    ]
    assert (found.tokens, found.source, found.tokenizer_sha256) == (5, "x", "0" * 64)
    assert [d.id for d in read_corpus(path, 8, limit=1).documents] == ["a"]
    assert read_corpus(path, 8, limit=1).sha256 == found.sha256


@pytest.mark.parametrize(
    ("lines", "where", "problem"),
    [
        ([], "", "is empty"),
        ([HEADER], "", "holds no document"),
        (['{"id": "a"'], "line 1", "is no JSON"),
        ([DOCUMENT], "line 1", "first line must be a header"),
        ([{**HEADER, "schema": "truecast.corpus/2"}, DOCUMENT], "line 1", "truecast.corpus/1"),
        ([{**HEADER, "tokenizer_sha256": None}], "line 1", "tokenizer_sha256"),
        ([{**HEADER, "tokenizer_files": {"a": 1}}], "line 1", "tokenizer_files"),
        ([HEADER, DOCUMENT, "{"], "line 3", "is no JSON"),
        ([HEADER, DOCUMENT, ""], "line 3", "is no JSON"),
        ([HEADER, "[" * 100_000], "line 2", "is no JSON"),
        ([HEADER, "9" * 5000], "line 2", "is no JSON"),
        ([HEADER, [1]], "line 2", "is no JSON object"),
        ([HEADER, {"tokens": [1, 2]}], "line 2", '"id"'),
        ([HEADER, DOCUMENT, DOCUMENT], "line 3", "second document has the id 'a'"),
        ([HEADER, {"id": "a", "tokens": []}], "document 'a' in .*line 2", "is empty"),
        ([HEADER, {"id": "a", "tokens": [1]}], "document 'a'", "has one token"),
        ([HEADER, {"id": "a", "tokens": "12"}], "document 'a'", "no list"),
        (
            [HEADER, {"id": "a", "tokens": [1, 8]}],
            "document 'a'",
            "token id 8 at position 1 is outside the vocabulary of 8",
        ),
        ([HEADER, {"id": "a", "tokens": [-1, 1]}], "document 'a'", "token id -1 at position 0"),
        ([HEADER, {"id": "a", "tokens": [10**4000, 1]}], "document 'a'", r"token id 10{10,30}\.\.\."),
        ([HEADER, {"id": "a", "tokens": [1, True]}], "document 'a'", "position 1 is no whole number"),
        ([HEADER, {"id": "a", "tokens": [1, 1.5]}], "document 'a'", "position 1 is no whole number"),
        ([HEADER, {"id": "a", "tokens": [1, 2], "scored_from": 1}], "document 'a'", "nothing is scored"),
        ([HEADER, {"id": "a", "tokens": [1, 2], "scored_from": "0"}], "document 'a'", '"scored_from"'),
    ],
)
def test_what_is_no_corpus_is_refused(tmp_path: Path, lines: list[Any], where: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read_corpus(write(tmp_path / "c", *lines), 8)
    assert caught.value.exit_code == 2
    caught.match(where)


def test_a_huge_line_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 200)
    path = write(tmp_path / "c", HEADER, DOCUMENT, {"id": "b", "tokens": [1] * 100})
    with pytest.raises(InputError, match="line 3: is longer than 200 bytes"):
        read_corpus(path, 8)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot open"):
        read_corpus(tmp_path / "none", 8)


@pytest.mark.parametrize("what", ["pipe", "/dev/zero"])
def test_a_file_that_never_ends(tmp_path: Path, what: str) -> None:
    path = Path(what) if what.startswith("/") else tmp_path / what
    if not path.exists():
        os.mkfifo(path)
    with pytest.raises(InputError, match="no regular file"):
        read_corpus(path, 8)


@pytest.mark.parametrize("others", [[[1, 2, 3]], [[1, 2, 3, 4, 5]], [[0, 1], [1, 2, 3, 4], [2, 2]]])
def test_no_position_counts_twice(tmp_path: Path, others: list[list[int]]) -> None:
    lines = [{"id": f"o{i}", "tokens": tokens} for i, tokens in enumerate(others)]
    found = read_corpus(write(tmp_path / "c", HEADER, *lines, DOCUMENT), 8)
    with pytest.raises(InputError, match=r"'a' and 'o.'|'o.' and 'a'"):
        check_counted_once(found)


def test_turns_of_one_conversation_are_documents_of_their_own(tmp_path: Path) -> None:
    """The second goes on where the first ends; the third shares the prompt only."""
    lines = [DOCUMENT, {"id": "b", "tokens": [1, 2, 3, 4, 5], "scored_from": 2}, {"id": "c", "tokens": [1, 2, 7]}]
    check_counted_once(read_corpus(write(tmp_path / "c", HEADER, *lines), 8))
