"""FP8 KV cache: a prefill converts the rows of its batch, not the whole pool.

``FlashInferMLAAttnBackend.forward_extend`` gives the paged kernel ``get_key_buffer(layer).to(q.dtype)``: of a pool of a
million tokens, 1.07 GiB written for every layer of every prefill that reads cached tokens, whatever the batch holds
(sgl-project/sglang#35291, #34638). The planner knows which rows the batch reads. So the real row numbers are kept and the
kernel is planned for ``0, 1, 2, ...``; before it runs, these rows are gathered and converted. The kernel reads the same
values in the same order, so the output is the same in every bit.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.situation import Situation

MODULE = "sglang.srt.layers.attention.flashinfer_mla_backend"
BACKEND = "FlashInferMLAAttnBackend"
PLANNER = "FlashInferMLAIndicesUpdaterPrefill"
FLAGS = ("is_in_tc_piecewise_cuda_graph", "is_in_breakable_cuda_graph")
"""Functions of :data:`MODULE`: a prefill recorded as a CUDA graph keeps the addresses it was recorded with."""

_ROWS = "_truecast_rows"
"""Attribute of a flashinfer wrapper: the pool's rows that its present plan stands for, None where it names them itself."""


def _need(situation: Situation) -> Need | None:
    if not situation.kv_cache_dtype.startswith("fp8") or "kv_lora_rank" not in situation.config:
        return None
    if situation.prefill_attention not in ("flashinfer", "flashmla"):
        return None
    return Need(f"FP8 KV cache, prefill by {situation.prefill_attention}", required=False)


def gather(buffer: Any, rows: Any) -> Any:
    """``buffer[rows]`` of a tensor of any type whose first axis is the rows; FP8 is moved as the bytes it is."""
    import torch

    flat = buffer.view(torch.uint8).flatten(1)
    for word in (torch.int64, torch.int32):
        if flat.shape[1] % word.itemsize == 0 and flat.data_ptr() % word.itemsize == 0:
            flat = flat.view(word)
            break
    taken = flat.index_select(0, rows).view(torch.uint8)
    return taken.view(buffer.dtype).unflatten(1, buffer.shape[1:])


class _BatchRows:
    """A KV pool whose key buffer is the rows of one batch; everything else is the pool's own."""

    def __init__(self, pool: Any, rows: Any) -> None:
        self._pool, self._rows = pool, rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def get_key_buffer(self, *args: Any, **kwargs: Any) -> Any:
        return gather(self._pool.get_key_buffer(*args, **kwargs), self._rows)


