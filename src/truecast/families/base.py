"""What truecast needs to know of a model family, and the functions that read it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Family:
    """Facts of one family of models.

    ``twins``: leaf names of sibling modules that engines fuse into one GEMM and give a single global scale.
    ``renames``: ``(pattern, replacement)`` pairs that give the other spellings under which engines look a module up.
    ``fused``: runtime module that engines build out of several checkpoint modules -> those modules' leaf names.
    """

    name: str
    model_types: frozenset[str]
    telling_name: re.Pattern[str]
    """A tensor name with this in it belongs to the family, should config.json be absent."""
    twins: tuple[tuple[str, ...], ...]
    renames: tuple[tuple[str, str], ...]
    fused: dict[str, tuple[str, ...]]
    dialect: str | None = None
    """The MXFP4 dialect in which the family is released, and which engines read."""
    keep: tuple[re.Pattern[str], ...] = ()
    """Quantized modules that stay as they are when the rest goes to ModelOpt's NVFP4, as engines want it."""
    fp8: tuple[re.Pattern[str], ...] = ()
    """Plain BF16 modules that become FP8 blocks in SGLang's W4AFP8 form; the engine reads the others as they are."""
    wants_input_scales: frozenset[tuple[str, str]] = frozenset()
    """(format, dialect) whose engines always quantize activations, and leave a missing scale uninitialised."""
    engine_notes: dict[tuple[str, str], str] = field(default_factory=dict)
    """(format, dialect) -> what a user of a serving engine has to know before converting to it."""


def twin_key(family: Family, module: str) -> str:
    """Modules with the same key must share one global scale. A module without twins is its own key."""
    parent, _, leaf = module.rpartition(".")
    for twins in family.twins:
        if leaf in twins:
            return f"{parent}.{{{','.join(twins)}}}"
    return module


def aliases(family: Family, module: str) -> list[str]:
    """Every spelling under which an engine may look the module up, the checkpoint's own first."""
    spellings = [module]
    for pattern, replacement in family.renames:
        for spelling in list(spellings):
            renamed = re.sub(pattern, replacement, spelling)
            if renamed not in spellings:
                spellings.append(renamed)
    return spellings


def fused_modules(family: Family, modules: Iterable[str]) -> list[str]:
    """Runtime modules built out of these: listed where all members that the family knows for it are present."""
    leaves: dict[str, set[str]] = {}
    for module in modules:
        parent, _, leaf = module.rpartition(".")
        leaves.setdefault(parent, set()).add(leaf)
    return [
        f"{parent}.{runtime}"
        for parent, present in leaves.items()
        for runtime, members in family.fused.items()
        if present.issuperset(members)
    ]


def is_kept(family: Family, module: str) -> bool:
    """Does this quantized module stay in its source format when the rest goes to ModelOpt's NVFP4?"""
    return any(pattern.search(module) for pattern in family.keep)


def becomes_fp8(family: Family, module: str) -> bool:
    """Does this plain BF16 module become FP8 blocks in SGLang's W4AFP8 form?"""
    return any(pattern.search(module) for pattern in family.fp8)
