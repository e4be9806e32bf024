"""Functions that are compiled on a GPU: they trace as a whole, for any number of rows, and work where compiling fails."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from truecast.models import fused as module
from truecast.models.fused import fused
from truecast.models.kimi_k3.activation import gated, situ
from truecast.models.kimi_k3.attn_res import _mix
from truecast.models.kimi_k3.kda import _normed_and_gated
from truecast.models.norm import rms_norm


def some(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


CASES: dict[str, tuple[Callable[..., Tensor], Callable[[int], tuple[Any, ...]]]] = {
    "situ": (situ, lambda n: (some(n, 24)[:, :12], some(n, 24)[:, 12:], 4.0, 25.0)),
    "gated": (gated, lambda n: (some(n, 12), some(n, 12))),
    "rms_norm": (rms_norm, lambda n: (some(n, 12), some(12), 1e-5)),
    "mix": (_mix, lambda n: ([some(n, 12) for _ in range(3)], torch.randn(12), 1e-5)),
    "output": (_normed_and_gated, lambda n: (torch.randn(n, 3, 4), some(n, 12), torch.randn(4), 1e-5)),
}


@pytest.mark.parametrize("name", CASES)
def test_traces_as_one_graph_for_any_number_of_rows(name: str) -> None:
    function, arguments = CASES[name]
    torch._dynamo.reset()
    plain: Any = function.__wrapped__  # type: ignore[attr-defined]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(plain, backend=counter, fullgraph=True)
    for rows in (7, 5, 19):
        given = arguments(rows)
        for tensor in module._tensors(given):
            if tensor.ndim > 1:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        assert torch.equal(compiled(*given), plain(*given))
    assert counter.frame_count == 1


def test_compiles_where_it_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "suits", lambda *tensors: True)
    calls: list[object] = []

    def fake(function: Callable[..., Tensor], options: object) -> Callable[..., Tensor]:
        calls.append(function)
        return lambda x: function(x) + 1

    monkeypatch.setattr(torch, "compile", fake)
    double = fused(lambda x: 2 * x)
    assert [float(double(torch.tensor(3.0))) for _ in range(2)] == [7, 7]
    assert len(calls) == 1


def test_failing_to_compile_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "suits", lambda *tensors: True)

    def broken(function: Callable[..., Tensor], options: object) -> Callable[..., Tensor]:
        def fail(*args: object) -> Tensor:
            raise RuntimeError("no compiler here")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    double = fused(lambda x: 2 * x)
    with caplog.at_level(logging.WARNING):
        assert [float(double(torch.tensor(3.0))) for _ in range(2)] == [6, 6]
    assert [record.message.endswith("no compiler here") for record in caplog.records] == [True]


def test_failing_for_some_tensors_leaves_the_others_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "suits", lambda *tensors: True)

    def picky(function: Callable[..., Tensor], options: object) -> Callable[..., Tensor]:
        def call(x: Tensor) -> Tensor:
            if x.dtype == torch.float64:
                raise RuntimeError("not these")
            return function(x) + 1

        return call

    monkeypatch.setattr(torch, "compile", picky)
    double = fused(lambda x: 2 * x)
    kinds = (torch.float32, torch.float64, torch.float32, torch.float64)
    assert [float(double(torch.tensor(3.0, dtype=kind))) for kind in kinds] == [7, 6, 7, 6]


def test_the_same_arguments_run_the_same_code_whatever_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(module, "suits", lambda *tensors: True)
    ran: list[int] = []
    count = itertools.count()

    def backend(graph: torch.fx.GraphModule, given: object) -> Callable[..., Any]:
        number = next(count)

        def run(*args: Any) -> Any:
            ran.append(number)
            return graph(*args)

        return run

    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, options: compile(function, backend=backend))
    total = fused(lambda x: x.sum(-1))
    sizes = [(5, 8), (7, 16), (9, 8), (7, 24), (5, 8), (6, 16), (1, 8), (3, 8), (1, 8)]
    seen: dict[tuple[int, bool], set[int]] = {}
    for rows, width in sizes:
        x = torch.randn(rows, width)
        assert torch.equal(total(x), x.sum(-1))
        seen.setdefault((width, rows == 1), set()).add(ran[-1])
    assert all(len(codes) == 1 for codes in seen.values()), seen


def test_nothing_else_suits() -> None:
    assert not module.suits(torch.zeros(1))
    assert not module.suits(torch.zeros(1, dtype=torch.float64))
