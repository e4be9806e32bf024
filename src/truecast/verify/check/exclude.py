"""Findings about exclude lists: what they name must be what is stored unquantized, under the names that engines use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from truecast.families import FAMILIES, GENERIC
from truecast.families.base import Family, aliases
from truecast.layouts import LAYOUTS
from truecast.layouts.recognise import Contents
from truecast.verify.check.config import IGNORE_METHODS, exclude_lists, ignored_lists, weight_groups
from truecast.verify.check.findings import Collector, Place
from truecast.verify.check.matching import (
    EXCLUDED,
    PARTIAL,
    Matcher,
    VllmModelopt,
    bad_patterns,
    matchers,
    may_backtrack,
)
from truecast.verify.check.timed import judge_apart

_PLAIN_DTYPES = {"BF16", "F16", "F32", "F64"}
_EXPERT = re.compile(r"(.*\.experts)\.(\d{1,9})\.(.+)")
_STACKED_EXPERTS = re.compile(r"(.*\.experts)\.(?:gate_up_proj|down_proj)(?:\.weight)?")
_NO_LINEAR = re.compile(r"norm|conv|rotary|pos_emb|position_embed", re.IGNORECASE)
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embeddings?|word_embeddings|wte|wpe|embed)$")
_LONG_NAME, _DEEP_NAME = 512, 40
"""Characters and dots beyond which a name is nobody's: the time to match one is then limited."""
_STEPS = 500_000_000
"""So many steps of tame regexes are done without a limit: some seconds."""
_PROBES = ("gate_proj", "up_proj", "down_proj")
"""Leaves of expert 0 that compressed-tensors loaders ask for, whatever the checkpoint calls them."""

_WHY_HARMLESS = (
    "the engines known to load this family build it unquantized, or under another name, whatever the list says;"
    " a reader that goes by the list alone fails"
)
_WHY_LEAF = "SGLang and vLLM ask only whether the bank is excluded; a reader that asks expert by expert is misled"

_BOTH_FUSE = {"qkv_proj", "gate_up_proj"}
"""Fused modules that SGLang and vLLM both build in nearly every model."""


_VLLM_FUSES = {"in_proj_qkvgfab", "fused_qkv_a_proj", "fused_qkv_a_g_proj"}
"""Fused modules of Kimi-K3 that SGLang does not build; SGLang alone loads W4AFP8 of its own dialect."""


@dataclass(frozen=True, slots=True)
class _Exempt:
    """Modules that the engines of a family never look up in the list, whatever the config says."""

    family: str
    dialects: tuple[str, ...]
    modules: re.Pattern[str]


_NEVER_ASKED = (
    # SGLang 0.5.20 and vLLM 0.33 models/kimi_k3: built without a quant_config
    _Exempt("kimi_k3", ("modelopt", "compressed-tensors"), re.compile(r"\.gate$|_res_proj$|vision_tower")),
    _Exempt("kimi_k3", ("compressed-tensors",), re.compile(r"routed_expert_(down|up)_proj$|mm_projector")),
    _Exempt("gpt_oss", ("modelopt", "compressed-tensors"), re.compile(r"\.router$|(^|\.)lm_head$")),
)


@dataclass(frozen=True, slots=True)
class Modules:
    """A checkpoint's modules as engines see them: experts as one bank."""

    quantized: tuple[str, ...]
    """Modules with packed tensors; of a bank its name, and the matrices of its first expert."""
    plain: tuple[str, ...]
    """Modules with a plain two-dimensional float weight; of a bank its name."""
    everything: frozenset[str]
    """Every module that some tensor belongs to, packed experts as matrices."""


