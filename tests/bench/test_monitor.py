from __future__ import annotations

import socket

import pytest

from tests.bench.conftest import Serve
from truecast.bench.monitor import DOWN, Monitor, metrics_of
from truecast.bench.window import Window
from truecast.errors import InputError

ALWAYS = Window(0, 1e12)


def test_prometheus_text() -> None:
    text = (
        '# HELP a b\nsglang:num_queue_reqs{tp_rank="0",name="a, b"} 2.0\nsglang:num_queue_reqs{tp_rank="1"} 3\n'
        "other 7\nvllm:num_requests_running 1e3\n"
    )
    assert metrics_of(text) == {"sglang:num_queue_reqs": 3.0, "vllm:num_requests_running": 1000.0}


def test_engines_beside_each_other_add_up_and_ranks_of_one_do_not() -> None:
    waiting = 'sglang:num_queue_reqs{{dp_rank="{}",tp_rank="{}"}} {}\n'
    lengths = 'sglang:spec_accept_length{{dp_rank="{}"}} {}\n'
    drafts = 'vllm:spec_decode_num_drafts_total{{engine="{}",model_name="m"}} {}\n'
    text = "".join(waiting.format(dp, tp, 4 + dp) for dp in (0, 1) for tp in (0, 1))
    text += lengths.format(0, 2.0) + lengths.format(1, 3.0) + drafts.format(0, 10) + drafts.format(1, 30)
    assert metrics_of(text) == {
        "sglang:num_queue_reqs": 9.0,
        "sglang:spec_accept_length": 2.5,
        "vllm:spec_decode_num_drafts_total": 40.0,
    }


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e999", "-1", "--", "e", "1e400", "9" * 400])
def test_a_value_that_is_none_is_none(value: str) -> None:
    assert metrics_of(f"sglang:num_queue_reqs {value}\n") == {}


def test_sglangs_gauge_of_acceptance(serve: Serve) -> None:
    monitor = Monitor(serve(acceptance=2.45).url)
    monitor.poll(0)
    assert monitor.server(ALWAYS)["acceptance_length"] == 2.45


def test_vllms_counters_give_the_acceptance_of_the_window() -> None:
    monitor = Monitor("http://none.invalid")
    names = ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total")
    monitor._metrics = [(t, dict(zip(names, v, strict=True))) for t, v in ((1, (10, 99)), (2, (20, 114)))]
    assert monitor.server(ALWAYS)["acceptance_length"] == pytest.approx(2.5)


def test_no_metrics_is_nothing_told(serve: Serve) -> None:
    monitor = Monitor(serve(engine="plain").url)
    monitor.poll(0)
    assert monitor.server(ALWAYS) == {"acceptance_length": None, "running": None, "queued": None}


def test_a_process_that_wants_more_than_it_gets_is_seen() -> None:
    monitor = Monitor("http://none.invalid")
    monitor._cpu = [(10.0, {7: (1.0, 0.0), 8: (0.0, 0.0)}), (20.0, {7: (3.0, 6.0), 8: (5.0, 0.5)})]
    assert monitor.client(ALWAYS) == {"used": pytest.approx(0.2), "waited": pytest.approx(0.6)}


def polled(monitor: Monitor, times: int) -> None:
    for _ in range(times):
        monitor._next = 0.0
        monitor.poll(-1)


def test_a_server_that_has_gone_ends_the_load(serve: Serve) -> None:
    """One that is only busy, or has no metrics, does not."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = Monitor(f"http://127.0.0.1:{free.getsockname()[1]}")
    polled(gone, DOWN - 1)
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:\d+: went down while the load ran"):
        polled(gone, 1)
    polled(Monitor(serve(engine="plain").url), DOWN)
