"""The machines that a model is served on: which GPU, how many nodes, how many GPUs each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from truecast.errors import UsageError
from truecast.serve.hardware import GPUS, Gpu, find_gpu

_SHORT = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*):(\d{1,4})x(\d{1,3})")
MAX_BYTES = 1 << 16
"""Of a topology file; it holds one line."""
_KEYS = {"gpu", "nodes", "gpus_per_node"}
MAX_NODES, MAX_PER_NODE = 1024, 72
"""72 GPUs lie in one NVLink domain of an NVL72 rack; engines see such a rack as several nodes or as one."""


@dataclass(frozen=True, slots=True)
class Topology:
    """``nodes`` machines with ``per_node`` GPUs each, all of one kind."""

    gpu: Gpu
    nodes: int
    per_node: int

    @property
    def gpus(self) -> int:
        """All GPUs together."""
        return self.nodes * self.per_node

    def __str__(self) -> str:
        return f"{self.gpu.name}:{self.nodes}x{self.per_node}"


def read_topology(text: str) -> Topology:
    """``GPU:NODESxGPUS``, such as ``gh200:8x4``, or the path of a JSON file with ``gpu``, ``nodes``, ``gpus_per_node``.

    Raises: UsageError for what is neither, for a GPU that is not known, and for sizes below one or beyond any machine.
    """
    if found := _SHORT.fullmatch(text):
        return _topology(found[1], int(found[2]), int(found[3]), text)
    path = Path(text)
    if not path.is_file():
        raise UsageError(
            f"no topology: {text}",
            fix=f"write GPU:NODESxGPUS, such as gh200:8x4, with a GPU of {', '.join(GPUS)}, or name a JSON file",
        )
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"longer than {MAX_BYTES} bytes")
        document = json.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"is no JSON: {error}", where=text) from None
    if not isinstance(document, dict) or set(document) != _KEYS:
        raise UsageError(f"is no object with just {', '.join(sorted(_KEYS))}", where=text)
    gpu, nodes, per_node = document["gpu"], document["nodes"], document["gpus_per_node"]
    if not isinstance(gpu, str) or type(nodes) is not int or type(per_node) is not int:
        raise UsageError("gpu must be a name, nodes and gpus_per_node whole numbers", where=text)
    return _topology(gpu, nodes, per_node, text)


def _topology(gpu: str, nodes: int, per_node: int, where: str) -> Topology:
    if not 1 <= nodes <= MAX_NODES or not 1 <= per_node <= MAX_PER_NODE:
        raise UsageError(
            f"{nodes} nodes of {per_node} GPUs", where=where, fix=f"1 to {MAX_NODES} nodes of 1 to {MAX_PER_NODE} GPUs"
        )
    return Topology(find_gpu(gpu), nodes, per_node)
