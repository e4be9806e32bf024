from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.making import json_file, raw_file, tensor_file
from truecast.checkpoint import header
from truecast.checkpoint.header import TensorInfo, encode_header, nbytes_of, read_header
from truecast.errors import InputError


def parse(content: bytes, size: int | None = None) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    return read_header(lambda start, end: content[start:end], "x.safetensors", len(content) if size is None else size)


def refuses(content: bytes, *words: str, size: int | None = None) -> None:
    with pytest.raises(InputError) as caught:
        parse(content, size)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "x.safetensors" in message
    assert len(message) < 20_000
    for word in words:
        assert word in message


def entry(dtype: Any = "U8", shape: Any = (2,), offsets: Any = (0, 2)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def theirs_refuse_too(content: bytes) -> bool:
    try:
        safetensors.deserialize(content)
    except Exception:
        return True
    return False


def test_a_good_file_gives_what_it_holds() -> None:
    content = tensor_file({"b": ("F32", [2], b"\1" * 8), "a": ("U8", [3, 1], b"abc")}, {"format": "pt"})
    tensors, metadata = parse(content)
    start = len(content) - 11
    assert tensors == {
        "b": TensorInfo("b", "F32", (2,), "x.safetensors", start, start + 8),
        "a": TensorInfo("a", "U8", (3, 1), "x.safetensors", start + 8, start + 11),
    }
    assert list(tensors) == ["b", "a"]
    assert metadata == {"format": "pt"}


@pytest.mark.parametrize("metadata", [None, {}])
def test_metadata_may_be_absent_or_empty(metadata: dict[str, str] | None) -> None:
    assert parse(tensor_file({"a": ("U8", [1], b"x")}, metadata))[1] == {}


def test_tensors_come_in_offset_order_whatever_the_header_order() -> None:
    tensors, _ = parse(json_file({"z": entry(offsets=[2, 4]), "y": entry()}, b"1234"))
    assert list(tensors) == ["y", "z"]


def test_empty_tensors_and_an_empty_file_are_no_fault() -> None:
    assert parse(json_file({}))[0] == {}
    document = {"e": entry(shape=[0, 5], offsets=[2, 2]), "s": entry(shape=[], offsets=[2, 3]), "a": entry()}
    assert set(parse(json_file(document, b"123"))[0]) == {"a", "e", "s"}


@pytest.mark.parametrize("size", range(8))
def test_too_short_for_a_length(size: int) -> None:
    refuses(b"\0" * size, "too few")


def test_header_longer_than_the_file() -> None:
    refuses(raw_file(b"{}", length=3), "beyond the file")


def test_header_longer_than_the_limit_is_not_even_read() -> None:
    def read(start: int, end: int) -> bytes:
        assert end <= 8, "the header was read"
        return struct.pack("<Q", 100_000_001)

    with pytest.raises(InputError, match="limit of 100000000"):
        read_header(read, "x.safetensors", 1 << 40)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1])
def test_header_length_of_64_bits(length: int) -> None:
    refuses(raw_file(b"{}", length=length), "limit")


def test_data_cut_off_at_every_byte() -> None:
    content = tensor_file({"a": ("F32", [2], b"\1" * 8), "b": ("U8", [3], b"abc")})
    for size in range(len(content)):
        refuses(content[:size])


def test_truncated_data_says_so_and_names_the_tensor() -> None:
    refuses(tensor_file({"a": ("U8", [3], b"abc")})[:-1], "a in x.safetensors", "truncated", "download")


def test_bytes_after_the_last_tensor() -> None:
    refuses(tensor_file({"a": ("U8", [3], b"abc")}) + b"!!", "2 bytes after the last tensor")


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"", "start with '{'"),
        (b"[]", "start with '{'"),
        (b" {}", "start with '{'"),
        (b"\xef\xbb\xbf{}", "start with '{'"),
        (b"{", "not valid"),
        (b"{}}", "not valid"),
        (b'{"a\xff": {}}', "not valid"),
        (b'{"a": \0}', "not valid"),
        (b"{'a': 1}", "not valid"),
        (b"{\x80\x04pickle", "not valid"),
    ],
)
def test_what_is_no_utf8_json_object(raw: bytes, word: str) -> None:
    refuses(raw_file(raw), word)


@pytest.mark.parametrize("nested", [b"[" * 200_000, b'{"a":' * 200_000])
def test_a_nested_bomb(nested: bytes) -> None:
    refuses(raw_file(b'{"a":' + nested), "not valid")


def test_an_integer_of_a_million_digits() -> None:
    refuses(
        raw_file(b'{"a": {"dtype": "U8", "shape": [' + b"9" * 1_000_000 + b'], "data_offsets": [0, 2]}}'), "not valid"
    )


def test_duplicate_tensor_names() -> None:
    one = json.dumps(entry())
    refuses(raw_file(f'{{"a": {one}, "a": {one}}}'.encode(), b"12"), "duplicate name 'a'")


