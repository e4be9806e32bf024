"""Fix 3: each rank reads its own experts only.

Stock SGLang reads every tensor of every shard on every rank; ``FusedMoE.weight_loader`` then drops experts that live
elsewhere. Here the model itself is asked which experts it would keep, and SGLang's own iterators run with a stand-in for
``safetensors.safe_open`` that leaves the others out. Read whatever the experts' places: everything but ``.experts.N.``,
tensors of a few elements (scales of whole matrices, which some backends reduce over all experts), and what a parameter
marked ``_sglang_require_global_experts`` asks for.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from truecast.engines.sglang.expert_shards import EXPERT, Reading
from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.source import function
from truecast.errors import UsageError

SETTING = "SGLANG_EXPERT_LOAD_FILTER"
UTILS = "sglang.srt.model_loader.weight_utils"
LOADER = "sglang.srt.model_loader.loader"
LAYER = "sglang.srt.layers.moe.fused_moe_triton.layer"
ITERATORS = ("safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator")
PREFETCH = "_prefetch_checkpoint_file"
"""Reads one shard into the page cache; every way to prefetch comes down to it, some before any model is there."""
COMMIT = "commit_model_weights"
_PLACE = "_map_global_expert_id_to_local_expert_id"
_GLOBAL = "_sglang_require_global_experts"

logger = logging.getLogger(__name__)
_reading: Reading | None = None  # the model that is being read now; the iterators' threads look here too


def parse(text: str) -> int | None:
    """``None`` for off, 0 for on, or the number of experts that the model must have (the published patch wants it)."""
    if text in ("0", "off"):
        return None
    if text in ("1", "on"):
        return 0
    if re.fullmatch("[1-9][0-9]{0,5}", text):
        return int(text)
    raise ValueError("neither on, off nor a number of experts")


def _need(situation: Situation) -> Need | None:
    wanted = parse(situation.environment.get(SETTING, "on"))
    if wanted is None or situation.ep_size < 2 or not situation.experts or not situation.expert_places_fixed:
        return None
    if wanted and wanted != situation.experts and not situation.is_draft:
        raise UsageError(
            f"the model has {situation.experts} experts",
            where=f"{SETTING}={wanted}, {situation.model}",
            fix="set it to on, or to that number",
        )
    return Need(f"each of {situation.ep_size} ranks would read the experts of all", required=False)


def _faulty(sources: Sources) -> bool:
    function(sources, LOADER, "DefaultModelLoader._get_all_weights")
    function(sources, LAYER, f"FusedMoE.{_PLACE}")
    function(sources, UTILS, PREFETCH)
    found = [_reads_all(function(sources, UTILS, name), name) for name in ITERATORS]  # each must be recognised
    return any(found)


def _reads_all(text: str, name: str) -> bool:
    """Whether each of ``keys()`` goes to ``get_tensor`` without a condition."""
    if "safetensors.safe_open(" not in text:
        raise LookupError(f"{name} does not call safetensors.safe_open")
    for node in ast.walk(ast.parse(text)):
        inner: list[ast.AST] = []
        if isinstance(node, ast.DictComp | ast.ListComp):
            over, inner = node.generators[0].iter, list(node.generators[0].ifs)
        elif isinstance(node, ast.For):
            over, inner = node.iter, [n for n in ast.walk(node) if isinstance(n, ast.If)]
        else:
            continue
        if ast.unparse(over).endswith(".keys()") and "get_tensor(" in ast.unparse(node):
            return not inner
    raise LookupError(f"{name} does not read tensor by tensor")


def reading(model: Any) -> Reading | None:
    """What this rank has to read for ``model``; None where nothing may be left out.

    The model's own expert layers are asked, so that it is what SGLang would drop after reading, neither more nor less.
    """
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    layers = [m for m in model.modules() if hasattr(m, _PLACE)]
    if not layers or any(EXPERT.search(f".{name}") for name, _ in model.named_parameters()):
        return None  # no expert layers, or some experts are plain modules, which a name alone does not tell apart
    places = get_global_expert_location_metadata()

    def physical(layer: Any, number: int) -> Sequence[int]:
        if places is None or number >= places.num_logical_experts:
            return (number,)
        found: Sequence[int] = places.logical_to_all_physical(layer.layer_id, number)
        return found

    def local(number: int) -> bool:
        return any(getattr(layer, _PLACE)(p) >= 0 for layer in layers for p in physical(layer, number))

    marked = {n for n, p in model.named_parameters() if getattr(p, _GLOBAL, False)}
    return Reading(local, {n.rpartition(".")[2].partition("_")[2] for n in marked})


def _all_weights(original: Callable[..., Iterator[Any]], *args: Any, **kwargs: Any) -> Iterator[Any]:
    with _only_what_is_ours(inspect.signature(original).bind(*args, **kwargs).arguments["model"]):
        yield from original(*args, **kwargs)


def _commit(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The other way in, from 0.5.20 on: loading that waited for CUDA graphs."""
    with _only_what_is_ours(inspect.signature(original).bind(*args, **kwargs).arguments["model"]):
        return original(*args, **kwargs)


