"""Running a plain function of tensors as few kernels, where that is faster and changes nothing but rounding."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from functools import cache, wraps
from importlib.util import find_spec
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

_VARIANTS = 64
"""A function is compiled anew for so many combinations of dtypes, widths and numbers of tensors."""

Given = ParamSpec("Given")
Result = TypeVar("Result")


def fused(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same function, compiled where :func:`suits` holds for its tensors; as it is elsewhere.

    The same arguments give the same bits, whatever came before: each combination of dtypes, widths and numbers has code of
    its own, for any length of the first axes. (Left to itself the compiler makes more general code when it sees a second
    width, and from then on uses that for the first too; and it chooses among kernels by timing them.) Where compiling fails
    for a combination, the function runs as it is for that one, after one warning. ``__wrapped__`` is the function itself.
    """
    compiled: dict[Hashable, Callable[Given, Result]] = {}

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        values = (*args, *kwargs.values())
        tensors = list(_tensors(values))
        if not suits(*tensors):
            return function(*args, **kwargs)
        kind = tuple(_kind(value) for value in values)
        if kind not in compiled:
            limits: Any = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, _VARIANTS)
            compiled[kind] = torch.compile(_copy(function), options={"deterministic": True})
        for tensor in tensors:
            if tensor.ndim > 1:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        try:
            with torch.no_grad():
                return compiled[kind](*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if function not in compiled.values():
                name = getattr(function, "__name__", "a function")
                _log.warning("cannot compile %s, which runs slower as it is: %s", name, str(error).partition("\n")[0])
            compiled[kind] = function
            return function(*args, **kwargs)

    return call


def _kind(value: object) -> Hashable:
    """What code is compiled for: everything of an argument but a tensor's numbers and, of a matrix, how many rows."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape[1:] if value.ndim > 1 else value.shape, value.stride()
    if isinstance(value, (list, tuple)):
        return tuple(_kind(item) for item in value)
    return value if isinstance(value, Hashable) else type(value)


def _copy(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same function under a code object of its own, which is what the compiler keeps its results by."""
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def suits(*tensors: Tensor) -> bool:
    """May these go through compiled code: all on a CUDA device, none in float64, no gradient wanted, Triton there?"""
    if not all(t.is_cuda and t.dtype != torch.float64 for t in tensors):
        return False
    return _has_triton() and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _tensors(values: Iterable[object]) -> Iterable[Tensor]:
    """Tensors among arguments, one level of lists and tuples included."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, Tensor))