def sort_modules(contents: Contents, dialect: str) -> Modules:
    """Sort a checkpoint's tensors into modules. Matrices of another dialect (a draft's) count as neither kind."""
    quantized: dict[str, None] = {}
    seen_banks: dict[str, str] = {}
    everything: set[str] = set()
    for matrix in contents.matrices.values():
        everything.add(matrix.name)
        if not _is_of(matrix.layout, dialect):
            continue
        if match := _EXPERT.fullmatch(matrix.name):
            bank, first = match[1], match[2]
            quantized.setdefault(bank)
            if seen_banks.setdefault(bank, first) != first:
                continue
        quantized.setdefault(matrix.name)
    linear: dict[str, None] = {}
    for tensor in contents.plain.values():
        module = tensor.name.rpartition(".")[0] or tensor.name
        everything.add(module)
        if tensor.dtype not in _PLAIN_DTYPES:
            continue
        if len(tensor.shape) == 3 and (stacked := _STACKED_EXPERTS.fullmatch(tensor.name)):
            linear.setdefault(stacked[1])
        elif tensor.name.endswith(".weight") and len(tensor.shape) == 2 and not _NO_LINEAR.search(module):
            match = _EXPERT.fullmatch(module)
            linear.setdefault(match[1] if match else module)
    return Modules(tuple(quantized), tuple(m for m in linear if m not in quantized), frozenset(everything))


def _is_of(layout: str, dialect: str) -> bool:
    """Does the loader that a block of this dialect chooses read this layout?"""
    if dialect in IGNORE_METHODS:
        return layout == "fp8-deepseek" or (dialect == "w4afp8" and layout == "w4afp8-sglang")
    return dialect == LAYOUTS[layout].DIALECT


def check_exclude(found: Collector, family: Family, block: Mapping[str, Any], file: str, contents: Contents) -> None:
    """Hold a block's exclude list against the modules. Only the two dialects whose matching is known are judged."""
    method = block.get("quant_method")
    if method == "w4afp8" or (method == "fp8" and "fp8-deepseek" in contents.layouts):
        _check_ignored(found, family, block, file, contents)
        return
    dialect = "compressed-tensors" if method == "compressed-tensors" else "modelopt"
    hybrid = method == "fp8" and block.get("moe_quant_algo") is not None
    if not (dialect == "compressed-tensors" or hybrid or str(method or "modelopt").startswith("modelopt")):
        return
    modules = sort_modules(contents, dialect)
    place = Place(file=file)
    if file == "config.json" and "ignore" not in block and block.get("exclude_modules") and dialect == "modelopt":
        found.add("exclude-key", place, "has exclude_modules, but no ignore")
    sglang, vllm = exclude_lists(block)
    _judge_lists(
        found, Lists(family.name, dialect, file, sglang, vllm, _targets(block), hybrid or _is_mixed(block), modules)
    )


def _check_ignored(found: Collector, family: Family, block: Mapping[str, Any], file: str, contents: Contents) -> None:
    method = str(block["quant_method"])
    modules = sort_modules(contents, method)
    names = next(iter(ignored_lists(block)), [])
    asked = [m for m in modules.plain if not _EMBEDDING.search(m)]
    if method == "w4afp8" and asked:
        message = f"{len(asked)} linear modules are plain, such as {asked[0]}"
        found.add("ignored-not-read", Place(file=file), message)
    _judge_lists(found, Lists(family.name, method, file, names, names, ["Linear"], False, modules))


def _judge_lists(found: Collector, lists: Lists) -> None:
    place = Place(file=lists.file)
    slow = lists.slow_patterns()
    if not slow:
        lists.judge(found)
    elif (judged := judge_apart(lists.document())) is not None:
        found.merge(judged)
    else:
        listed = ", ".join(repr(p) if len(p) < 200 else repr(p[:200]) + "..." for p in slow[:3])
        found.add("exclude-invalid", place, f"takes too long to match, or does not end at all: {listed}")


def _is_mixed(block: Mapping[str, Any]) -> bool:
    return str(block.get("quant_algo")).upper() == "MIXED_PRECISION"


def _targets(block: Mapping[str, Any]) -> list[str]:
    said = [group.get("targets") for group in weight_groups(block)]
    listed = [t for targets in said if isinstance(targets, list) for t in targets if isinstance(t, str)]
    return listed or ["Linear"]