def test_duplicate_keys_within_an_entry() -> None:
    raw = b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}'
    refuses(raw_file(raw, b"12"), "duplicate name 'dtype'")


def test_a_name_with_a_lone_surrogate() -> None:
    raw = b'{"a\\ud800": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}'
    assert theirs_refuse_too(raw_file(raw, b"12"))
    refuses(raw_file(raw, b"12"), "not valid")


def test_any_unicode_name_is_kept() -> None:
    for name in ("モデル.重み", "a b", 'quo"te', "back\\slash", "", "\U0001f600"):
        assert list(parse(json_file({name: entry()}, b"12"))[0]) == [name]


@pytest.mark.parametrize("metadata", [[], "pt", 1, {"format": 1}, {"format": None}, {"a": {"b": "c"}}])
def test_metadata_that_maps_no_strings_to_strings(metadata: Any) -> None:
    refuses(json_file({"__metadata__": metadata}), "__metadata__")


@pytest.mark.parametrize("value", [None, 1, "U8", [], {}, {"dtype": "U8"}, {"dtype": "U8", "shape": [2]}])
def test_entries_that_lack_something(value: Any) -> None:
    refuses(json_file({"a": value}, b"12"), "a in x.safetensors", "lacks")


@pytest.mark.parametrize("dtype", ["u8", "FLOAT", "", "F8", None, 8, [], {}])
def test_unknown_dtypes(dtype: Any) -> None:
    refuses(json_file({"a": entry(dtype)}, b"12"), "a in x.safetensors", "unknown dtype")


NOT_NATURAL = [-1, -2, 2.0, 1e30, "2", None, True, [2], {}, float("nan"), float("inf")]


@pytest.mark.parametrize("value", NOT_NATURAL)
def test_shapes_that_are_no_natural_numbers(value: Any) -> None:
    refuses(json_file({"a": entry(shape=[value])}, b"12"), "a in x.safetensors", "natural")


@pytest.mark.parametrize("value", NOT_NATURAL)
@pytest.mark.parametrize("place", [0, 1])
def test_offsets_that_are_no_natural_numbers(value: Any, place: int) -> None:
    offsets: list[Any] = [0, 2]
    offsets[place] = value
    refuses(json_file({"a": entry(offsets=offsets)}, b"12"), "a in x.safetensors", "natural")


@pytest.mark.parametrize("shape", [None, 2, "2", {"0": 2}])
def test_a_shape_that_is_no_list(shape: Any) -> None:
    refuses(json_file({"a": entry(shape=shape)}, b"12"), "natural")


@pytest.mark.parametrize("offsets", [None, 2, [], [0], [0, 1, 2], {"0": 2}])
def test_offsets_that_are_no_pair(offsets: Any) -> None:
    refuses(json_file({"a": entry(offsets=offsets)}, b"12"), "natural")


@pytest.mark.parametrize(
    ("dtype", "shape", "offsets"),
    [
        ("U8", [3], [0, 2]),
        ("U8", [1], [0, 2]),
        ("F32", [2], [0, 2]),
        ("U8", [], [0, 2]),
        ("U8", [2, 0], [0, 2]),
        ("U8", [2], [2, 0]),
        ("U8", [1 << 63, 2], [0, 2]),
        ("U8", [1 << 32, 1 << 32], [0, 0]),  # 2^64: zero, where 64 bits wrap around
        ("U8", [(1 << 64) + 2], [0, 2]),
        ("F64", [(1 << 61) + 1], [0, 8]),
    ],
)
def test_size_and_shape_disagree(dtype: str, shape: list[int], offsets: list[int]) -> None:
    refuses(json_file({"a": entry(dtype, shape, offsets)}, b"12345678"[: max(offsets)]), "a in x.safetensors")


@pytest.mark.parametrize("digits", [30, 4000])
def test_numbers_far_beyond_64_bits(digits: int) -> None:
    """Products of such numbers are too long even to print."""
    for shape, offsets in (([10**digits] * 4, [0, 2]), ([2], [0, 10**digits]), ([10**digits, 0], [0, 0])):
        refuses(json_file({"a": entry(shape=shape, offsets=offsets)}, b"12"), "a in x.safetensors")


@pytest.mark.parametrize("rank", [65, 1000, 300_000])
def test_more_dimensions_than_any_library_has(rank: int) -> None:
    refuses(json_file({"a": entry(shape=[1 << 60] * rank)}, b"12"), "a in x.safetensors", f"{rank} dimensions")


@pytest.mark.parametrize(("dtype", "shape", "size"), [("F4", [4, 2], 4), ("F6_E2M3", [4], 3), ("F6_E3M2", [2, 4], 6)])
def test_sub_byte_dtypes_that_fill_whole_bytes(dtype: str, shape: list[int], size: int) -> None:
    tensors, _ = parse(json_file({"a": entry(dtype, shape, [0, size])}, b"\0" * size))
    assert tensors["a"].nbytes == size == nbytes_of(dtype, tuple(shape))


