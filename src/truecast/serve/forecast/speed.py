"""Tokens a second of a deployment, for one stream and for all, with the interval that past errors suggest."""

from __future__ import annotations

from truecast.serve.forecast.published import SHAPES, Point
from dataclasses import replace
from truecast.serve.forecast.step import Fitted, Load, prefill_seconds, step_seconds
from truecast.serve.topology import read_topology


def token_seconds(shape, load, fitted, *, accepted, prompt, output, whole=False, prefills=True):
    step = sum(step_seconds(shape, load, fitted).values()) / accepted
    if not prefills:
        return step
    waits = load.streams if whole else (load.streams - 1) / 2
    return step + waits * prefill_seconds(shape, load, prompt, fitted) / output


def point_seconds(point: Point, fitted: Fitted) -> float:
    shape = SHAPES[point.format]
    shape = replace(shape, kv_token_bytes=shape.kv_token_bytes * point.kv_bytes // 2)
    load = Load(read_topology(point.topology), point.tp, point.ep, point.streams, point.drafted + 1, point.prompt + point.output / 2, point.dcp, point.tile_fixed)
    return token_seconds(shape, load, fitted, accepted=point.accepted, prompt=point.prompt, output=point.output, whole=point.whole, prefills=point.prefills)