class _Planned:
    """A flashinfer wrapper that is planned for gathered rows."""

    def __init__(self, wrapper: Any, size: int) -> None:
        self._wrapper, self._size = wrapper, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapper, name)

    def plan(self, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        # Requests that share a prefix name its rows once each: more rows than the pool has are not worth a copy.
        if kv_indices.numel() < self._size:
            # A new tensor, for the planner's may be a buffer that is filled again; and what a speculative plan leaves
            # unused at its end is no row number.
            setattr(self._wrapper, _ROWS, kv_indices.clamp(0, self._size))
            kv_indices = torch.arange(kv_indices.numel(), dtype=kv_indices.dtype, device=kv_indices.device)
        return self._wrapper.plan(qo_indptr, kv_indptr, kv_indices, *args, **kwargs)


@lru_cache(maxsize=4)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _suits(planner: Any, arguments: dict[str, Any]) -> bool:
    """Is this plan for an eager paged kernel over a plain FP8 pool?"""
    import torch

    backend = planner.attn_backend
    if backend.token_to_kv_pool.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        return False
    if arguments["use_ragged"] or arguments.get("attn_dcp_metadata") is not None:
        return False
    if getattr(arguments["wrapper_paged"], "_use_cuda_graph", arguments.get("spec_info") is not None):
        return False
    translator = getattr(backend, "kv_index_translator", None)  # from 0.5.20 on; before, the planner has the function
    if getattr(planner, "_translate_kv_loc_dense", None) is not None or getattr(translator, "is_translating", False):
        return False
    module = importlib.import_module(MODULE)
    return not any(getattr(module, flag)() for flag in FLAGS)


def plan(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``call_begin_forward``: plan for gathered rows where that is possible."""
    bound = _signature(original).bind(self, *args, **kwargs)
    wrapper = bound.arguments["wrapper_paged"]
    setattr(wrapper, _ROWS, None)
    if not _suits(self, bound.arguments):
        return original(self, *args, **kwargs)
    bound.arguments["wrapper_paged"] = _Planned(wrapper, self.attn_backend.token_to_kv_pool.size)
    return original(*bound.args, **bound.kwargs)


def forward(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``forward_extend``: where the plan is for gathered rows, that is what the kernel finds."""
    rows = getattr(self.forward_metadata.prefill_wrapper, _ROWS, None)
    if rows is None:
        return original(self, *args, **kwargs)
    pool = self.token_to_kv_pool
    self.token_to_kv_pool = _BatchRows(pool, rows)
    try:
        return original(self, *args, **kwargs)
    finally:
        self.token_to_kv_pool = pool


def _method(tree: ast.Module, cls: str, name: str) -> ast.FunctionDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == cls:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == name:
                    return method
    raise LookupError(f"{MODULE} has no {cls}.{name}")


def _calls(node: ast.AST, name: str) -> list[ast.Call]:
    return [
        n
        for n in ast.walk(node)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == name
    ]


def _faulty(sources: Sources) -> bool:
    tree = ast.parse(sources(MODULE))
    method = _method(tree, BACKEND, "forward_extend")
    reads = _calls(method, "get_key_buffer")
    if not reads and not _calls(method, "get_mla_kv_buffer"):
        raise LookupError(f"{BACKEND}.forward_extend reads no key buffer")
    whole = {
        target.id
        for node in ast.walk(method)
        if isinstance(node, ast.Assign) and node.value in reads
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    casts = [call.func.value for call in _calls(method, "to") if isinstance(call.func, ast.Attribute)]
    if not any(of in reads or (isinstance(of, ast.Name) and of.id in whole) for of in casts):
        return False
    _hookable(tree)
    return True


def _hookable(tree: ast.Module) -> None:
    """Raises: LookupError where the hooks would not find what they change."""
    planner = _method(tree, PLANNER, "call_begin_forward")
    names = {a.arg for a in (*planner.args.args, *planner.args.kwonlyargs)}
    if missing := {"wrapper_paged", "use_ragged", "spec_info", "attn_dcp_metadata"} - names:
        raise LookupError(f"{PLANNER}.call_begin_forward takes no {', '.join(sorted(missing))}")
    plans = [c for c in _calls(planner, "plan") if ast.unparse(c.func) == "wrapper_paged.plan"]
    if not plans or any(len(c.args) < 3 or getattr(c.args[2], "id", "") != "kv_indices" for c in plans):
        raise LookupError(f"{PLANNER}.call_begin_forward does not plan wrapper_paged with kv_indices third")
    imported = {a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    if missing := set(FLAGS) - imported:
        raise LookupError(f"{MODULE} does not import {', '.join(sorted(missing))}")


def _hooks(situation: Situation) -> Sequence[Hook]:
    return (
        Hook(f"{MODULE}.{PLANNER}.call_begin_forward", plan),
        Hook(f"{MODULE}.{BACKEND}.forward_extend", forward),
    )


def _selftest(situation: Situation) -> None:
    """Every FP8 value, in rows of the cache's width: gathered and converted equals converted and gathered."""
    import torch

    device = "cpu" if situation.capability is None else "cuda"
    values = torch.arange(256, dtype=torch.uint8, device=device).repeat(9).view(4, 1, 576)
    rows = torch.tensor([3, 0, 2, 3], dtype=torch.int32, device=device)
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        pool = values.view(kind)
        ours, wanted = gather(pool, rows).bfloat16(), pool.bfloat16()[rows.long()]
        assert torch.equal(ours.view(torch.int16), wanted.view(torch.int16)), f"gathered {kind} rows differ"


FIX = Fix(
    name="fp8-kv-gather",
    summary="FP8 KV cache: a prefill converts its batch's rows, not the whole pool",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=_hooks,
    selftest=_selftest,
    settings={},
)
