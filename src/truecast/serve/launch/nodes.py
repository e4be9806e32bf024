"""The machines of a launch, from a file: one a line, as ssh knows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from truecast.errors import UsageError

_NODE = re.compile(r"(?:([A-Za-z0-9_][\w.-]*)@)?([A-Za-z0-9][A-Za-z0-9.:_-]*)", re.ASCII)
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Node:
    """``host`` is a name or address, also a name of ``~/.ssh/config``; ``user`` None for ssh's own choice."""

    host: str
    user: str | None = None

    def __str__(self) -> str:
        return f"{self.user}@{self.host}" if self.user else self.host


def read_nodes(path: Path, count: int) -> list[Node]:
    """Read ``[user@]host`` lines; empty ones and what follows ``#`` do not count. Node 0 comes first.

    Raises: UsageError for a line that is no host, a host that comes twice, or another number of nodes than ``count``.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("is no text in UTF-8", where=str(path)) from None
    nodes: list[Node] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        found = _NODE.fullmatch(words)
        if found is None:
            raise UsageError(f"line {number} is no [user@]host: {words!r}", where=str(path))
        if any(node.host == found[2] for node in nodes):
            raise UsageError(f"line {number}: {found[2]} is there twice", where=str(path), fix="each node has one line")
        nodes.append(Node(found[2], found[1]))
    if len(nodes) != count:
        raise UsageError(
            f"{len(nodes)} nodes, and the topology has {count}", where=str(path), fix="one line a node, node 0 first"
        )
    return nodes
