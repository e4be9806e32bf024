"""What goes on beside the load: how busy the client is, and what the server's gauges say."""

from __future__ import annotations

import re
import time
from collections import defaultdict

import numpy as np

from truecast.bench.http import DownError, ask
from truecast.bench.processes import let_records_wait, worker_seconds
from truecast.bench.window import Window
from truecast.errors import InputError

SCRAPE_EVERY_S = 2.0
DOWN = 3
"""Refused connections one after the other, after which the server has gone for good."""
_MOST = 1e18
"""A counter above is none."""
_GAUGES = {
    "sglang:spec_accept_length": "acceptance_length",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "queued",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "queued",
}
_DRAFTS, _ACCEPTED = "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"
_KNOWN = {*_GAUGES, _DRAFTS, _ACCEPTED}
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?[ \t]+([0-9.eE+-]+)", re.MULTILINE)
_ENGINE = re.compile(r'(?:^|,)(?:dp_rank|engine)="([^"]*)"')
"""The label by which SGLang and vLLM tell engines apart that each have requests of their own."""
_MEANS = ("sglang:spec_accept_length",)


class Monitor:
    """Samples of one run. State: the client's CPU by process and the server's metrics, each with its time."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url, self._key = f"{url}/metrics", key
        self._cpu: list[tuple[float, dict[int, tuple[float, float]]]] = []
        self._metrics: list[tuple[float, dict[str, float]]] = []
        self._next = 0.0
        self._refused = 0

    def poll(self, group: int) -> None:
        """Take one sample of the processes of this session, and now and then of the server's metrics.

        Raises: InputError where the server has gone down: a load that only collects refusals is not worth its time.
        """
        now = time.time()
        let_records_wait(group)
        self._cpu.append((now, worker_seconds(group)))
        if now >= self._next:
            self._next = now + SCRAPE_EVERY_S
            try:
                self._metrics.append((now, metrics_of(ask(self._url, timeout=SCRAPE_EVERY_S, key=self._key))))
                self._refused = 0
            except DownError:
                self._refused += 1
                if self._refused >= DOWN:
                    raise InputError("went down while the load ran", where=self._url.removesuffix("/metrics")) from None
            except InputError:
                self._refused = 0
                self._next = now + 30.0  # no metrics here, or none for now

    def client(self, window: Window) -> dict[str, float | None]:
        """Shares of the window in which the busiest sending process used a core, and waited for one; ``None``: unknown."""
        inside = [(at, seconds) for at, seconds in self._cpu if window.holds(at)]
        if len(inside) < 2:
            return {"used": None, "waited": None}
        (begin, before), (end, after) = inside[0], inside[-1]
        shares = [
            ((after[key][0] - before[key][0]) / (end - begin), (after[key][1] - before[key][1]) / (end - begin))
            for key in after
            if key in before
        ]
        used, waited = max(shares, key=sum, default=(None, None))
        return {"used": used, "waited": waited}

    def server(self, window: Window) -> dict[str, float | None]:
        """Means of the server's own gauges in the window: acceptance length, running, queued; ``None`` if not told."""
        near = Window(window.start - SCRAPE_EVERY_S, window.end + SCRAPE_EVERY_S)
        inside = [values for at, values in self._metrics if near.holds(at)]
        result: dict[str, float | None] = {"acceptance_length": None, "running": None, "queued": None}
        gauges: dict[str, list[float]] = defaultdict(list)
        for values in inside:
            for name, figure in _GAUGES.items():
                if name in values:
                    gauges[figure].append(values[name])
        result |= {figure: float(np.mean(values)) for figure, values in gauges.items()}
        if len(inside) > 1 and (drafts := inside[-1].get(_DRAFTS, 0.0) - inside[0].get(_DRAFTS, 0.0)) > 0:
            result["acceptance_length"] = 1 + (inside[-1].get(_ACCEPTED, 0.0) - inside[0].get(_ACCEPTED, 0.0)) / drafts
        if result["acceptance_length"] == 0:
            result["acceptance_length"] = None  # SGLang's gauge before its first verify step, or without a draft
        return result


def metrics_of(text: str) -> dict[str, float]:
    """Values of the metrics that are known here, from Prometheus' text format.

    Ranks of one engine tell the same: the largest is taken. Engines beside each other (data parallel) have requests of
    their own: their sum is taken, of a mean length their mean.
    """
    engines: dict[str, dict[str, float]] = defaultdict(dict)
    for name, labels, text_value in _SAMPLE.findall(text):
        if name in _KNOWN and (value := _finite(text_value)) is not None:
            engine = (_ENGINE.findall(labels) or [""])[0]
            engines[name][engine] = max(engines[name].get(engine, 0.0), value)
    return {name: sum(values.values()) / (len(values) if name in _MEANS else 1) for name, values in engines.items()}


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < _MOST else None
