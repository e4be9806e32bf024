"""What can go wrong, and the exit code that says so.

Every error names the place (``where``: file, tensor, row, block) and, where there is one, the remedy (``fix``).
The command line prints ``str(error)`` and exits with ``exit_code``; nothing below it catches broadly.
"""

from __future__ import annotations


class TruecastError(Exception):
    """Base of every error that truecast raises on purpose.

    ``where`` is the file and tensor (and row and block) concerned, ``fix`` what the user can do. Where callers tell
    faults apart, ``code`` says which one it is; where ``where`` is another file than the tensor's, ``tensor`` names it.
    """

    exit_code = 2

    def __init__(self, problem: str, *, where: str = "", fix: str = "", code: str = "", tensor: str = "") -> None:
        self.problem = problem
        self.where = where
        self.fix = fix
        self.code = code
        self.tensor = tensor
        super().__init__(problem, where, fix)

    def __str__(self) -> str:
        text = f"{self.where}: {self.problem}" if self.where else self.problem
        return f"{text}; {self.fix}" if self.fix else text

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross the borders of processes with all that they say."""
        return (_rebuild, (type(self), self.problem, self.where, self.fix, self.code, self.tensor))


def _rebuild(kind: type[TruecastError], problem: str, where: str, fix: str, code: str, tensor: str) -> TruecastError:
    return kind(problem, where=where, fix=fix, code=code, tensor=tensor)


class UsageError(TruecastError):
    """The command line or the combination of options makes no sense (exit 2)."""


class InputError(TruecastError):
    """A checkpoint is malformed, incomplete or of no known layout (exit 2)."""


class RefusedError(TruecastError):
    """Going on would lose something: exactness, disk space, somebody else's files (exit 3)."""

    exit_code = 3


class InexactError(RefusedError):
    """The cast cannot be exact and the caller did not allow that (exit 3)."""


class WorkerLostError(RefusedError):
    """A worker process was killed from outside; what is complete on disk stays and the run can go on (exit 3)."""
