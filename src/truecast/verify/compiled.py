"""How this room compiles its loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """``numba.njit``, kept on disk where there is a folder for it; needs numba, which not every verification does."""
    try:
        return cast(F, njit(cache=True)(function))
    except RuntimeError:  # there is no folder to keep the compiled form in
        return cast(F, njit(function))
