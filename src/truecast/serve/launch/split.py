"""How GPUs are divided among replicas, and a model among the GPUs of one."""

from __future__ import annotations

from truecast.errors import UsageError
from truecast.serve.launch.case import HOPPER, Split
from truecast.serve.launch.setting import Setting
from truecast.serve.parallel import LIMIT
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import Topology

RENDEZVOUS = 20000
"""Port on which the ranks of a replica meet, on its first node."""


def divide(model: StoredModel, topology: Topology, replicas: int) -> Split:
    """The split of each of ``replicas`` equal parts of the topology: whole nodes, or equal parts of each node.

    Raises: UsageError where nodes do not divide so, or the model does not divide over that many GPUs.
    """
    nodes, per_node = _part(topology, replicas)
    gpus = nodes * per_node
    if gpus not in model.parallel.dense:
        legal = [n for n in model.parallel.dense if n <= gpus]
        raise UsageError(
            f"attention and dense layers of {model.name} do not divide over {gpus} GPUs",
            where=str(topology),
            fix=f"legal numbers up to there: {', '.join(map(str, legal))}; --replicas divides GPUs among copies",
        )
    return _experts(model, topology, nodes, per_node)


def _part(topology: Topology, replicas: int) -> tuple[int, int]:
    if replicas < 1 or topology.gpus % replicas:
        raise UsageError(f"{topology.gpus} GPUs do not divide into {replicas} replicas", where=str(topology))
    if topology.nodes % replicas == 0:
        return topology.nodes // replicas, topology.per_node
    gpus = topology.gpus // replicas
    if topology.per_node % gpus:
        raise UsageError(
            f"{replicas} replicas of {gpus} GPUs are neither whole nodes nor equal parts of a node",
            where=str(topology),
            fix=f"take a divisor of {topology.nodes} replicas, or {topology.nodes} times a divisor of {topology.per_node}",
        )
    return 1, gpus


def _experts(model: StoredModel, topology: Topology, nodes: int, per_node: int) -> Split:
    gpus = nodes * per_node
    if not model.experts or gpus == 1:
        return Split(gpus, 1, nodes, per_node, "no experts to divide" if gpus > 1 else "one GPU holds all of it")
    found = model.parallel.split(gpus)
    cut = gpus in model.parallel.unpadded
    if cut and (nodes == 1 or topology.gpu.capability != HOPPER):
        why = (
            f"each expert is cut over all {gpus} GPUs, in parts that the kernel takes unpadded: even load on every GPU"
            " (Blackwell recipes of SGLang's cookbook and the NVFP4 model card do so)"
        )
        return Split(gpus, 1, nodes, per_node, why)
    if found is None:
        legal = [n for n in range(1, LIMIT + 1) if model.parallel.split(n)]
        raise UsageError(
            f"the experts of {model.name} do not divide over {gpus} GPUs",
            where=str(topology),
            fix=f"legal numbers: {', '.join(map(str, legal))}; --replicas divides GPUs among copies",
        )
    inside, ep = found
    held = f"{model.experts // ep} whole experts a layer" + (f", each over {inside} GPUs" if inside > 1 else "")
    why = f"{held} on each rank: no scale group is cut, and a rank reads and repacks only its own"
    return Split(gpus, ep, nodes, per_node, why)


def rank_settings(split: Split) -> list[Setting]:
    """The division as SGLang's arguments."""
    why = f"{split.tp} GPUs share one copy of the model" if split.ep > 1 else split.why
    found = [Setting("--tp-size", str(split.tp), why)]
    if split.ep > 1:
        found.append(Setting("--ep-size", str(split.ep), split.why))
    if split.nodes > 1:
        found += [
            Setting("--nnodes", str(split.nodes), f"{split.per_node} GPUs each"),
            Setting("--node-rank", "$NODE_RANK", "all that differs between nodes", shell=True),
            Setting("--dist-init-addr", f"$HEAD:{RENDEZVOUS}", "where the ranks meet, on the first node", shell=True),
        ]
    return found