@pytest.mark.parametrize(("dtype", "shape"), [("F4", [3]), ("F4", []), ("F6_E2M3", [2]), ("F6_E3M2", [3])])
def test_sub_byte_dtypes_that_do_not(dtype: str, shape: list[int]) -> None:
    refuses(json_file({"a": entry(dtype, shape, [0, 2])}, b"12"), "whole number of bytes")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([0, 2], [1, 3], "overlaps"),
        ([0, 2], [0, 2], "overlaps"),
        ([0, 2], [3, 5], "hole of 1 bytes"),
        ([1, 3], [3, 5], "hole of 1 bytes"),
        ([0, 2], [2, 4], None),
    ],
)
def test_overlaps_and_holes(first: list[int], second: list[int], words: str | None) -> None:
    content = json_file({"a": entry(offsets=first), "b": entry(offsets=second)}, b"." * second[1])
    assert theirs_refuse_too(content) == (words is not None)
    if words is None:
        parse(content)
    else:
        refuses(content, words)


def test_an_empty_tensor_inside_another_is_an_overlap() -> None:
    refuses(json_file({"a": entry(), "b": entry(shape=[0], offsets=[1, 1])}, b"12"), "overlaps")


def test_offsets_beyond_the_file() -> None:
    refuses(json_file({"a": entry(shape=[1 << 40], offsets=[0, 1 << 40])}, b"12"), "truncated")


# ---- against the safetensors library ---------------------------------------------------------------------------------

NUMPY = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "F16": np.float16,
    "U32": np.uint32, "I32": np.int32, "F32": np.float32, "U64": np.uint64, "I64": np.int64, "F64": np.float64,
}  # fmt: skip

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda n: n != "__metadata__" and n.isprintable()  # a name that steers a terminal is refused, see below
)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
contents = st.dictionaries(names, st.tuples(st.sampled_from(sorted(NUMPY)), shapes), max_size=5)
metadatas = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)


def arrays(content: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {
        name: np.frombuffer(random.integers(0, 2, nbytes_of(dtype, shape), np.uint8).tobytes(), NUMPY[dtype]).reshape(
            shape
        )
        for name, (dtype, shape) in content.items()
    }


@given(contents, metadatas)
@settings(max_examples=60, deadline=None)
def test_reads_what_the_library_writes(
    content: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str]
) -> None:
    written = arrays(content)
    raw = safetensors.numpy.save(written, metadata or None)
    tensors, read_metadata = parse(raw)
    assert read_metadata == metadata
    assert tensors.keys() == written.keys()
    for name, tensor in tensors.items():
        assert (tensor.dtype, tensor.shape) == content[name]
        assert raw[tensor.start : tensor.end] == written[name].tobytes()


@given(contents, metadatas)
@settings(max_examples=60, deadline=None)
def test_the_library_reads_what_we_write(
    content: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str]
) -> None:
    written = arrays(content)
    entries = [(name, dtype, shape) for name, (dtype, shape) in content.items()]
    raw = encode_header(entries, metadata) + b"".join(written[name].tobytes() for name in content)
    read = safetensors.numpy.load(raw)
    assert read.keys() == written.keys()
    for name, array in written.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()
    assert parse(raw)[1] == metadata
    assert list(parse(raw)[0]) == [n for n in content if nbytes_of(*content[n])] or any(
        not nbytes_of(*c) for c in content.values()
    )


def test_the_library_sees_our_metadata(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(encode_header([("a", "U8", (1,))], {"format": "pt"}) + b"x")
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("dtype", sorted(set(header.BITS) - {"F8_E4M3FNUZ", "F8_E5M2FNUZ"}))
def test_the_library_knows_every_dtype_that_we_know(dtype: str) -> None:
    shape = (8,)
    raw = encode_header([("a", dtype, shape)], {}) + b"\0" * nbytes_of(dtype, shape)
    ((name, info),) = safetensors.deserialize(raw)
    assert (name, info["dtype"], tuple(info["shape"])) == ("a", dtype, shape)


def test_encoded_headers_start_the_data_aligned() -> None:
    for count in range(1, 12):
        assert len(encode_header([("n" * count, "U8", (1,))], {})) % 8 == 0


def test_a_header_beyond_the_limit_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "MAX_HEADER_BYTES", 64)
    encode_header([("a", "U8", (1,))], {})
    with pytest.raises(ValueError, match="limit"):
        encode_header([("a", "U8", (1,)), ("b", "U8", (1,))], {})


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "\x1f", "a\u202eb"])
def test_a_name_that_steers_a_terminal_is_refused(name: str) -> None:
    refuses(safetensors.numpy.save({name: np.zeros(1, np.uint8)}), "control characters")
