"""An SGLang command line as a mapping."""

from __future__ import annotations

import pytest

from truecast.errors import UsageError
from truecast.serve.server_arguments import read_arguments
from truecast.serve.server_flags import Flag

FLAGS = {
    spelling: flag
    for flag in (
        Flag(("--tp-size", "--tensor-parallel-size"), True),
        Flag(("--trust-remote-code",), False),
        Flag(("--cuda-graph-bs",), True),
        Flag(("--cuda-graph-max-bs",), True),
    )
    for spelling in flag.spellings
}


@pytest.mark.parametrize("words", [["--tp", "32"], ["--tp-size=32"], ["--tensor-parallel-size", "32"]])
@pytest.mark.parametrize("flags", [None, FLAGS])
def test_one_spelling_of_each(words: list[str], flags: dict[str, Flag] | None) -> None:
    assert read_arguments(words, flags).values == {"--tp-size": "32"}


def test_switches_several_words_and_the_last_one_counts() -> None:
    found = read_arguments(
        ["--tp-size", "8", "--trust-remote-code", "--cuda-graph-bs", "1", "2", "--tp-size", "-1"], FLAGS
    )
    assert found.values == {"--tp-size": "-1", "--trust-remote-code": "", "--cuda-graph-bs": "1 2"}
    assert not found.unknown


def test_unknown_ones_are_kept_apart_with_the_nearest() -> None:
    found = read_arguments(["--tp-sise", "8", "--zzz", "--cuda-graph", "1"], FLAGS)
    assert not found.values
    assert found.unknown["--tp-sise"] == "--tp-size" and found.unknown["--zzz"] == ""
    assert "--cuda-graph" in found.unknown  # the beginning of two


def test_a_word_of_no_argument() -> None:
    with pytest.raises(UsageError, match="belongs to no argument"):
        read_arguments(["8"])
