"""Two load tests: ratios over runs, and what is refused as no comparison."""

from __future__ import annotations

from typing import Any

import pytest

from truecast.bench.compare import compare_benches, parse_bench
from truecast.errors import InputError
from truecast.statistics.runs import ratio_of_runs

A = {20: [(40.6, 780.0), (40.2, 771.0), (40.9, 779.0)], 50: [(29.6, 883.0), (29.9, 890.0), (29.3, 880.0)]}
B = {20: [(43.6, 830.0), (43.2, 829.0), (43.9, 835.0)], 50: [(34.1, 949.0), (34.0, 955.0), (33.8, 944.0)]}


def document(levels: dict[int, list[tuple[float, float]]], /, **changes: Any) -> dict[str, Any]:
    runs = {
        c: [{"figures": {"stream": s, "aggregate": t, "ttft": None}} for s, t in runs] for c, runs in levels.items()
    }
    base = {
        "schema": "truecast.bench/1",
        "complete": True,
        "sound": True,
        "server": {"model": "native"},
        "prompts": {"file": "aime.jsonl", "sha256": "ab", "prompts": 60, "distinct": 60},
        "sampling": {"temperature": 1.0},
        "requests": None,
        "duration": 600.0,
        "replicas": 1,
        "levels": [{"concurrency": c, "runs": found} for c, found in runs.items()],
    }
    return {**base, **changes}


def test_ratios_at_each_concurrency() -> None:
    found = compare_benches(parse_bench(document(A), "a.json"), parse_bench(document(B), "b.json"), 0.05)
    at50 = found["levels"][1]
    assert at50["concurrency"] == 50 and set(at50["figures"]) == {"stream", "aggregate"}
    judge = ratio_of_runs([s for s, _ in A[50]], [s for s, _ in B[50]])
    stream = at50["figures"]["stream"]
    assert (stream["ratio"], stream["interval"]) == (judge.value, list(judge.interval() or ()))
    assert stream["excludes_one"] is True and 0 < stream["detectable"] < 0.1
    assert found["equivalence"]["shown"] is False and found["warnings"] == []
    least = found["equivalence"]["smallest_margin"]
    assert least == max(f["smallest_margin"] for level in found["levels"] for f in level["figures"].values())


def test_equivalence_is_a_claim_on_every_level() -> None:
    a, b = (parse_bench(document(levels), "x.json") for levels in (A, {20: A[20], 50: B[50]}))
    assert compare_benches(a, a, 0.05)["equivalence"]["shown"] is True
    assert compare_benches(a, b, 0.05)["equivalence"]["shown"] is False


def test_one_run_each_shows_nothing() -> None:
    one = parse_bench(document({20: A[20][:1]}), "x.json")
    found = compare_benches(one, one, 0.5)
    assert found["levels"][0]["figures"]["stream"]["interval"] is None
    assert found["equivalence"]["shown"] is False
    assert any("one run on each side" in warning for warning in found["warnings"])


def test_what_does_not_stand_is_told() -> None:
    a = parse_bench(document(A), "a.json")
    b = parse_bench(document({50: B[50]}, sound=False, complete=False, replicas=2), "b.json")
    told = " / ".join(compare_benches(a, b)["warnings"])
    for words in ("B is not sound", "B was stopped", "left out: concurrency 20", "numbers of replicas"):
        assert words in told


@pytest.mark.parametrize("key", ["prompts", "sampling", "requests", "duration"])
def test_other_load_is_no_comparison(key: str) -> None:
    other = {"file": "aime.jsonl", "sha256": "cd", "prompts": 60, "distinct": 60} if key == "prompts" else "other"
    a, b = parse_bench(document(A), "a.json"), parse_bench(document(B, **{key: other}), "b.json")
    with pytest.raises(InputError, match=f"{key}.* differ"):
        compare_benches(a, b)


def test_another_cache_or_another_way_of_counting_is_told() -> None:
    levels = [{"concurrency": 20, "runs": [{"figures": {"stream": 1.0}, "cache": {"before": "kept"}}] * 2}]
    flushed = [{"concurrency": 20, "runs": [{"figures": {"stream": 1.0}, "cache": {"before": "flushed"}}] * 2}]
    a = parse_bench(document(A, levels=levels, server={"per_chunk": True}), "a.json")
    b = parse_bench(document(A, levels=flushed, server={"per_chunk": False}), "b.json")
    told = " / ".join(compare_benches(a, b)["warnings"])
    assert "the prefix cache before a run: A kept, B flushed" in told
    assert "only one server counted the tokens of each chunk" in told
    assert compare_benches(a, a)["warnings"] == []


def test_a_file_of_prompts_is_known_by_its_bytes_not_by_its_name() -> None:
    renamed = {"file": "copy.jsonl", "sha256": "ab", "prompts": 60, "distinct": 60}
    a, b = parse_bench(document(A), "a.json"), parse_bench(document(B, prompts=renamed), "b.json")
    assert len(compare_benches(a, b)["levels"]) == 2


def test_nothing_in_common() -> None:
    a, b = parse_bench(document({20: A[20]}), "a.json"), parse_bench(document({50: B[50]}), "b.json")
    with pytest.raises(InputError, match="no concurrency was measured in both"):
        compare_benches(a, b)


def level(**changes: Any) -> dict[str, Any]:
    return {"levels": [{"concurrency": 20, "runs": [{"figures": {"stream": 1.0}}], **changes}]}


BAD: dict[str, dict[str, Any]] = {
    "schema is not": {"schema": 1},
    "prompts.sha256 is no text": {"prompts": {"file": "aime.jsonl", "prompts": 60, "distinct": 60}},
    "levels is no list": {"levels": []},
    "levels[0].concurrency": level(concurrency=True),
    "levels[0].concurrency is no whole": level(concurrency=10**400),
    "levels[1].concurrency": {"levels": level()["levels"] * 2},
    "levels[0].runs is no list": level(runs=[3]),
    "levels[0].runs[0].figures is no object": level(runs=[{}]),
    "levels[0].runs[0].figures.stream is no positive number": level(runs=[{"figures": {"stream": 0}}]),
    "levels[0].runs[0].figures.ttft is no positive number": level(runs=[{"figures": {"ttft": 10**400}}]),
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_refused(message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_bench(document(A, **BAD[message]), "b.json")
    assert str(error.value).startswith(f"b.json: {message}")
