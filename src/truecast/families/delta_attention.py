"""What the modelling code beside a checkpoint does with ``A_log``: read as a syntax tree, never imported, never run.

Kimi-K3 stores ``A_log`` padded with zeros (128 values for 96 heads). Its released class builds the parameter at
``num_heads``, so ``from_pretrained`` stops at the shape. An early fix enlarged the parameter to ``head_dim`` instead: that
loads, and the first forward fails, because the kernel views it as ``[num_heads, 1]`` (``fla/ops/kda/gate.py``).
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

FILE = "modeling_kimi_linear.py"
CLASS = "KimiDeltaAttention"
MAX_BYTES = 4 << 20
"""Larger files are not looked into: the released one has 52 kB."""

Verdict = Literal["absent", "unfixed", "fixed", "oversized", "unknown"]
"""``absent``: no such class. ``unfixed``: built at num_heads, and nothing narrows what is loaded. ``fixed``: built at
num_heads with a loading rule. ``oversized``: built at head_dim. ``unknown``: none of these can be told."""

_HEADS = re.compile(r"(num|n)(_\w+)?_heads")
_WIDTH = re.compile(r"head(_[kqv])?_dim")
_LOADERS = ("_load_from_state_dict", "register_parameter", "__setattr__")
_HOOKS = ("_register_load_state_dict_pre_hook", "register_load_state_dict_pre_hook")


def judge(source: bytes) -> Verdict:
    """What a file's class does with ``A_log``. Whatever is no Python of today is ``unknown``."""
    if CLASS.encode() not in source:
        return "absent"
    if len(source) > MAX_BYTES:
        return "unknown"
    try:
        return _judge(_parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "unknown"


def knows_heads(source: bytes) -> bool:
    """Does the class set ``self.num_heads`` before ``self.A_log``? Of a file that :func:`judge` could read."""
    found = [n for n in _top_level(_parse(source).body) if isinstance(n, ast.ClassDef) and n.name == CLASS][-1]
    init = next(m for m in _methods(found) if m.name == "__init__")
    lines: dict[str, int] = {}
    for node in ast.walk(init):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            lines[node.attr] = min(node.lineno, lines.get(node.attr, node.lineno))
    return "num_heads" in lines and ("A_log" not in lines or lines["num_heads"] < lines["A_log"])


def _parse(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def longer(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Names of one-dimensional ``A_log`` tensors with more values than the config has heads. ``shapes``: by name."""
    heads, _ = linear_heads(config)
    stored = {name: shape for name, shape in shapes.items() if name.endswith("self_attn.A_log") and len(shape) == 1}
    return [name for name, shape in stored.items() if heads is not None and shape[0] > heads]


def linear_heads(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """``num_heads`` and ``head_dim`` of linear attention by a config.json, at its top or in ``text_config``."""
    for part in (config, config.get("text_config")):
        linear = part.get("linear_attn_config") if isinstance(part, Mapping) else None
        if isinstance(linear, Mapping):
            heads, width = (v if type(v) is int else None for v in (linear.get("num_heads"), linear.get("head_dim")))
            return heads, width
    return None, None


def _judge(tree: ast.Module) -> Verdict:
    classes = [node for node in _top_level(tree.body) if isinstance(node, ast.ClassDef) and node.name == CLASS]
    if not classes:
        nested = any(isinstance(node, ast.ClassDef) and node.name == CLASS for node in ast.walk(tree))
        return "unknown" if nested else "absent"
    found = classes[-1]
    size = _size(found)
    if size == "heads":
        return "fixed" if _has_rule(found) or _is_patched(tree) else "unfixed"
    if size == "width" and _is_patched(tree):
        return "fixed"  # what narrows the parameter as it is registered takes both lengths
    return "oversized" if size == "width" and not _is_sliced(found) else "unknown"


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run as the module is loaded: those inside ``if``, ``try`` and ``with`` too."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            parts: list[ast.stmt] = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            for handler in getattr(node, "handlers", []):
                parts += handler.body
            yield from _top_level(parts)


def _methods(found: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    yield from (node for node in found.body if isinstance(node, ast.FunctionDef))


def _size(found: ast.ClassDef) -> Literal["heads", "width", None]:
    """What the last ``self.A_log = ...`` of ``__init__`` is as long as."""
    init = next((m for m in _methods(found) if m.name == "__init__"), None)
    if init is None:
        return None
    assigned: dict[str, ast.expr] = {}
    value: ast.expr | None = None
    for node in ast.walk(init):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if (name := _name(target)) is not None:
                    assigned[name] = node.value
                    value = node.value if _is_a_log(target) else value
        elif isinstance(node, ast.Call) and _name(node.func) == "register_parameter" and len(node.args) == 2:
            first = node.args[0]
            if isinstance(first, ast.Constant) and first.value == "A_log":
                value = node.args[1]
    if value is None:
        return None
    words = set(_words(value, assigned, set()))
    heads, width = any(_HEADS.fullmatch(w) for w in words), any(_WIDTH.fullmatch(w) for w in words)
    if width and not (heads and any(isinstance(n, ast.Slice) for n in ast.walk(value))):
        return "width"
    if "num_heads" in assigned and "num_heads" not in words:
        return None  # other heads than those by which the class goes
    return "heads" if heads and not width else None


def _name(node: ast.expr) -> str | None:
    """``x`` for a name, ``x`` for ``self.x`` (or any ``....x``)."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _is_a_log(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "A_log"


def _words(value: ast.expr, assigned: Mapping[str, ast.expr], seen: set[str]) -> Iterator[str]:
    """Names and string keys that an expression is made of; those that say neither heads nor width are looked up."""
    for node in ast.walk(value):
        word = node.value if isinstance(node, ast.Constant) else _name(node) if isinstance(node, ast.expr) else None
        if not isinstance(word, str):
            continue
        yield word
        telling = _HEADS.fullmatch(word) or _WIDTH.fullmatch(word)
        if not telling and word in assigned and word not in seen and not isinstance(node, ast.Constant):
            seen.add(word)
            yield from _words(assigned[word], assigned, seen)


def _mentions(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) and "A_log" in n.value for n in ast.walk(node))


def _has_rule(found: ast.ClassDef) -> bool:
    for method in _methods(found):
        if method.name in _LOADERS and _mentions(method):
            return True
        calls = (n for n in ast.walk(method) if isinstance(n, ast.Call))
        if any(isinstance(c.func, ast.Attribute) and c.func.attr in _HOOKS for c in calls) and _mentions(found):
            return True
    return False


def _is_patched(tree: ast.Module) -> bool:
    """Is a loading method put into the class from outside, at the top level of the module?"""
    for node in _top_level(tree.body):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr in _LOADERS and _name(target.value) == CLASS:
                    return True
    return False


def _is_sliced(found: ast.ClassDef) -> bool:
    """Does another method cut ``self.A_log`` to length before use?"""
    return any(
        isinstance(node, ast.Subscript) and _is_a_log(node.value)
        for method in _methods(found)
        if method.name != "__init__"
        for node in ast.walk(method)
    )
