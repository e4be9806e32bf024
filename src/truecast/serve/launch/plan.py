"""The whole launch of a checkpoint on a topology, worked out from headers; nothing is started or written here."""

from __future__ import annotations

from dataclasses import dataclass

from truecast.serve.launch.setting import Setting
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import Topology

__all__ = ["LaunchPlan", "Setting"]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What every node runs. ``environment`` and ``arguments`` are in the order in which they are printed.

    ``version`` is SGLang's. ``tp`` and ``ep`` are of one replica, ``nodes_per_replica`` its nodes. Node ``k`` of replica
    ``r`` is node ``r * nodes_per_replica + k`` of the topology where a replica takes whole nodes; replicas that share a
    node (``nodes_per_replica`` 1) take ``tp`` of its GPUs each. The arguments hold what is the same on each node; the
    node rank and the head's address come in as ``$NODE_RANK`` and ``$HEAD``, or through :meth:`command`.
    ``draft`` is a draft model's path or repository. ``notes`` are for people: differences from a published command with
    their reasons, warnings, what else was possible.
    """

    model: StoredModel
    topology: Topology
    version: str
    profile: str
    replicas: int
    tp: int
    ep: int
    nodes_per_replica: int
    port: int
    draft: str | None
    environment: tuple[Setting, ...]
    arguments: tuple[Setting, ...]
    notes: tuple[str, ...]

    def command(self, node_rank: str, head: str, replica: int = 0) -> list[str]:
        """Words of ``sglang serve ...`` for one node, unquoted; ``head`` is the address of its replica's first node."""
        raise NotImplementedError
