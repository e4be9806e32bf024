"""Which modules a checkpoint's ignore list names, in all the forms that checkpoints write it.

An entry is a module's full name or a path inside it (``mlp.shared_experts``), matched on whole parts; a glob as ModelOpt
writes it, which hits the whole name or one part of it; or ``re:`` and a pattern as compressed-tensors writes it, anchored
at the start. A ``language_model.`` in front of either name is left out.

A module that exists in no checkpoint (``gate_up_proj``) is named if its own name is, or those of all its parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import cached_property

KEYS = ("ignored_layers", "modules_to_not_convert", "ignore", "exclude_modules")
"""Where a ``quantization_config`` may list them."""
FUSED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "fused_qkvg_proj": ("q_proj", "k_proj", "v_proj", "g_proj"),
    "fused_qkvbfg_a_proj": ("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "g_a_proj"),
    "fused_fg_b_proj": ("f_b_proj", "g_b_proj"),
}
"""Fused modules that not every model declares in its ``packed_modules_mapping``; Kimi-K3 declares none in 0.5.17."""
_EXPERT_LEAVES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w2", "w3"))
_TOWER = "language_model."


def listed(config: Mapping[str, object]) -> list[str]:
    """Every entry of a ``quantization_config``, once. Raises: ValueError where one is no list of names."""
    found: dict[str, None] = {}
    for key in KEYS:
        entries = config.get(key)
        if entries is None:
            continue
        if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
            raise ValueError(f"quantization_config.{key} is no list of module names")
        found.update(dict.fromkeys(entries))
    return list(found)


class IgnoreList:
    """``fused`` are the fused modules that the model declares, by the last part of their name."""

    def __init__(self, entries: Iterable[str], fused: Mapping[str, Sequence[str]]) -> None:
        self.entries = list(dict.fromkeys(entries))
        self.fused = {**FUSED, **{name: parts for name, parts in fused.items() if isinstance(parts, list | tuple)}}

    @cached_property
    def _names(self) -> frozenset[str]:
        plain = (entry for entry in self.entries if not _is_pattern(entry))
        return frozenset(entry.strip(".").removeprefix(_TOWER) for entry in plain)

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], bool]]:
        """(pattern, is it a glob)."""
        found = []
        for entry in filter(_is_pattern, self.entries):
            glob = not entry.startswith("re:")
            try:
                found.append((re.compile(translate(entry) if glob else entry.removeprefix("re:")), glob))
            except re.error as error:
                raise ValueError(f"quantization_config: {entry!r} is no regular expression: {error}") from None
        return found

    def names(self, module: str) -> bool:
        """Is this module, fused or not, named? Raises: ValueError where some parts of a fused one are, and some not."""
        if self._hits(module):
            return True
        head, dot, leaf = module.rpartition(".")
        if leaf not in self.fused:
            return False
        parts = {part: self._hits(head + dot + part) for part in self.fused[leaf]}
        if any(parts.values()) and not all(parts.values()):
            yes = ", ".join(part for part, hit in parts.items() if hit)
            no = ", ".join(part for part, hit in parts.items() if not hit)
            raise ValueError(
                f"{module}: the checkpoint's ignore list names its {yes} but not its {no}, and they are one matrix here;"
                " name all of them or none"
            )
        return all(parts.values())

    def names_experts(self, bank: str) -> bool:
        """Are the experts of ``...mlp.experts`` named, as a bank or one by one?"""
        return self._hits(bank) or any(
            all(self._hits(f"{bank}.0.{leaf}") for leaf in leaves) for leaves in _EXPERT_LEAVES
        )

    def _hits(self, module: str) -> bool:
        module = module.removeprefix(_TOWER)
        parts = module.split(".")
        runs = (".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1))
        if any(run in self._names for run in runs):
            return True
        spelled = (module, _TOWER + module)
        for pattern, glob in self._patterns:
            if any(pattern.match(name) for name in spelled) or (glob and any(pattern.match(part) for part in parts)):
                return True
        return False


def _is_pattern(entry: str) -> bool:
    return entry.startswith("re:") or any(letter in entry for letter in "*?[")
