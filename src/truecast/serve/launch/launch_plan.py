"""A launch: what every node runs, and what is to be expected of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from truecast.serve.forecast.memory import MemoryFit
from truecast.serve.forecast.ready import Ready
from truecast.serve.forecast.speed import Forecast
from truecast.serve.launch.setting import Setting
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import Topology


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What every node runs. ``environment`` and ``arguments`` are in the order in which they are printed.

    ``version`` is SGLang's. ``tp`` and ``ep`` are of one replica, ``nodes_per_replica`` its nodes. Node ``k`` of replica
    ``r`` is node ``r * nodes_per_replica + k`` of the topology where a replica takes whole nodes; replicas that share a
    node (``replicas_per_node`` above 1) take ``tp`` of its GPUs each, in order. The arguments hold what is the same on
    each node of the first replica; the node's rank and the head's address come in as ``$NODE_RANK`` and ``$HEAD``, or
    through :meth:`command`. ``port``: of the first replica. ``draft``: a draft model's path or repository. ``notes`` are
    for people: differences from a published command with their reasons, warnings, what else was possible. ``ready``:
    time until it answers; ``forecast``:
    speed with as many requests as may run, None where it cannot be forecast.
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
    fit: MemoryFit
    ready: Ready
    forecast: Forecast | None = None

    def document(self) -> dict[str, Any]:
        """All of it for JSON: commands as words, with ``$NODE_RANK`` and ``$HEAD`` where a node puts in its own."""
        return {
            "model": {
                "location": self.model.location,
                "family": self.model.family,
                "format": self.model.format,
                "dialect": self.model.dialect,
                "bytes": self.model.weights.total,
                "remote_code": list(self.model.remote_code),
            },
            "topology": str(self.topology),
            "sglang": self.version,
            "profile": self.profile,
            "draft": self.draft,
            "replicas": self.replicas,
            "tp": self.tp,
            "ep": self.ep,
            "nodes_per_replica": self.nodes_per_replica,
            "environment": [asdict(setting) for setting in self.environment],
            "arguments": [asdict(setting) for setting in self.arguments],
            "commands": [self.command("$NODE_RANK", "$HEAD", replica) for replica in range(self.replicas)],
            "notes": list(self.notes),
            "fit": {**asdict(self.fit), "fits": self.fit.fits},
            "ready": asdict(self.ready),
            "forecast": None if self.forecast is None else asdict(self.forecast),
        }

    @property
    def replicas_per_node(self) -> int:
        """Above 1 where replicas share a node."""
        return max(self.replicas // self.topology.nodes, 1)

    def port_of(self, replica: int) -> int:
        """Where a replica's head answers: replicas on one node have ports of their own."""
        return self.port + replica % self.replicas_per_node

    def node_of(self, replica: int, rank: int = 0) -> int:
        """Which node of the topology runs rank ``rank`` of the nodes of a replica, from 0."""
        return (
            replica // self.replicas_per_node if self.replicas_per_node > 1 else replica * self.nodes_per_replica + rank
        )

    def settings(self, replica: int = 0) -> tuple[Setting, ...]:
        """The arguments of one replica: those of the first but for port and GPUs where replicas share a node."""
        place = replica % self.replicas_per_node
        if not place:
            return self.arguments
        changed = [replace(a, value=str(self.port_of(replica))) if a.name == "--port" else a for a in self.arguments]
        first = Setting("--base-gpu-id", str(place * self.tp), "replicas on one node have GPUs of their own")
        return (*changed, first)

    def command(self, node_rank: str, head: str, replica: int = 0) -> list[str]:
        """Words of ``sglang serve ...`` for one node, unquoted; ``head`` is the address of its replica's first node."""
        address = f"[{head}]" if ":" in head else head
        words = ["sglang", "serve"]
        for setting in self.settings(replica):
            words.append(setting.name)
            if setting.value is not None:
                value = setting.value
                if setting.shell:
                    value = value.replace("$NODE_RANK", node_rank).replace("$HEAD", address)
                words.append(value)
        return words
