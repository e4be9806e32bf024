from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from truecast.serve.reference.stops import StopFilter

AB = st.text("ab", max_size=30)


@given(AB, st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.integers(0, 30)))
def test_however_it_is_cut_the_text_ends_before_the_first_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    bounds = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    filter_ = StopFilter(stops)
    shown = "".join(filter_.feed(text[a:b]) for a, b in itertools.pairwise(bounds)) + filter_.finish()
    # fed whole or in pieces, the stop string that is complete first ends it
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    assert filter_.hit == bool(ends)
    if not ends:
        assert shown == text
    else:
        assert text.startswith(shown)
        assert not any(s in shown for s in stops)
        assert any(text.startswith(shown + s) for s in stops)


def test_nothing_is_held_back_that_cannot_become_a_stop() -> None:
    filter_ = StopFilter(["STOP"])
    assert filter_.feed("abcS") == "abc"
    assert filter_.feed("x") == "Sx"
    assert filter_.feed("ST") == ""
    assert filter_.feed("OP") == ""
    assert filter_.hit
