"""Tokens a second of a deployment, for one stream and for all, with the interval that errors on past ones suggest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from truecast.errors import InputError, UsageError
from truecast.serve.forecast import constants as c
from truecast.serve.forecast.constants import FITTED, Fitted
from truecast.serve.forecast.published import POINTS, SHAPES, Point
from truecast.serve.forecast.shape import Shape, shape_of
from truecast.serve.forecast.step import Load, prefill_seconds, step_seconds
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import Topology, read_topology


@dataclass(frozen=True, slots=True)
class Forecast:
    """Tokens a second: ``per_stream`` once a stream has its first token, between ``low`` and ``high`` for four of five
    deployments like the fitted ones; ``aggregate`` over all streams and replicas, waits for first tokens included.

    ``first_token``: seconds until it, if all streams begin at once. ``parts``: milliseconds of one step, by what takes
    them. ``like_fitted``: is there a fitted deployment like it?
    """

    per_stream: float
    low: float
    high: float
    aggregate: float
    first_token: float
    parts: Mapping[str, float]
    like_fitted: bool
    reasons: tuple[str, ...]


def forecast_speed(
    model: StoredModel,
    topology: Topology,
    tp: int,
    ep: int,
    *,
    streams: int,
    drafted: int = 0,
    accepted: float | None = None,
    prompt: int = 1024,
    output: int = 1024,
    kv_bytes: int = 2,
    state_bytes: int = 4,
    dcp: int = 1,
    tile_fixed: bool = True,
    replicas: int = 1,
) -> Forecast:
    """Forecast for ``streams`` requests at once over ``replicas`` copies, each on ``topology`` with SGLang's ``tp`` and
    ``ep``. ``drafted`` tokens a step with ``accepted`` coming out (default: what DSpark was published to accept on code).

    Raises: UsageError for counts that make no sense, InputError for a model whose speed cannot be forecast.
    """
    if min(streams, tp, ep, prompt, output, dcp, replicas) < 1 or drafted < 0 or tp % ep:
        raise UsageError("streams, tp, ep, prompt, output and replicas must be at least 1, and ep divide tp")
    if accepted is None:
        accepted = c.ACCEPTED[min(drafted, max(c.ACCEPTED))] if drafted else 1.0
    if not 1 <= accepted <= drafted + 1:
        raise UsageError(f"{accepted} tokens a step of {drafted} drafted", fix="between 1 and one more than drafted")
    shape = shape_of(model, kv_bytes=kv_bytes, state_bytes=state_bytes)
    if (size := shape.flops / SHAPES["mxfp4"].flops) < c.SMALLEST:
        raise InputError(
            f"its speed cannot be forecast: a token takes {size:.1g} of Kimi-K3's arithmetic, and the host's work, which"
            " bounds so small a model, was not fitted",
            where=model.location,
        )
    load = Load(topology, tp, ep, streams / replicas, drafted + 1, prompt + output / 2, dcp, tile_fixed)
    parts = step_seconds(shape, load, FITTED)
    token = token_seconds(shape, load, FITTED, accepted=accepted, prompt=prompt, output=output)
    whole = token_seconds(shape, load, FITTED, accepted=accepted, prompt=prompt, output=output, whole=True)
    unlike = tuple(_unlike(model, shape, load))
    error = c.ERROR_OUTSIDE if unlike else c.ERROR
    lost = c.REPLICA_LOSS if replicas > 1 else 0
    return Forecast(
        per_stream=1 / token,
        low=(1 - lost) / token / (1 + error),
        high=1 / token / (1 - error),
        aggregate=streams / whole,
        first_token=(load.streams + 1) / 2 * prefill_seconds(shape, load, prompt, FITTED),
        parts={name: 1000 * seconds for name, seconds in parts.items()},
        like_fitted=not unlike,
        reasons=(*unlike, *_notes(parts, drafted, accepted, replicas)),
    )


def token_seconds(
    shape: Shape, load: Load, fitted: Fitted, *, accepted: float, prompt: float, output: float, whole: bool = False,
    prefills: bool = True,
) -> float:  # fmt: skip
    """Seconds a token and stream, where as many requests run as there are streams and each is followed by the next.

    Prompts are read before decoding goes on: a stream waits for half of the others', and, counted from its request
    (``whole``), for the other half and its own.
    """
    step = sum(step_seconds(shape, load, fitted).values()) / accepted
    if not prefills:
        return step
    waits = load.streams if whole else (load.streams - 1) / 2
    return step + waits * prefill_seconds(shape, load, prompt, fitted) / output


def point_seconds(point: Point, fitted: Fitted) -> float:
    """What the model says of a published point: seconds a token."""
    shape = SHAPES[point.format]
    shape = replace(shape, kv_token_bytes=shape.kv_token_bytes * point.kv_bytes // 2)
    context = point.prompt + point.output / 2
    load = Load(
        read_topology(point.topology), point.tp, point.ep, point.streams, point.drafted + 1, context, point.dcp,
        point.tile_fixed,
    )  # fmt: skip
    return token_seconds(
        shape, load, fitted, accepted=point.accepted, prompt=point.prompt, output=point.output, whole=point.whole,
        prefills=point.prefills,
    )  # fmt: skip


def _unlike(model: StoredModel, shape: Shape, load: Load) -> Iterator[str]:
    """Why no fitted deployment is like it."""
    if model.family != "kimi_k3":
        yield f"no {model.family} was fitted, only Kimi-K3"
    machines = {(t.gpu.name, t.nodes > 1) for p in POINTS if p.fitted for t in [read_topology(p.topology)]}
    if (load.topology.gpu.name, load.topology.nodes > 1) not in machines:
        yield f"no {load.topology} was fitted"
    if (shape.format, load.topology.gpu.capability < 100) not in {
        (p.format, read_topology(p.topology).gpu.capability < 100) for p in POINTS
    }:
        yield f"no {shape.format} was fitted on this generation of GPUs"
    most = max(p.streams * (p.drafted + 1) for p in POINTS if p.fitted)
    if load.tokens > most:
        yield f"{load.tokens:.0f} tokens a step: at most {most:.0f} were fitted"
    longest = max(p.prompt + p.output / 2 for p in POINTS if p.fitted)
    if load.context > longest:
        yield f"{load.context:.0f} tokens of context: at most {longest:.0f} were fitted"


def _notes(parts: Mapping[str, float], drafted: int, accepted: float, replicas: int) -> Iterator[str]:
    largest = max(parts, key=lambda name: parts[name])
    yield f"most of a step goes into {largest}: {parts[largest] / sum(parts.values()):.0%}"
    if drafted:
        yield f"{accepted:g} tokens come out of a step that drafts {drafted}; prose was published at 2.2 of 7, code at 3.78"
    if replicas > 1:
        yield f"two replicas were published to lose {c.REPLICA_LOSS:.0%} against one replica's curve; the low end has it"
