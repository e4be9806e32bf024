from __future__ import annotations

import pytest

from tests.bench.conftest import Serve
from truecast.bench.monitor import Monitor, metrics_of
from truecast.bench.window import Window

ALWAYS = Window(0, 1e12)


def test_prometheus_text() -> None:
    text = '# HELP a b\nsglang:x{tp="0",dp="1"} 2.5\nsglang:x{tp="1"} 3\nplain 1e3\nbad NaN\n'
    assert metrics_of(text) == {"sglang:x": 3.0, "plain": 1000.0}


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
