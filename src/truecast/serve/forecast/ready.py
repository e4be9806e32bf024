"""Seconds from the start of the processes until a server answers: reading, repacking, capturing graphs.

Every rank reads every tensor of the checkpoint, unless the expert load filter leaves other ranks' experts out. Ranks of
a node share its storage and its page cache, which hold each byte once; each rank still copies its own part.

Source: SGLang 0.5.20, model_loader/weight_utils.py, layers/quantization/marlin_utils_fp4.py, arg_groups/cuda_graph_hook.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from truecast.errors import UsageError
from truecast.serve.forecast import constants as c
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import Topology


@dataclass(frozen=True, slots=True)
class Ready:
    """``seconds`` until ready, by ``parts``, between ``low`` and ``high`` where the read rate was not measured."""

    seconds: float
    low: float
    high: float
    parts: Mapping[str, float]
    reasons: tuple[str, ...]


def ready(
    model: StoredModel,
    topology: Topology,
    tp: int,
    ep: int,
    *,
    load_filter: bool,
    node_read: float | None = None,
    cached: bool = False,
    marlin: bool = False,
    graph_batch: int = 64,
    drafted: int = 0,
) -> Ready:
    """Forecast for one replica on ``topology``. ``node_read``: bytes a second that a node reads, if it was measured;
    ``cached``: does the page cache hold the checkpoint? ``marlin``: are experts repacked? ``graph_batch``: largest batch
    with a decode graph. Raises: UsageError for sizes that make no sense."""
    parts = {
        "start": c.START,
        "load": load_seconds(model, topology, tp, ep, load_filter=load_filter, node_read=node_read, cached=cached),
        "repack": repack_seconds(model, ep) if marlin else 0.0,
        "graphs": c.GRAPH * len(graph_batches(graph_batch, speculation=drafted > 0)),
    }
    total = sum(parts.values())
    reasons = tuple(_reasons(parts, load_filter=load_filter, ep=ep, measured=node_read is not None or cached))
    return Ready(total, total / c.READY_FACTOR, total * c.READY_FACTOR, parts, reasons)


def load_seconds(
    model: StoredModel,
    topology: Topology,
    tp: int,
    ep: int,
    *,
    load_filter: bool,
    node_read: float | None = None,
    cached: bool = False,
) -> float:
    """Seconds until the slowest rank has its weights: what the load barrier has to wait for, from a cold start."""
    if tp < 1 or ep < 1 or tp % ep or (node_read is not None and node_read <= 0):
        raise UsageError(f"tp {tp}, ep {ep}, read rate {node_read}", fix="positive, and ep must divide tp")
    others = model.weights.total - model.weights.experts
    groups = -(-topology.per_node * ep // tp)  # of ranks that share their experts, on one node
    rank, node = (1 / ep, min(1.0, groups / ep)) if load_filter else (1.0, 1.0)
    reading = 0.0 if cached else (others + model.weights.experts * node) / (node_read or c.NODE_READ)
    return max(reading, (others + model.weights.experts * rank) / c.RANK_READ)


def repack_seconds(model: StoredModel, ep: int) -> float:
    """Seconds in which a rank repacks its experts for Marlin; other ranks wait for the slowest in a collective, so that
    ``--dist-timeout`` must be longer. 0 for formats that Marlin does not run."""
    if model.format not in c.ON_MARLIN:
        return 0.0
    dense = model.text.get("first_k_dense_replace")
    layers = model.layers - (dense if type(dense) is int else 0)
    return c.REPACK * layers * -(-model.experts // max(ep, 1))


def graph_batches(largest: int, *, speculation: bool) -> list[int]:
    """Batch sizes for which SGLang captures a decode graph."""
    if speculation:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, largest + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32)]
    kept = [size for size in sizes if size <= largest]
    return kept if largest in kept else [*kept, largest]


def _reasons(parts: Mapping[str, float], *, load_filter: bool, ep: int, measured: bool) -> Iterator[str]:
    largest = max(parts, key=lambda name: parts[name])
    yield f"most of the time goes into {largest}: {parts[largest] / 60:.0f} of {sum(parts.values()) / 60:.0f} minutes"
    if not measured:
        yield f"the read rate was not measured: {c.NODE_READ / 1e9:g} GB/s a node is taken"
    if not load_filter and ep > 1:
        yield "every rank reads every expert: the expert load filter would leave most of them out"
