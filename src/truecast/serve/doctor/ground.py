"""Everything that a check may look at. Whatever is not given is None, and checks that want it say SKIP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from truecast.errors import TruecastError
from truecast.serve.installed import Installation
from truecast.serve.machine import Machine
from truecast.serve.server_info import ServerFacts
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import Topology


@dataclass(frozen=True)
class Ground:
    """What is given to the doctor.

    ``arguments``: the server's, by main spelling with dashes (``--tp-size``), a switch with the value ``""``; None where
    they are not known. ``unknown_arguments``: what this SGLang does not take, and the nearest that it does (or ``""``).
    ``environment``: what the server would see. ``machine``: facts of this machine, asked for when needed.
    ``server``: what a running server says of itself. ``planned``: the arguments are those of a launch plan; where none
    could be worked out ``plan_error`` says why.
    """

    installation: Installation | None = None
    model: StoredModel | None = None
    draft: StoredModel | None = None
    topology: Topology | None = None
    arguments: Mapping[str, str] | None = None
    unknown_arguments: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    machine: Machine | None = None
    server: ServerFacts | None = None
    planned: bool = False
    plan_error: TruecastError | None = None

    @property
    def capability(self) -> int | None:
        """Compute capability such as 90, of the topology's GPU; None where no GPU is told."""
        return self.topology.gpu.capability if self.topology is not None else None

    def argument(self, name: str) -> str | None:
        """The value of a server argument, None where it is not set."""
        return None if self.arguments is None else self.arguments.get(name)

    def number(self, name: str, default: int) -> int:
        """A whole-numbered argument; ``default`` where it is not set or is no number."""
        text = self.argument(name)
        return int(text) if text is not None and text.isdecimal() and len(text) < 10 else default
