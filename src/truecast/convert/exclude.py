"""Which modules engines must leave alone, derived from the tensors that were written.

Engines look modules up under spellings of their own: other prefixes, another name for the MoE block, and names of
fused modules that exist in no checkpoint. A class of modules becomes one glob over its numbers, with a leading ``*``
where spellings differ in their prefix only. No glob may hit a quantized module under any spelling; a class that is
quantized in some layers and plain in others is listed module by module instead.

How the readers match (checked against their code): SGLang 0.5.20 turns ``*`` into ``.*`` and wants the whole name, its
``language_model.``-less form, or any single dotted part; vLLM 0.33 uses fnmatch on the whole name, and takes an entry
*without* ``*`` as a substring. compressed-tensors readers use ``re.match``, anchored at the start only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from truecast.checkpoint.header import TensorInfo
from truecast.families.base import Family, aliases, fused_modules

_FLOATS = {"BF16", "F16", "F32", "F64", "F8_E4M3"}
_PROBES = ("gate_proj", "up_proj", "down_proj")  # what engines ask for expert 0 of a bank, whatever its leaves


def unquantized_modules(plain: Iterable[TensorInfo]) -> list[str]:
    """Modules that kept an unpacked two-dimensional float ``.weight``."""
    return [
        t.name.removesuffix(".weight")
        for t in plain
        if t.name.endswith(".weight") and len(t.shape) == 2 and t.dtype in _FLOATS
    ]


def tied_heads(modules: Iterable[str]) -> list[str]:
    """Output heads that share the embedding's weight: built as modules at run time, stored nowhere.

    ``modules`` are all modules with a stored weight. A reader that is not told of the head looks for its scales.
    """
    names = set(modules)
    heads = {
        n.removesuffix("embed_tokens").removesuffix("model.") + "lm_head" for n in names if n.endswith("embed_tokens")
    }
    return sorted(heads - names)


def bank_of(module: str) -> str:
    """The expert bank that a module belongs to (``...experts`` of ``...experts.3.w1``); the module itself if none."""
    found = re.match(r"(.*\.experts)\.\d+\.", module)
    return found.group(1) if found else module


def exclude_globs(family: Family, quantized: Iterable[str], unquantized: Iterable[str]) -> list[str]:
    """Globs that hit every unquantized module, also under the names that engines use, and no quantized one. Sorted."""
    forbidden = {_generalised(name) for module in quantized for name in _lookups(family, module)}
    plain = list(unquantized)
    by_class: dict[str, list[str]] = {}
    for module in [*plain, *fused_modules(family, plain)]:
        by_class.setdefault(_generalised(module), []).append(module)
    globs: set[str] = set()
    for modules in by_class.values():
        spellings = {_generalised(a) for a in aliases(family, modules[0])}
        candidates = _starred(spellings)
        if any(_hits(glob, name) for glob in candidates for name in forbidden):
            candidates = {a for module in modules for a in aliases(family, module)}
        globs |= candidates
    return sorted(globs)


def exclude_names(family: Family, unquantized: Iterable[str]) -> list[str]:
    """Every unquantized module in full, under all names that engines use: for readers that know no globs. Sorted."""
    plain = list(unquantized)
    return sorted({name for module in [*plain, *fused_modules(family, plain)] for name in aliases(family, module)})


def as_patterns(globs: Iterable[str]) -> list[str]:
    """The same as compressed-tensors ``re:`` patterns."""
    return ["re:" + _regex(glob) + "$" for glob in globs]


def _lookups(family: Family, module: str) -> set[str]:
    bank = bank_of(module)
    names = [module] if bank == module else [module, bank, *(f"{bank}.0.{probe}" for probe in _PROBES)]
    return {alias for name in names for alias in aliases(family, name)}


def _generalised(module: str) -> str:
    """Numbers become ``*``, but for one at the end: vLLM's mapper mistakes a trailing star for a prefix match."""
    parts = module.split(".")
    return ".".join("*" if p.isdecimal() and i < len(parts) - 1 else p for i, p in enumerate(parts))


def _starred(spellings: set[str]) -> set[str]:
    """Drop spellings that end in another one, and put ``*`` before those that cover them."""
    kept = set()
    for name in spellings:
        if any(name.endswith("." + other) for other in spellings):
            continue
        covers = any(other.endswith("." + name) for other in spellings)
        kept.add("*" + name if covers else name)
    return kept


def _regex(glob: str) -> str:
    return re.escape(glob).replace(r"\*", ".*")


def _hits(glob: str, name: str) -> bool:
    if "*" not in glob and glob in name:
        return True  # vLLM takes an entry without a star as a substring
    return any(_matches(glob, candidate) for candidate in (name, *name.split(".")))


def _matches(glob: str, name: str) -> bool:
    """Does the glob match the whole name? Linear, for names come from untrusted headers; ``*`` is all there is."""
    first, *rest = glob.split("*")
    if not rest:
        return glob == name
    if not name.startswith(first):
        return False
    position = len(first)
    for part in rest[:-1]:
        found = name.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return len(name) - position >= len(rest[-1]) and name.endswith(rest[-1])
