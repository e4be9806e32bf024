"""How engines decide from an exclude list whether a module stays unquantized, re-stated from their sources.

SGLang 0.5.20: layers/quantization/{modelopt_quant,utils}.py and compressed_tensors/utils.py.
vLLM 0.33.0: layers/quantization/modelopt.py, utils/{quant_utils,config_utils}.py and compressed_tensors/utils.py.

Each matcher knows one engine and one dialect. ``hits`` asks for a module that exists at run time as named; ``fused``
for one that the engine builds out of several, which may also be excluded through all of its members' names, and is an
error where only some of them are excluded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import Protocol

PARTIAL = "partial"
EXCLUDED = "excluded"
QUANTIZED = "quantized"

_LANGUAGE = "language_model."
_MLA_PROJECTIONS = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"}
_PLAIN = re.compile(r"[\w.-]+")
_REGEX_SIGNS = frozenset("\\?[](){}+|^$")
_BRANCHES = 6
_TAME = re.compile(r"(?:[\w ,:/^$|-]|\.\*?|\\[.bBdDsSwW]|\[\^?[\w.-]+\](?![*+?{])|\((?:\?:)?|\)(?![*+?{]))*+")
_SUBSTRINGS_TRIED = 4096  # beyond this many plain names only whole dotted parts are tried, not every substring


class Matcher(Protocol):
    """One engine's reading of one exclude list."""

    engine: str

    def hits(self, name: str) -> bool:
        """Does the list exclude this runtime module?"""

    def fused(self, name: str, members: Sequence[str]) -> str:
        """``excluded``, ``quantized`` or ``partial`` for a runtime module fused out of ``members`` (full names)."""


def bad_patterns(patterns: Iterable[str], dialect: str) -> list[str]:
    """Patterns that an engine cannot compile as the regular expression that it makes of them."""
    as_regex = [(p, _sglang_regex(p)) for p in patterns] if dialect == "modelopt" else []
    as_regex += [(p, p.removeprefix("re:")) for p in patterns if dialect != "modelopt" and p.startswith("re:")]
    return [pattern for pattern, regex in as_regex if not _compiles(regex)]


def _compiles(regex: str) -> bool:
    try:
        re.compile(regex)
    except (re.error, OverflowError, RecursionError, ValueError):  # a count too large, parentheses too deep
        return False
    return True


def may_backtrack(pattern: str, dialect: str) -> bool:
    """Could the time to match this pattern grow faster than the square of a name's length? Errs towards yes.

    Globs never do, nor do regexes of literals, classes, groups that are not repeated, a few ``|`` (each may double the
    time) and at most two ``.*``.
    """
    if dialect == "modelopt":
        return not _REGEX_SIGNS.isdisjoint(pattern)
    regex = pattern.removeprefix("re:")
    return pattern.startswith("re:") and (
        regex.count("*") > 2 or regex.count("|") > _BRANCHES or _TAME.fullmatch(regex) is None
    )


def _sglang_regex(pattern: str) -> str:
    return pattern.replace(".", r"\.").replace("*", ".*")  # as SGLang does: ? [ ] ( ) stay regex


def _sglang_glob(pattern: str) -> str:
    """The same for a pattern whose only sign is the star. A part once found is not searched again: no backtracking."""
    first, *parts = [re.escape(part) for part in re.split(r"\*+", pattern)]
    if not parts:
        return first
    return first + "".join(f"(?>.*?{part})" for part in parts[:-1]) + ".*" + parts[-1]


def _any_of(regexes: Iterable[str]) -> re.Pattern[str] | None:
    """One regex for many; for those only that are made here, since others may not bear being joined."""
    parts = [f"(?:{r})" for r in regexes]
    return re.compile("|".join(parts)) if parts else None


def _merge(decisions: Sequence[bool]) -> str:
    return EXCLUDED if all(decisions) else PARTIAL if any(decisions) else QUANTIZED


def _spellings(name: str) -> tuple[str, ...]:
    return (name, name.removeprefix(_LANGUAGE)) if name.startswith(_LANGUAGE) else (name,)


def _subpaths(name: str) -> Iterable[str]:
    """Every run of whole dotted parts of a name."""
    parts = name.split(".")
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            yield ".".join(parts[start:end])


