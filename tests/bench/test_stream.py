from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from truecast.bench.figures import answer_delay, decode_speed, whole_speed
from truecast.bench.stream import ANSWER, REASONING, TOOL, read_requests, request_of
from truecast.errors import InputError

S = 10**9


def event(delta: dict[str, Any], count: int | None = None, finish: str | None = None) -> dict[str, Any]:
    usage = {} if count is None else {"usage": {"prompt_tokens": 5, "completion_tokens": count}}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **usage}


def record(*timed: tuple[float, Any], status: int | None = 200, **more: Any) -> dict[str, Any]:
    """A raw record that was sent at 100 s; times are seconds after that."""
    messages = [
        {
            "perf_ns": 7 * S + int(at * S),
            "packets": [{"name": "data", "value": e if isinstance(e, str) else json.dumps(e)}],
        }
        for at, e in timed
    ]
    about = {
        "credit_issued_ns": 100 * S - 1000,
        "request_start_ns": 100 * S,
        "request_end_ns": 110 * S,
        "benchmark_phase": "profiling",
    }
    return {"metadata": about, "start_perf_ns": 7 * S, "status": status, "responses": messages, **more}


END = (4.0, {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 12}})


def test_speed_leaves_out_the_tokens_of_the_first_chunk() -> None:
    request = request_of(
        record(
            (0.1, event({"role": "assistant", "content": ""})),
            (1.0, event({"content": "a"}, 4)),
            (2.0, event({"content": "b"}, 5)),
            (3.0, event({"content": "c"}, 12)),
            (3.0, event({}, 12, "stop")),
            END,
            (4.0, "[DONE]"),
        )
    )
    assert request.times.tolist() == [101, 102, 103]
    assert request.tokens.tolist() == [4, 1, 7]
    assert request.counted
    assert (request.output, request.prompt, request.finish, request.error) == (12, 5, "stop", None)
    assert decode_speed(request) == pytest.approx(8 / 2)
    assert whole_speed(request) == pytest.approx(12 / 3)


def test_without_running_counts_tokens_are_spread_over_the_chunks() -> None:
    chunks = [(float(i), event({"content": "x"})) for i in range(1, 5)]
    request = request_of(record(*chunks, (4.0, event({}, None, "stop")), END))
    assert request.tokens.tolist() == [3, 3, 3, 3]
    assert not request.counted
    assert decode_speed(request) == pytest.approx(9 / 3)


@pytest.mark.parametrize("count", [0, 12], ids=["only the prompt's", "the final one"])
def test_the_same_count_on_every_chunk_is_none(count: int) -> None:
    chunks = [(float(i), event({"content": "x"}, count)) for i in range(1, 5)]
    request = request_of(record(*chunks, (4.0, event({}, count, "stop")), END))
    assert request.tokens.tolist() == [3, 3, 3, 3]
    assert not request.counted
    assert decode_speed(request) == pytest.approx(9 / 3)


def test_the_end_token_without_text_counts_at_the_finish() -> None:
    request = request_of(
        record((1.0, event({"content": "a"}, 4)), (2.0, event({"content": "b"}, 11)), (2.5, event({}, 12, "stop")), END)
    )
    assert request.tokens.tolist() == [4, 7, 1]
    assert request.times[-1] == 102.5


@pytest.mark.parametrize(
    ("delta", "channel"),
    [
        ({"reasoning_content": "x"}, REASONING),
        ({"reasoning": "x"}, REASONING),
        ({"content": "x"}, ANSWER),
        ({"content": None, "tool_calls": [{"index": 0}]}, TOOL),
    ],
)
def test_every_channel_has_a_first_token(delta: dict[str, Any], channel: int) -> None:
    request = request_of(record((1.0, event(delta, 12)), (1.0, event({}, 12, "stop")), END))
    assert request.channels.tolist() == [channel]
    assert answer_delay(request) == (None if channel == REASONING else pytest.approx(1.0))


def test_an_answer_that_came_at_once_has_no_decode_speed() -> None:
    request = request_of(record((3.0, event({"content": "all"}, 12, "stop")), END))
    assert decode_speed(request) is None
    assert whole_speed(request) == pytest.approx(4)


def test_an_empty_answer_is_no_failure_and_has_no_speed() -> None:
    end = (1.0, {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 0}})
    error = {"error": {"type": "InvalidInferenceResultError", "message": "no responses with actual content"}}
    request = request_of(record((1.0, event({}, None, "stop")), end, **error))
    assert request.error is None
    assert request.output == 0
    assert decode_speed(request) is whole_speed(request) is None


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (record(status=400, error={"code": 400, "message": '{"error": {"message": "too long"}}'}), "400: too long"),
        (record(status=None, error={"type": "ClientConnectorError", "message": "refused"}), "no answer: refused"),
        (record((1.0, event({"content": "a"}, 4))), "broke off before its finish"),
        (
            record((1.0, event({"content": "a"}, 4)), (2.0, {"error": {"message": "CUDA error"}})),
            "error in the stream: CUDA error",
        ),
        (record((1.0, event({"content": "a"})), (1.0, event({}, None, "stop"))), "no usage"),
    ],
    ids=["4xx", "down", "half-closed", "error event", "usage"],
)
def test_a_request_that_failed_says_why(broken: dict[str, Any], words: str) -> None:
    assert words in str(request_of(broken).error)


def test_a_file_that_is_none_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    path.write_text(json.dumps(record(END)) + "\n{}\n")
    with pytest.raises(InputError, match="line 2"):
        list(read_requests(path))
