"""The seal of a card: what is ours is recognised, and an edit of a single byte is noticed."""

from __future__ import annotations

import pytest

from truecast.checkpoint.card_seal import seal, sealed_files

FILES = {"truecast.json": "a" * 64, "records/eval.native.2.json": "b" * 64}
TEXT = "# Title\n\nwords\n"


def test_there_and_back() -> None:
    assert sealed_files(seal(TEXT, FILES)) == FILES
    assert sealed_files(seal(TEXT)) == {}
    assert seal(TEXT, FILES) == seal(TEXT, dict(reversed(FILES.items())))
    assert seal(TEXT).decode().startswith(TEXT)


def test_every_byte_counts() -> None:
    data = seal(TEXT, FILES)
    for i in range(len(data)):
        assert sealed_files(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]) is None, i
    for other in (data + b"\n", data[:-1], b"x" + data, data.replace(b"\n", b"\r\n"), b"", b"# Mine\n", data * 2):
        assert sealed_files(other) is None


@pytest.mark.parametrize(
    "name", ["../x.json", "records/../x.json", "/etc/passwd", "records/x", "records/a--> x.json", "x.json"]
)
def test_no_name_leads_out(name: str) -> None:
    assert sealed_files(seal(TEXT, {name: "a" * 64})) is None
