"""Functions compiled by numba, and kept on disk where that works.

numba keeps them beside the source, or under ``NUMBA_CACHE_DIR`` or the user's cache folder. A folder that is full,
read-only or damaged costs the time to compile again, and nothing else. Importing this module takes numba's half second:
do so only where something is to be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, **options: Any) -> F:
    """``numba.njit`` with these options; called with other types of arguments, it compiles for those."""
    dispatcher = njit(**options)(function)
    with suppress(RuntimeError):  # "cannot cache function: no locator available"
        dispatcher._cache = _Kept(function)  # type: ignore[no-untyped-call]
    return cast(F, dispatcher)


class _Kept(FunctionCache):
    """numba's cache of one function, where a fault is as good as nothing kept."""

    def load_overload(self, *key: Any) -> Any:
        """A compiled form, or None. Half a file can raise anything when it is read as a pickle."""
        try:
            return super().load_overload(*key)  # type: ignore[no-untyped-call]
        except Exception:
            self._forget()
            return None

    def save_overload(self, *form: Any) -> None:
        """Keep a compiled form, if there is room."""
        try:
            super().save_overload(*form)  # type: ignore[no-untyped-call]
        except Exception:
            self._forget()

    def _forget(self) -> None:
        """Remove the index: it may be damaged, or name a file that still holds what was kept there before."""
        try:
            Path(self._cache_file._index_path).unlink(missing_ok=True)
        except OSError:
            self.disable()  # type: ignore[no-untyped-call]
