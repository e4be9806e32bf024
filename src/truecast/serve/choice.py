"""One row for every format and engine: does it fit, over how many GPUs, in which kernel, with which known faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from truecast.errors import UsageError
from truecast.serve.engines import Fault, Route, routes, verdict, with_plugin
from truecast.serve.hardware import Gpu
from truecast.serve.parallel import LIMIT, Parallel
from truecast.serve.weights import Weights

WEIGHT_SHARE = 0.85
"""Share of a GPU's memory that weights may take; the rest is for the KV cache, activations, CUDA graphs and buffers.

With it the least power of two for Kimi-K3 in MXFP4 is what SGLang's own recipes use: 16 H200, 32 H100, 16 B200, 8 B300.
"""

NO_KERNEL = Fault("no engine that was looked at has a kernel for this format on this GPU", "stops")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A form in which the model could be stored."""

    format: str
    dialect: str
    weights: Weights
    parallel: Parallel


@dataclass(frozen=True, slots=True)
class Choice:
    """One row: a form of the model, and one engine's way to serve it. Without an engine, ``route`` is None.

    ``gpus`` is the number asked for, or the least power of two on which the weights fit; None where there is none up
    to the limit. ``split`` is ``(tp, ep)`` inside the experts on that many GPUs, None where none is legal.
    """

    candidate: Candidate
    route: Route | None
    gpus: int | None
    split: tuple[int, int] | None
    bytes_per_gpu: int | None
    fits: bool
    faults: tuple[Fault, ...]

    @property
    def verdict(self) -> str:
        """What comes of it, as read in the engine's source."""
        return verdict(self.faults)

    @property
    def verdict_with_plugin(self) -> str:
        """The same where truecast's plug-in is installed beside the engine."""
        return with_plugin(self.faults)


def choices(
    candidates: Iterable[Candidate], gpu: Gpu, *, family: str, function: str | None = None, gpus: int | None = None
) -> list[Choice]:
    """All rows for a GPU, in the order of the candidates and, for each, of the engines.

    ``family`` is the model family's name, ``function`` the hidden activation that its config states, ``gpus`` the
    number of GPUs to share one copy of the model (default: the least power of two on which the weights fit).
    Raises: UsageError for a number of GPUs that is not positive.
    """
    if gpus is not None and gpus < 1:
        raise UsageError(f"{gpus} is no number of GPUs")
    return [row for candidate in candidates for row in _rows(candidate, gpu, family, function, gpus)]


def _rows(candidate: Candidate, gpu: Gpu, family: str, function: str | None, asked: int | None) -> Iterator[Choice]:
    room = int(gpu.memory * WEIGHT_SHARE)
    gpus = asked or _least(candidate, room)
    split = candidate.parallel.split(gpus) if gpus else None
    each = candidate.weights.per_gpu(gpus) if gpus else None
    fits = each is not None and each <= room and split is not None
    found = routes(candidate.format, candidate.dialect, gpu.capability)
    for route in found:
        faults = route.faults_for(family, function, gpu.host)
        yield Choice(candidate, route, gpus, split, each, fits, faults)
    if not found:
        yield Choice(candidate, None, gpus, split, each, fits, (NO_KERNEL,))


def _least(candidate: Candidate, room: int) -> int | None:
    sizes = (2**n for n in range(LIMIT.bit_length()))
    fitting = (n for n in sizes if candidate.parallel.split(n) and candidate.weights.per_gpu(n) <= room)
    return next(fitting, None)
