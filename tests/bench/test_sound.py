from __future__ import annotations

import re
from typing import Any

import pytest

from truecast.bench.server import Server
from truecast.bench.sound import faults, remarks

SERVER = Server("http://a", "m", arguments={"max_running_requests": 64})


def run(**changes: Any) -> dict[str, Any]:
    """A run without a blemish, changed."""
    counts = {
        "sent": 100,
        "errors": {},
        "finish": {"stop": 80},
        "finished_in_window": 80,
        "unfinished_at_end": 10,
        "empty": 0,
        "at_once": 0,
        "uncounted_chunks": 0,
    }
    return {
        "requests": counts | changes.pop("requests", {}),
        "in_flight": 10.0,
        "client": {"used": 0.3, "waited": 0.1},
        "server": {"queued": 0.0},
        "sent_late": 1,
        "halves": [100.0, 101.0],
        "cache": {"prompt_tokens": 1000, "cached_tokens": 0},
        "figures": {"stream": 30.0, "stream_e2e": 28.0},
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"requests": {"errors": {"500: x": 2}}}, "2 of 100 requests failed, most with: 500: x"),
        ({"in_flight": 9.4}, "only 9.4 of 10 streams"),
        ({"client": {"used": 0.55, "waited": 0.4}}, "saturated: its busiest process"),
        ({"server_changed": ["random_seed"]}, "not the one of the start any more: random_seed"),
        ({"sent_late": 2}, "2 requests left more than 50 ms late"),
        ({"figures": {"stream": None, "stream_e2e": None}}, "no request finished"),
    ],
)
def test_what_spoils_a_run(changes: dict[str, Any], words: str) -> None:
    assert list(faults(run(), 10)) == []
    (fault,) = faults(run(**changes), 10)
    assert words in fault


@pytest.mark.parametrize(
    ("changes", "distinct", "words"),
    [
        ({}, 9, "9 distinct prompts for 10 streams"),
        ({}, 50, "100 requests were made from 50 distinct prompts"),
        ({"cache": {"prompt_tokens": 1000, "cached_tokens": 300}}, 100, "30% of the prompt tokens"),
        ({"server": {"queued": 3.0}}, 100, "3.0 requests waited"),
        ({"halves": [100.0, 110.0]}, 100, r"\+10% against the first"),
        ({"requests": {"finish": {"length": 4, "stop": 76}}}, 100, "4 of 80 outputs were cut"),
        ({"requests": {"empty": 1}}, 100, "1 of 80 answers were empty"),
        ({"requests": {"at_once": 1}}, 100, "1 of 80 answers came all at once"),
        ({"requests": {"uncounted_chunks": 80}}, 100, "does not count tokens by chunk"),
        ({"client": {"used": None, "waited": None}}, 100, "how busy the client was is not known"),
        ({"requests": {"unfinished_at_end": 81}}, 100, "still running at the window's end"),
    ],
)
def test_what_a_reader_should_know(changes: dict[str, Any], distinct: int, words: str) -> None:
    assert list(remarks(run(), 10, SERVER, {"prompts": 200, "distinct": 200})) == []
    told = "\n".join(remarks(run(**changes), 10, SERVER, {"prompts": 200, "distinct": distinct}))
    assert re.search(words, told)


def test_a_server_with_fewer_slots_than_streams() -> None:
    told = "\n".join(remarks(run(in_flight=65.0), 65, SERVER, {"prompts": 200, "distinct": 200}))
    assert "runs 64 requests at once" in told
