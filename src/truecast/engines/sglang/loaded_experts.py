"""Which of a W4AFP8 layer's expert parameters the checkpoint filled, and which activation scales it gave.

SGLang makes its parameters before it reads a checkpoint, fills scales with zeros and ones, and compares nothing
afterwards: an expert whose tensors have other names is computed with what the memory held. Each rank is handed the
activation scales of all experts and keeps those of its own, so a layer's largest depended on how many ranks there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

SHARDS = {"w13": ("w1", "w3"), "w2": ("w2",)}
_SHOWN = 3


@dataclass
class LoadedExperts:
    """One layer's experts on one rank, between the making of their parameters and the end of loading.

    ``bank`` is the layer's name. ``rows`` are the experts held here, ``first`` the checkpoint's number of the first one,
    or None where they may lie in any order.
    """

    bank: str
    rows: int
    first: int | None
    filled: set[tuple[str, str, int]] = field(default_factory=set)
    """(parameter, w1 w2 or w3, row here)."""
    scales: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    """The same with the checkpoint's number of the expert, of every expert that was handed over: a float or a tensor."""

    @property
    def touched(self) -> bool:
        """Did the checkpoint give anything?"""
        return bool(self.filled or self.scales)

    def watch(self, loader: Callable[..., Any]) -> Callable[..., Any]:
        """The layer's ``weight_loader``, with every activation scale noted, of other ranks' experts too."""

        def load(param: Any, loaded_weight: Any, weight_name: str, shard_id: str, expert_id: int | None) -> Any:
            if "input_scale" in weight_name and expert_id is not None:
                key = (_parameter(weight_name), shard_id, expert_id)
                self.scales[key] = _number(loaded_weight, f"{self.bank}.{expert_id}.{shard_id}.input_scale")
            return loader(param, loaded_weight, weight_name, shard_id=shard_id, expert_id=expert_id)

        return load

    def fill(self, place: Callable[..., Any]) -> Callable[..., Any]:
        """The layer's ``_weight_loader_impl``, which knows the row here: notes each row that it has filled.

        An activation scale is put where it belongs without the original, which compares the first of a pair, rounded to
        BF16, with the second, not rounded, and refuses most pairs of equal ones.
        """

        def put(param: Any, loaded_weight: Any, weight_name: str, shard_id: str, expert_id: int) -> Any:
            name = _parameter(weight_name)
            if "input_scale" in weight_name:
                param.data[expert_id] = loaded_weight.reshape(()).to(param.data)
                result = None
            else:
                result = place(
                    param=param, loaded_weight=loaded_weight, weight_name=weight_name, shard_id=shard_id,
                    expert_id=expert_id,
                )  # fmt: skip
            self.filled.add((name, shard_id, expert_id))
            return result

        return put

    def unfilled(self, static: bool) -> Iterator[str]:
        """The checkpoint's names of tensors that a row here waits for. With ``static``, activation scales too."""
        for side, shards in SHARDS.items():
            for part in ("weight", "weight_scale_inv"):
                for row in range(self.rows):
                    for shard in shards:
                        if (f"{side}_{part}", shard, row) not in self.filled:
                            yield f"{self._expert(row)}.{shard}.{part}"
            for row in range(self.rows if static else 0):
                if not any((f"{side}_input_scale", shard, row) in self.filled for shard in shards):
                    yield f"{self._expert(row)}.{shards[0]}.input_scale"

    def largest_scale(self, side: str) -> float | None:
        """The largest activation scale of all the layer's experts, ``w13`` or ``w2``; None where there is none.

        Raises: ValueError where one is not positive and finite.
        """
        known = {key: float(value) for key, value in self.scales.items() if key[0] == f"{side}_input_scale"}
        for (_, shard, expert), value in known.items():
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{self.bank}.{expert}.{shard}.input_scale is {value}; it must be positive and finite")
        return max(known.values(), default=None)

    def handed_over(self, side: str) -> int:
        """How many experts' activation scales there were, this rank's or not."""
        return len({expert for name, _, expert in self.scales if name == f"{side}_input_scale"})

    def _expert(self, row: int) -> str:
        return f"{self.bank}.<row {row} here>" if self.first is None else f"{self.bank}.{self.first + row}"


def some_of(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _parameter(weight_name: str) -> str:
    return weight_name.rpartition(".")[2]


def _number(scale: Any, name: str) -> Any:
    if scale.numel() != 1:
        raise ValueError(f"{name} has shape {list(scale.shape)}; one number is wanted")
    return float(scale) if scale.device.type == "cpu" else scale.detach().clone()
