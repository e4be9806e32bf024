"""SGLang's server arguments, read from the source text of its argument classes; nothing is imported.

A field ``name: A[type, "help"]`` or ``name: A[type, Arg(...)]`` is the argument ``--name``; the rest is registered by
``parser.add_argument``. SGLang 0.5.17 has all of it in ``server_args.py``, 0.5.20 and 0.5.23 have one class for each
namespace below ``arg_groups/fields`` and the constants in ``arg_groups/choices.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """One server argument. ``spellings``: every option string, the main one first.

    ``choices`` is None where the source lists none or works them out. ``default`` is the literal's text, None where it is
    not written as one. ``takes_value`` is False for a switch. ``number``: ``int`` or ``float`` where its value is one.
    """

    spellings: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...] | None = None
    default: str | None = None
    number: str = ""

    @property
    def name(self) -> str:
        """The main spelling."""
        return self.spellings[0]


def read_flags(texts: Iterable[str]) -> dict[str, Flag]:
    """Every argument by every spelling. ``texts``: source files that declare arguments or the lists of their choices.

    Raises: SyntaxError, ValueError, RecursionError for what is no Python.
    """
    trees = [ast.parse(text) for text in texts]
    constants: dict[str, tuple[str, ...]] = {}
    for tree in trees:
        for node in tree.body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            if (values := _strings(node.value, constants)) is not None:
                constants[node.targets[0].id] = values
    found: dict[str, Flag] = {}
    for tree in trees:
        for flag in _flags(tree, constants):
            for spelling in flag.spellings:
                found.setdefault(spelling, flag)
    return found


def _flags(tree: ast.Module, constants: Mapping[str, tuple[str, ...]]) -> Iterator[Flag]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and (flag := _field(field, constants)):
                    yield flag
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            spellings = _options(call.args)
            if spellings:
                yield _flag(spellings, _keywords(call), constants, switch=False)


def _field(field: ast.AnnAssign, constants: Mapping[str, tuple[str, ...]]) -> Flag | None:
    annotation = field.annotation
    if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("A", "Annotated")):
        return None
    if not (isinstance(field.target, ast.Name) and isinstance(annotation.slice, ast.Tuple)):
        return None
    kind, *marks = annotation.slice.elts
    keywords: dict[str, ast.expr] = {}
    told = False
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "Arg":
            keywords, told = _keywords(mark), True
        elif not isinstance(mark, ast.Call):  # the help text, maybe put together
            told = True
    if not told or _true(keywords.get("no_cli")):
        return None
    main = keywords.get("cli_name")
    name = main.value if isinstance(main, ast.Constant) else "--" + field.target.id.replace("_", "-")
    aliases = keywords.get("aliases")
    spellings = [str(name), *(_options(aliases.elts) if isinstance(aliases, ast.List | ast.Tuple) else ())]
    if field.value is not None:
        keywords.setdefault("default", field.value)
    literal = next((n for n in ast.walk(kind) if isinstance(n, ast.Subscript) and _last(n.value) == "Literal"), None)
    if literal is not None:
        keywords.setdefault("choices", literal.slice)
    keywords.setdefault("type", ast.Name(_inner(kind)))
    return _flag(spellings, keywords, constants, switch=_inner(kind) == "bool")


def _flag(
    spellings: list[str], keywords: Mapping[str, ast.expr], constants: Mapping[str, tuple[str, ...]], *, switch: bool
) -> Flag:
    action = keywords.get("action")
    name = "" if action is None else str(action.value) if isinstance(action, ast.Constant) else _last(action)
    if name == "BooleanOptionalAction":
        spellings = [*spellings, *(f"--no-{s.removeprefix('--')}" for s in spellings)]
    if name:
        with_value = name in ("store", "append", "LoRAPathAction", "DeprecatedAliasStoreAction")
    else:
        with_value = not switch
    if "choices" in keywords and name.startswith("Deprecated"):
        with_value = True
    choices = keywords.get("choices")
    default = keywords.get("default")
    return Flag(
        tuple(spellings),
        with_value,
        None if choices is None else _strings(choices, constants),
        str(default.value) if isinstance(default, ast.Constant) and default.value is not None else None,
        kind.id if isinstance(kind := keywords.get("type"), ast.Name) and kind.id in ("int", "float") else "",
    )


def _options(nodes: Iterable[ast.expr]) -> list[str]:
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value[:1] == "-"]


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {k.arg: k.value for k in call.keywords if k.arg is not None}


def _strings(node: ast.expr, constants: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """A literal list of choices, or a constant's. None for anything that would have to be computed."""
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):  # Literal["one"]
        return (node.value,)
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None
    values = [n.value if isinstance(n, ast.Constant) else None for n in node.elts]
    return None if None in values else tuple(str(v) for v in values)


def _inner(kind: ast.expr) -> str:
    """The type inside ``Optional``."""
    if isinstance(kind, ast.Subscript) and _last(kind.value) == "Optional":
        return ast.unparse(kind.slice)
    return ast.unparse(kind)


def _last(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
