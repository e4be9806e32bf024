from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truecast.checkpoint.files import LocalOpener
from truecast.errors import InputError
from truecast.models.tokenizer_json import JsonTokenizer, load_tokenizer_json

tokenizers = pytest.importorskip("tokenizers")


def byte_level() -> JsonTokenizer:
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return JsonTokenizer(backend)


TOKENIZER = byte_level()


@given(st.text())
def test_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text() | st.text("é😀\ufffd "))
def test_streaming_gives_the_text(text: str) -> None:
    stream = TOKENIZER.stream()
    assert "".join([*map(stream.feed, TOKENIZER.encode(text)), stream.finish()]) == text


def test_streaming_waits_for_a_whole_character() -> None:
    stream = TOKENIZER.stream()
    assert [stream.feed(i) for i in TOKENIZER.encode("é😀")] == ["", "é", "", "", "", "😀"]


def test_blanks_between_words_are_kept_where_a_text_does_not_begin_with_one() -> None:
    from tokenizers import decoders, models, pre_tokenizers

    backend = tokenizers.Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1}, "▁a"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = JsonTokenizer(backend)
    stream = tokenizer.stream()
    assert "".join(map(stream.feed, [0, 1, 1, 0])) == tokenizer.decode([0, 1, 1, 0]) == "a b b a"


def test_specials_are_spelled_out_and_unknown_ids_replaced() -> None:
    end = TOKENIZER.vocab - 1
    assert TOKENIZER.decode([*TOKENIZER.encode("a"), end, TOKENIZER.vocab, -1]) == "a<|end|>\ufffd\ufffd"
    assert TOKENIZER.encode("a\ud800") == TOKENIZER.encode("a\ufffd")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(TOKENIZER._backend.to_str())
    assert load_tokenizer_json(LocalOpener(tmp_path), "x").encode("hé") == TOKENIZER.encode("hé")
    for bad in ("", "{}", "[" * 10_000, '{"model": {"type": "BPE"}}'):
        path.write_text(bad)
        with pytest.raises(InputError, match="is no tokenizer"):
            load_tokenizer_json(LocalOpener(tmp_path), "x")
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(InputError, match="more than"):
        load_tokenizer_json(LocalOpener(tmp_path), "x")


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model": {"merges": ["z z"]}}, "is no tokenizer"),  # the package panics
        ({"model": {"unk_token": "<unk>"}}, "cannot encode"),
        ({"pre_tokenizer": _split("(a|a)*$")}, "cannot encode"),  # another panic, of its regular expressions
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 1000}}, "1,000 times longer"),
        ({"decoder": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 1000}}, "1,000 times longer"),
        (
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 3,
                }
            },
            "1,000 times longer",
        ),
    ],
)
def test_a_hostile_file_is_an_input_error(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    whole = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "z": 1}, [])).to_str())
    model = whole["model"] | change.pop("model", {})
    (tmp_path / "tokenizer.json").write_text(json.dumps({**whole, **change, "model": model}))
    with pytest.raises(InputError, match=problem):
        load_tokenizer_json(LocalOpener(tmp_path), "x").encode("a" * 40 + "b")


def test_settings_of_batches_neither_cut_nor_pad_a_text(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(TOKENIZER._backend.to_str())
    backend.enable_truncation(3)
    backend.enable_padding(length=40)
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    text = "longer than three"
    assert load_tokenizer_json(LocalOpener(tmp_path), "x").encode(text) == TOKENIZER.encode(text)
