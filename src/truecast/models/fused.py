"""Running a plain function of tensors as few kernels, where that is faster and changes nothing but rounding."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache, wraps
from importlib.util import find_spec
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

    The first axis of a matrix may differ from call to call. Where compilation fails for tensors of some dtypes and widths,
    the function runs as it is for them, the first time too, after one warning: what is computed twice gives the same bits.
    ``__wrapped__`` is the function itself.
    """
    compiled: list[Callable[Given, Result]] = []
    failed: set[tuple[object, ...]] = set()

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        tensors = list(_tensors((*args, *kwargs.values())))
        kind = tuple((t.dtype, t.shape[1:]) for t in tensors)
        if kind in failed or not suits(*tensors):
            return function(*args, **kwargs)
        if not compiled:
            limits: Any = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, _VARIANTS)
            compiled.append(torch.compile(function))
        for tensor in tensors:
            if tensor.ndim > 1:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        try:
            with torch.no_grad():
                return compiled[0](*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            name = getattr(function, "__name__", "a function")
            if not failed:
                _log.warning("cannot compile %s, which runs slower as it is: %s", name, str(error).partition("\n")[0])
            failed.add(kind)
            return function(*args, **kwargs)

    return call


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