@contextlib.contextmanager
def _only_what_is_ours(model: Any) -> Iterator[None]:
    global _reading
    mine = reading(model)
    before, _reading = _reading, mine
    try:
        yield
    finally:
        _reading = before
        if mine is not None:
            logger.info("%s", report(mine))


def _no_prefetch(original: Callable[..., Any], file_path: str, *args: Any, **kwargs: Any) -> None:
    """In place of reading a shard, with all of its experts. Whoever waits for the prefetch finds it done."""
    logger.debug("Expert load filter: %s is not prefetched, that would read all experts", file_path)


def report(mine: Reading) -> str:
    """One line for the log."""
    experts = mine.experts - mine.skipped
    share = 100 * experts / mine.experts if mine.experts else 100.0
    return (
        f"Expert load filter: read {mine.read / 1e6:,.1f} MB, skipped {mine.skipped / 1e6:,.1f} MB of other ranks' experts; "
        f"{share:.2f} % of {mine.experts / 1e6:,.1f} MB of experts read"
    )


def _iterator(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if _reading is None:
        return original(*args, **kwargs)
    stock = inspect.unwrap(original)
    assert isinstance(stock, FunctionType)
    bound = inspect.signature(stock).bind(*args, **kwargs)
    bound.arguments["disable_mmap"] = False  # the stand-in maps nothing
    stand_in = SimpleNamespace(safe_open=_reading.open)
    same = FunctionType(
        stock.__code__,
        {**stock.__globals__, "safetensors": stand_in},
        stock.__name__,
        stock.__defaults__,
        stock.__closure__,
    )
    return same(*bound.args, **bound.kwargs)


def _hooks(situation: Situation) -> Sequence[Hook]:
    loader = importlib.import_module(LOADER).DefaultModelLoader
    late = [Hook(f"{LOADER}.DefaultModelLoader.{COMMIT}", _commit)] if hasattr(loader, COMMIT) else []
    return [
        Hook(f"{LOADER}.DefaultModelLoader._get_all_weights", _all_weights),
        *late,
        Hook(f"{UTILS}.{PREFETCH}", _no_prefetch),
        *(Hook(f"{UTILS}.{name}", _iterator) for name in ITERATORS),
    ]


def _selftest(situation: Situation) -> None:
    """Two experts in a shard of a few bytes, through SGLang's iterators as they are now."""
    global _reading
    import torch
    from safetensors.torch import save_file
    from sglang.srt.model_loader import loader

    tensors = {f"a.experts.{i}.w1.weight": torch.full((32,), i, dtype=torch.uint8) for i in range(2)}
    tensors["a.gate.weight"] = torch.ones(32)
    before = _reading
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, path := str(Path(folder) / "self.safetensors"))
        for name in ITERATORS:
            _reading = mine = Reading(lambda number: number == 1)
            workers = {} if name == ITERATORS[0] else {"max_workers": 1}
            try:
                with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
                    found = dict(getattr(loader, name)([path], **workers))
            finally:
                _reading = before
            assert sorted(found) == ["a.experts.1.w1.weight", "a.gate.weight"], f"{name} read {sorted(found)}"
            assert all(torch.equal(t, tensors[n]) for n, t in found.items()), f"{name} read other values"
            assert mine.skipped == 32, f"{name} skipped {mine.skipped} bytes of 32"


FIX = Fix(
    name="expert-load-filter",
    summary="each rank reads its own experts only",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=_hooks,
    selftest=_selftest,
    settings={SETTING: parse},
)