@dataclass(frozen=True, slots=True)
class Lists:
    """All that a verdict on a block's lists depends on, as values that JSON can hold."""

    family: str
    dialect: str
    file: str
    sglang: list[str]
    vllm: list[str]
    targets: list[str]
    opt_in: bool
    """Are modules opted in, not out?"""
    modules: Modules

    def document(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "modules": [list(self.modules.quantized), list(self.modules.plain), sorted(self.modules.everything)]
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Lists:
        """The inverse of :meth:`document`."""
        quantized, plain, everything = document["modules"]
        return cls(**{**document, "modules": Modules(tuple(quantized), tuple(plain), frozenset(everything))})

    def slow_patterns(self) -> list[str]:
        """Patterns that may take for ever on some name; all regexes where names are strange, or a great many."""
        patterns = dict.fromkeys([*self.sglang, *self.vllm])
        slow = [p for p in patterns if may_backtrack(p, self.dialect)]
        slow += [t for t in self.targets if may_backtrack(t, "compressed-tensors")]
        regexes = [p for p in (*patterns, *self.targets) if p.startswith("re:")]
        names = {_EXPERT.sub(r"\1.0.\3", name) for name in self.modules.everything}
        steps = sum(len(name) ** 2 for name in names) * sum(2 ** p.count("|") for p in regexes if p.count("|") < 9)
        if any(len(name) > _LONG_NAME or name.count(".") > _DEEP_NAME for name in names):
            return slow or regexes or [*patterns, *self.targets]
        return slow or (regexes if steps > _STEPS else [])

    def judge(self, found: Collector) -> None:
        """Add the findings about the lists."""
        place = Place(file=self.file)
        bad = set(bad_patterns(dict.fromkeys([*self.sglang, *self.vllm]), self.dialect))
        bad_targets = set(bad_patterns(dict.fromkeys(self.targets), "compressed-tensors"))
        for pattern in sorted(bad):
            found.add("exclude-invalid", place, f"{pattern!r} is no valid pattern")
        for target in sorted(bad_targets):
            found.add("exclude-invalid", place, f"the target {target!r} is no valid pattern")
        sglang, vllm = ([p for p in patterns if p not in bad] for patterns in (self.sglang, self.vllm))
        family = next((f for f in FAMILIES if f.name == self.family), GENERIC)
        judge = _Judge(found, family, self.dialect, matchers(self.dialect, sglang, vllm), self.modules, place)
        judge.dead_patterns(dict.fromkeys([*sglang, *vllm]))
        judge.excluded_but_quantized(dict.fromkeys([*sglang, *vllm]))
        if not self.opt_in and self.modules.quantized:
            judge.split_modelopt(vllm)
            judge.plain_but_not_excluded([t for t in self.targets if t not in bad_targets])


class _Judge:
    """The checks on one list; they share the modules' runtime names."""

    def __init__(
        self, found: Collector, family: Family, dialect: str, readers: list[Matcher], modules: Modules, place: Place
    ) -> None:
        self.found, self.family, self.dialect, self.readers = found, family, dialect, readers
        self.modules, self.place = modules, place
        self.splitting: VllmModelopt | None = None
        self.by_expert: dict[str, list[str]] = {}

    def split_modelopt(self, patterns: Sequence[str]) -> None:
        """Also ask vLLM's list as it becomes for models whose weights vLLM renames: ``x*`` as ``x`` and ``x.*``."""
        if self.dialect == "modelopt":
            self.splitting = VllmModelopt(patterns, split=True)

    def dead_patterns(self, patterns: Iterable[str]) -> None:
        """A pattern that hits no module, under any spelling, is probably a mistake."""
        names = self._known_names()
        for pattern in patterns:
            match = _EXPERT.fullmatch(pattern)
            if pattern in names or (match and f"{match[1]}.0.{match[3]}" in names):
                continue
            readers = matchers(self.dialect, [pattern], [pattern])
            if any(reader.hits(name) for name in names for reader in readers):
                continue
            if any(reader.hits(n) for n in self._numbered(pattern) for reader in readers):
                continue
            message = f"{pattern!r} matches no module, also not under the names that engines use"
            self.found.add("exclude-matches-nothing", self.place, message)

    def _numbered(self, pattern: str) -> Iterable[str]:
        """Matrices of experts that a pattern may single out by number; the names that are always tried hold expert 0."""
        if "[" in pattern or "\\d" in pattern:
            return self.modules.everything
        if not self.by_expert:
            for module in self.modules.everything:
                if match := _EXPERT.fullmatch(module):
                    self.by_expert.setdefault(match[2], []).append(module)
        return (module for number in re.findall(r"\d+", pattern) for module in self.by_expert.get(number, ()))

    def excluded_but_quantized(self, patterns: Iterable[str]) -> None:
        """A module with packed tensors that some engine would leave unquantized."""
        listed = list(patterns)
        alone: dict[str, list[Matcher]] = {}

        def hit_by(pattern: str, name: str) -> bool:
            if pattern not in alone:
                alone[pattern] = matchers(self.dialect, [pattern], [pattern])
            return any(reader.hits(name) for reader in alone[pattern])

        for module in self.modules.quantized:
            names = [alias for name in self._asked_for(module) for alias in aliases(self.family, name)]
            hit = next(((r, name) for name in names for r in self.readers if r.hits(name)), None)
            if hit is None:
                continue
            reader, name = hit
            pattern = next((p for p in listed if name in p or hit_by(p, name)), "the list")
            spelled = "" if name == module else f" (looked up as {name})"
            leaf = self.dialect == "modelopt" and _EXPERT.fullmatch(module) is not None
            self.found.add(
                "exclude-hits-quantized",
                Place(module=module),
                f"{pattern!r} in {self.place.file} excludes it in {reader.engine}{spelled}, but it is quantized",
                severity="warning" if leaf else None,
                why=_WHY_LEAF if leaf else None,
            )

    def plain_but_not_excluded(self, targets: Sequence[str]) -> None:
        """A plain module that some engine would build quantized."""
        plain = [m for m in self.modules.plain if self._targeted(m, targets)]
        covered = set(self._fused(plain))
        for module in plain:
            if module in covered:
                continue
            if _EMBEDDING.search(module):
                missed = [] if self.dialect == "compressed-tensors" else self._missed_by(module)  # not a Linear
                if missed:
                    self._miss("exclude-misses-embedding", module, missed)
                continue
            missed = self._missed_by(module)
            if missed:
                self._miss("exclude-misses-plain", module, missed, harmless=self._never_asked(module))
            elif self.splitting and not self._hit_by(self.splitting, module):
                message = (
                    f"{self.place.file} excludes it, but not in vLLM for a model whose weights it renames: there a"
                    " trailing x* becomes x and x.*"
                )
                harmless = self.family.name != "kimi_k3" or self._never_asked(module)
                self.found.add(
                    "exclude-misses-plain", Place(module=module), message, severity="warning" if harmless else None
                )

    def _fused(self, plain: Sequence[str]) -> Iterator[str]:
        """Judge runtime modules fused out of plain ones. Yields the modules that a verdict covers."""
        by_parent: dict[str, dict[str, bool]] = {}
        for module, is_plain in [*((m, True) for m in plain), *((m, False) for m in self.modules.quantized)]:
            parent, _, leaf = module.rpartition(".")
            by_parent.setdefault(parent, {})[leaf] = is_plain
        for parent, leaves in by_parent.items():
            open_names: list[tuple[str, list[str]]] = []
            closed = 0
            for runtime, members in self.family.fused.items():
                foreign = self.dialect == "w4afp8" and runtime in _VLLM_FUSES
                if foreign or not leaves.keys() >= set(members):
                    continue
                if len({leaves[m] for m in members}) > 1:
                    packed = ", ".join(m for m in members if not leaves[m])
                    message = f"of {', '.join(members)} only {packed} is quantized; engines fuse them to {runtime}"
                    self.found.add("fused-partial", Place(module=parent), message)
                    yield from (f"{parent}.{m}" for m in members)
                elif leaves[members[0]]:
                    missed = self._judge_fused(parent, runtime, members)
                    if missed is None:
                        yield from (f"{parent}.{m}" for m in members)
                    elif missed:
                        open_names.append((runtime, missed))
                    else:
                        closed += 1
                        yield from (f"{parent}.{m}" for m in members)
            for runtime, missed in open_names:
                members_text = ", ".join(self.family.fused[runtime])
                alone = runtime in _BOTH_FUSE and len(open_names) + closed == 1
                harmless = (closed > 0 and not alone) or self._never_asked(f"{parent}.{runtime}")
                self._miss("exclude-misses-plain", f"{parent}.{runtime}", missed, fused=members_text, harmless=harmless)
                yield from (f"{parent}.{m}" for m in self.family.fused[runtime])

    def _judge_fused(self, parent: str, runtime: str, members: Sequence[str]) -> list[str] | None:
        """Engines that build the fused module quantized; None if one of them raises because only a part is excluded."""
        missed = []
        for reader in self.readers:
            verdicts = [
                reader.fused(f"{p}.{runtime}", [f"{p}.{m}" for m in members]) for p in aliases(self.family, parent)
            ]
            if EXCLUDED in verdicts:
                continue
            if PARTIAL in verdicts:
                message = f"{reader.engine} fuses {', '.join(members)} to {runtime}, but only some of them are excluded"
                self.found.add("fused-partial", Place(module=parent), message)
                return None
            missed.append(reader.engine)
        if len(missed) < len(self.readers) and runtime not in _BOTH_FUSE:
            return []  # one engine's own name, and that engine finds it excluded
        return missed

    def _miss(self, rule: str, module: str, missed: Sequence[str], *, fused: str = "", harmless: bool = False) -> None:
        stored = f"it is made of {fused}, which are plain" if fused else "its weight is plain"
        self.found.add(
            rule,
            Place(module=module),
            f"{stored}, but {self.place.file} does not exclude it in {' or '.join(missed)}",
            severity="warning" if harmless else None,
            why=_WHY_HARMLESS if harmless else None,
        )

    def _missed_by(self, module: str) -> list[str]:
        return [reader.engine for reader in self.readers if not self._hit_by(reader, module)]

    def _hit_by(self, reader: Matcher, module: str) -> bool:
        asked = self._asked_for(module) if module.endswith(".experts") else [module]
        return any(reader.hits(alias) for name in asked for alias in aliases(self.family, name))

    def _asked_for(self, module: str) -> list[str]:
        """Names that stand for a module in an engine's question; a bank of experts is asked for by probes."""
        if not module.endswith(".experts"):
            return [module]
        return (
            [module] if self.dialect in ("modelopt", *IGNORE_METHODS) else [f"{module}.0.{probe}" for probe in _PROBES]
        )

    def _never_asked(self, module: str) -> bool:
        return any(
            e.family == self.family.name and self.dialect in e.dialects and e.modules.search(module)
            for e in _NEVER_ASKED
        )

    def _targeted(self, module: str, targets: Sequence[str]) -> bool:
        for target in targets:
            if target == "Linear" or target == module:
                return True
            if target.startswith("re:") and any(re.match(target[3:], a) for a in aliases(self.family, module)):
                return True
        return False

    def _known_names(self) -> dict[str, None]:
        """Every name under which an engine may ask for a module or for a part of the model above one."""
        names: dict[str, None] = {"lm_head": None}  # a tied head has no tensor of its own
        parents: dict[str, set[str]] = {}
        for module in self.modules.everything:
            match = _EXPERT.fullmatch(module)
            path = f"{match[1]}.0.{match[3]}" if match else module
            parents.setdefault(path.rpartition(".")[0], set()).add(path.rpartition(".")[2])
            names[path] = None
        for parent, leaves in parents.items():
            for runtime, members in self.family.fused.items():
                if leaves.issuperset(members):
                    names[f"{parent}.{runtime}"] = None
        for name in list(names):
            parts = name.split(".")
            names.update(dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts))))
        return {alias: None for name in names for alias in aliases(self.family, name)}