class SglangModelopt:
    """Globs over the whole name or any dotted part; plain names also where they stand inside the dotted path."""

    engine = "SGLang"

    def __init__(self, patterns: Sequence[str]) -> None:
        self.literals = {p.rstrip(".") for p in patterns}
        others = [p for p in patterns if not _PLAIN.fullmatch(p)]
        self.globs = _any_of(_sglang_glob(p) for p in others if _REGEX_SIGNS.isdisjoint(p))
        self.regexes = [re.compile(_sglang_regex(p)) for p in others if not _REGEX_SIGNS.isdisjoint(p)]
        self.tails = {p.rpartition(".")[2] for p in patterns} & _MLA_PROJECTIONS
        self.expert_names = "\n".join(p for p in patterns if "experts" in p and "*" not in p)

    def hits(self, name: str) -> bool:
        """See :class:`Matcher`."""
        if self._globbed(name):
            return True
        return not name.endswith(".experts") and self._listed(name)  # a bank is asked for by its globs only

    def fused(self, name: str, members: Sequence[str]) -> str:
        """See :class:`Matcher`."""
        listed = _merge([self._inside(member) for member in members])
        return EXCLUDED if listed == QUANTIZED and self._globbed(name) else listed

    def _globbed(self, name: str) -> bool:
        for spelling in _spellings(name):
            for candidate in (spelling, *spelling.split(".")):
                if candidate in self.literals or (self.globs is not None and self.globs.fullmatch(candidate)):
                    return True
                if any(regex.fullmatch(candidate) for regex in self.regexes):
                    return True
            if any(tail in spelling.rpartition(".")[2] for tail in self.tails):
                return True
        return False

    def _listed(self, name: str) -> bool:
        return self._inside(name) or ("experts" in name and name in self.expert_names)

    def _inside(self, name: str) -> bool:
        return any(path in self.literals for path in _subpaths(name))


class VllmModelopt:
    """fnmatch over the whole name; a plain name hits wherever it is a substring; a trailing ``x*`` may be split in two.

    ``split``: vLLM rewrites ``x*`` to ``x`` and ``x.*`` for models whose weights it renames.
    """

    engine = "vLLM"

    def __init__(self, patterns: Sequence[str], *, split: bool) -> None:
        patterns = [p for pattern in patterns for p in (_split_star(pattern) if split else [pattern])]
        self.literals = {p for p in patterns if not set(p) & set("*?[")}
        self.globs = _any_of(translate(p) for p in patterns if p not in self.literals)
        self.expert_names = "\n".join(p for p in patterns if "experts" in p)

    def hits(self, name: str) -> bool:
        """See :class:`Matcher`."""
        return self._direct(name) or ("experts" in name and name in self.expert_names)

    def fused(self, name: str, members: Sequence[str]) -> str:
        """See :class:`Matcher`."""
        if name in self.literals:
            return EXCLUDED
        listed = _merge([member in self.literals for member in members])
        return EXCLUDED if listed == QUANTIZED and self._direct(name) else listed

    def _direct(self, name: str) -> bool:
        if name in self.literals or (self.globs is not None and self.globs.match(name)):
            return True
        if len(self.literals) > _SUBSTRINGS_TRIED:
            return any(path in self.literals for path in _subpaths(name))
        return any(literal in name for literal in self.literals)


def _split_star(pattern: str) -> list[str]:
    if len(pattern) >= 2 and pattern.endswith("*") and pattern[-2] != ".":
        return [pattern[:-1], pattern[:-1] + ".*"]
    return [pattern]


class CompressedTensors:
    """``re:`` patterns anchored at the start; plain names exact (vLLM), or a dotted suffix too (SGLang)."""

    def __init__(self, patterns: Sequence[str], engine: str) -> None:
        self.engine = engine
        self.literals = {p for p in patterns if not p.startswith("re:")}
        self.regexes = [re.compile(p.removeprefix("re:")) for p in patterns if p.startswith("re:")]

    def hits(self, name: str) -> bool:
        """See :class:`Matcher`."""
        if name in self.literals or any(regex.match(name) for regex in self.regexes):
            return True
        if self.engine != "SGLang":
            return False
        parts = name.split(".")
        return any(".".join(parts[start:]) in self.literals for start in range(1, len(parts)))

    def fused(self, name: str, members: Sequence[str]) -> str:
        """See :class:`Matcher`."""
        if name in self.literals or (self.engine == "vLLM" and self.hits(name)):
            return EXCLUDED
        return _merge([self.hits(member) for member in members])


class IgnoredLayers:
    """Names of modules. vLLM wants the whole name; SGLang hits wherever one stands inside the dotted path."""

    def __init__(self, names: Sequence[str], engine: str) -> None:
        self.engine = engine
        self.names = set(names)

    def hits(self, name: str) -> bool:
        """See :class:`Matcher`."""
        if name in self.names:
            return True
        return self.engine == "SGLang" and any(path in self.names for path in _subpaths(name))

    def fused(self, name: str, members: Sequence[str]) -> str:
        """See :class:`Matcher`."""
        listed = _merge([self.hits(member) for member in members])
        return EXCLUDED if listed == QUANTIZED and self.hits(name) else listed


def matchers(dialect: str, sglang: Sequence[str], vllm: Sequence[str]) -> list[Matcher]:
    """How SGLang and vLLM read these lists. A pattern that is no valid regular expression must be left out before."""
    if dialect == "compressed-tensors":
        return [CompressedTensors(sglang, "SGLang"), CompressedTensors(vllm, "vLLM")]
    if dialect in ("w4afp8", "fp8"):  # vLLM has no loader for the former
        return [IgnoredLayers(sglang, "SGLang"), *([IgnoredLayers(vllm, "vLLM")] if dialect == "fp8" else [])]
    return [SglangModelopt(sglang), VllmModelopt(vllm, split=False)]
