"""Fix 5: Marlin's tile under expert parallelism, from the number of all experts.

``fused_marlin_moe`` takes rows per expert as ``M * topk / E`` with ``E`` the experts of this rank, but ``topk_ids`` names
experts of all ranks: under EP32 it expects 32 times the rows that come, and computes mostly padding. The installed
function is compiled again from its own source with one line added after the choice of ``block_size_m``; nothing else in
it changes. The choice is the same as stock where no ``expert_map`` is given.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from truecast.engines.sglang.fix import Fix, Hook, Kind, Need, Sources
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.source import installed

SETTING = "SGLANG_MARLIN_EP_BLOCK"
MODULE = "sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe"
NAME = "fused_marlin_moe"
TILES = (8, 16, 32, 48, 64)
_OURS, _CHOICE = f"truecast_{NAME}", "truecast_marlin_tile"
_FULL = 0.9  # SGLang's own limit: a tile is large enough once it is less than this full


def parse(text: str) -> int | None:
    """``None`` for off (stock), 0 for the choice from all experts (``1`` is the published patch's word), or a fixed tile."""
    if text in ("0", "off"):
        return None
    if text in ("1", "auto"):
        return 0
    if text in map(str, TILES):
        return int(text)
    raise ValueError(f"neither auto, off nor one of {', '.join(map(str, TILES))}")


def tile(stock: int, rows: int, topk: int, local: int, expert_map: Any, experts: int, fixed: int = 0) -> int:
    """``block_size_m`` for ``rows`` tokens of ``topk`` routes each.

    ``stock`` is what SGLang chose from the ``local`` experts; it stands where no ``expert_map`` is given or all ``experts``
    are here. ``fixed`` is the user's own, 0 for none.
    """
    if expert_map is None or experts <= local:
        return stock
    if fixed:
        return fixed
    return next((t for t in TILES if rows * topk / experts / t < _FULL), TILES[-1])


def _need(situation: Situation) -> Need | None:
    if parse(situation.environment.get(SETTING, "auto")) is None or situation.ep_size < 2 or not situation.experts:
        return None
    if situation.moe_backend not in ("marlin", "auto"):
        return None
    return Need(f"Marlin would size its tiles for {situation.ep_size} times the rows that come", required=False)


def _faulty(sources: Sources) -> bool:
    stock = _find(sources)
    loop = stock.body[_choice(stock)]
    names = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name)}
    if not {"M", "topk", "block_size_m"} <= names:
        raise LookupError(f"{MODULE}.{NAME} chooses block_size_m in a way that is not known")
    if "E" not in names:
        return False
    counts = [n for n in stock.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "E"]
    if len(counts) != 1:
        raise LookupError(f"{MODULE}.{NAME} does not take E once, but {len(counts)} times")
    return ast.unparse(counts[0].value) == "w1.shape[0]" and not names & {"expert_map", "global_num_experts"}


def _find(sources: Sources) -> ast.FunctionDef:
    """With its decorators, which make it an operator."""
    for node in ast.parse(sources(MODULE)).body:
        if isinstance(node, ast.FunctionDef) and node.name == NAME:
            return node
    raise LookupError(f"{MODULE} has no {NAME}")


def _choice(stock: ast.FunctionDef) -> int:
    """Where in the body the loop over tile sizes stands."""
    found = [i for i, n in enumerate(stock.body) if isinstance(n, ast.For) and ast.unparse(n.target) == "block_size_m"]
    if len(found) != 1:
        raise LookupError(f"{MODULE}.{NAME} has {len(found)} loops over block_size_m, not one")
    return found[0]


def rebuilt(sources: Sources, namespace: dict[str, Any], fixed: int) -> Callable[..., Any]:
    """The installed function with our choice of tile, defined in its own module's ``namespace``.

    That is the live dictionary of the module: what is hooked there later is seen. Decorators run again under a name of
    our own, so that SGLang registers an operator of its own for it.
    """
    made = _find(sources)
    line = f"block_size_m = {_CHOICE}(block_size_m, M, topk, E, expert_map, global_num_experts)"
    made.body.insert(_choice(made) + 1, ast.parse(line).body[0])
    made.name = _OURS
    namespace[_CHOICE] = partial(tile, fixed=fixed)
    tree = ast.fix_missing_locations(ast.Module([made], []))
    exec(compile(tree, f"<{MODULE} with truecast's tile>", "exec"), namespace)
    found: Callable[..., Any] = namespace[_OURS]
    return found


def _hooks(situation: Situation) -> Sequence[Hook]:
    module = importlib.import_module(MODULE)
    fixed = parse(situation.environment.get(SETTING, "auto")) or 0
    ours = vars(module).get(_OURS) or rebuilt(installed(), vars(module), fixed)  # once: it becomes an operator
    return [Hook(f"{MODULE}.{NAME}", ours, Kind.REPLACE)]


def _selftest(situation: Situation) -> None:
    """The choice at Kimi-K3's EP32 shape, and without expert parallelism."""
    choose = vars(importlib.import_module(MODULE)).get(_CHOICE)
    assert choose is not None, f"{MODULE} has no {_CHOICE}"
    fixed = parse(situation.environment.get(SETTING, "auto"))
    assert choose(64, 150, 16, 28, object(), 896) == (fixed or 8), "the tile at EP32 is not the one chosen"
    assert choose(64, 150, 16, 28, None, 28) == 64, "the tile without expert parallelism changed"


FIX = Fix(
    name="marlin-ep-tile",
    summary="Marlin's tile under EP from the number of all experts",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=_hooks,
    selftest=_selftest,
    settings={SETTING: parse},
)
