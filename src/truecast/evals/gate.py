"""Stops asking a server that has stopped answering, so that the rest of a run does not wait for every retry."""

from __future__ import annotations

from inspect_ai.solver import Generate, Solver, TaskState, solver

from truecast.errors import InputError


class Gate:
    """Counts samples that failed in a row; shut from ``most`` on, until one is answered."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failed = 0

    def saw(self, failed: bool) -> None:
        """A sample ended."""
        self._failed = self._failed + 1 if failed else 0

    @property
    def shut(self) -> bool:
        """Is the server taken to be gone?"""
        return self._failed >= self._most


@solver
def pass_through(gate: Gate) -> Solver:
    """Fails the sample at once where the gate is shut."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if gate.shut:
            raise InputError("not asked: the server had stopped answering")
        return state

    return solve
