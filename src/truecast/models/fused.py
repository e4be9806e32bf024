"""Chains of elementwise steps as one kernel on CUDA: they read and write memory, not compute, and take half a layer."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


def fused(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a pure function of tensors when it is first called on CUDA without gradients; elsewhere it runs as it is.

    A fused chain keeps float32 where single steps would round to the dtype in between: results differ in that.
    """
    compiled: list[Callable[P, T]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        on_cuda = any(isinstance(x, Tensor) and x.is_cuda for x in args)
        if not on_cuda or torch.is_grad_enabled() or not _can_compile():
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(torch.compile(function, dynamic=True))
        return compiled[0](*args, **kwargs)

    return call


@cache
def _can_compile() -> bool:
    """Is there what PyTorch's compiler needs, Triton and a C compiler?"""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and importlib.util.find_spec("triton") is not None
