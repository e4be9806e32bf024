from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from tests.models.k3_vocabulary import NAMED, ranks, write_tokenizer
from truecast.errors import InputError
from truecast.models.kimi_k3.tokenizer import K3Tokenizer, open_tokenizer

BASE = len(ranks())
TOKENIZER = K3Tokenizer(ranks(), {BASE + slot: name for slot, name in NAMED.items()})
TEXT = st.text() | st.text("the mesag012<|>opencls \n中文é😀'", max_size=200)

PUBLISHED = (  # the pattern of Kimi-K2 and K3, in one piece, to hold ours against
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
JUDGE = tiktoken.Encoding(
    "judge", pat_str=PUBLISHED, mergeable_ranks=ranks(), special_tokens={f"<|x{i}|>": BASE + i for i in range(256)}
)


@given(TEXT)
def test_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(TEXT)
def test_ids_are_tiktokens(text: str) -> None:
    assert TOKENIZER.encode(text) == JUDGE.encode_ordinary(text)


@given(st.lists(st.sampled_from([*NAMED.values(), "<|reserved_token_300|>", " ", "a"])).map("".join))
def test_spelling_a_special_token_never_gives_one(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert all(i < BASE for i in ids)
    assert TOKENIZER.decode(ids) == text


@given(st.lists(st.integers(-3, TOKENIZER.vocab + 3)))
def test_streaming_gives_what_decoding_gives(ids: list[int]) -> None:
    stream = TOKENIZER.stream()
    pieces = [stream.feed(i) for i in ids]
    assert "".join([*pieces, stream.finish()]) == TOKENIZER.decode(ids)


def test_streaming_waits_for_a_whole_character() -> None:
    stream = TOKENIZER.stream()
    first, *rest = TOKENIZER.encode("😀")
    assert rest, "one id is no test"
    assert stream.feed(first) == ""
    assert "".join(map(stream.feed, rest)) == "😀"


def test_specials_lie_above_the_ranks_and_unnamed_ones_are_reserved() -> None:
    assert TOKENIZER.base == BASE
    assert TOKENIZER.vocab == BASE + 256
    for slot, name in NAMED.items():
        assert TOKENIZER.special(name) == BASE + slot
        assert TOKENIZER.decode([BASE + slot]) == name
    assert TOKENIZER.special(f"<|reserved_token_{BASE + 8}|>") == BASE + 8
    with pytest.raises(InputError, match="no special token"):
        TOKENIZER.special("<|im_end|>")


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("a\ud800b")) == "a\ufffdb"


@pytest.mark.parametrize("text", ["a" * 60_000, " " * 60_000, "x y" * 150_000], ids=["run", "blanks", "long"])
def test_long_text_is_cut_as_published(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    pieces = [text[i : i + 400_000] for i in range(0, len(text), 400_000)]
    if " y" not in text:
        pieces = [text[i : i + 25_000] for i in range(0, len(text), 25_000)]
    assert ids == [i for piece in pieces for i in JUDGE.encode_ordinary(piece)]


def test_files_are_read(tmp_path: Path) -> None:
    vocabulary = write_tokenizer(tmp_path)
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.vocab == vocabulary
    assert tokenizer.specials == TOKENIZER.specials
    assert tokenizer.encode("the message") == TOKENIZER.encode("the message")


def edit_ranks(folder: Path, old: str, new: str) -> None:
    path = folder / "tiktoken.model"
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("AA== 0\n", "", "not 0 to n-1"),
        ("AA== 0\n", "AA== zero\n", "line 1"),
        ("AA== 0\n", "A 0\n", "line 1"),
        ("AA== 0\n", "AA== 0 0\n", "line 1"),
        ("AQ== 1\n", "AA== 1\n", "line 2"),
        ("AA== 0\n", "AAAA 0\n", "byte 0"),
        ("AA== 0\n", f"AA== {'9' * 5000}\n", "line 1"),
        ("bWVzc2FnZQ== 265\n", "", "not 0 to n-1"),
    ],
)
def test_a_bad_rank_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    write_tokenizer(tmp_path)
    edit_ranks(tmp_path, old, new)
    with pytest.raises(InputError, match=message):
        open_tokenizer(tmp_path)


def test_a_truncated_rank_file_contradicts_the_config(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    path = tmp_path / "tiktoken.model"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    with pytest.raises(InputError, match="of one release"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"added_tokens_decoder": []}',
        '{"added_tokens_decoder": {"x": {"content": "a"}}}',
        '{"added_tokens_decoder": {"300": {}}}',
        '{"added_tokens_decoder": {"300": {"content": 7}}}',
        '{"added_tokens_decoder": {"300": {"content": ""}}}',
        '{"added_tokens_decoder": {"300": {"content": "\\u001b[2J"}}}',
        json.dumps({"added_tokens_decoder": {"300": {"content": "((" * 500_000}}}),
        '{"added_tokens_decoder": {"300": {"content": "<|same|>"}, "301": {"content": "<|same|>"}}}',
    ],
)
def test_a_bad_config_is_an_input_error(tmp_path: Path, config: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(InputError):
        open_tokenizer(tmp_path)


def test_a_token_longer_than_any_model_learns_is_refused() -> None:
    with pytest.raises(InputError, match="100,000 bytes"):
        K3Tokenizer({**ranks(), b"x" * 100_000: len(ranks())}, {})


def test_files_beyond_the_limit_are_not_read(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with (tmp_path / "tiktoken.model").open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(InputError, match="more than"):
        open_tokenizer(tmp_path)


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenization_kimi.py").write_text("raise SystemExit('was run')")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert open_tokenizer(tmp_path).encode("a") == [97]
