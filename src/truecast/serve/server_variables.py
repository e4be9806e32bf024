"""The types of SGLang's environment variables, read from the source text of ``environ.py``; nothing is imported.

A variable is a field of the class ``Envs``: ``SGLANG_NAME = EnvInt(0)``. How its text is read is said by the class that it
is made of, or by the first one of that class's bases that has a ``parse``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

KINDS = {"EnvInt": "int", "EnvFloat": "float", "EnvBool": "bool"}


def read_variables(text: str) -> dict[str, str]:
    """``int``, ``float`` or ``bool`` by the variable's name; those of other types are left out.

    Raises: SyntaxError, ValueError, RecursionError for what is no Python.
    """
    classes = _classes(text)
    fields = classes["Envs"].body if "Envs" in classes else []
    found = {}
    for field in fields:
        if not (isinstance(field, ast.Assign) and isinstance(field.targets[0], ast.Name)):
            continue
        made = field.value.func if isinstance(field.value, ast.Call) else None
        if isinstance(made, ast.Name) and (kind := KINDS.get(_parser(made.id, classes))):
            found[field.targets[0].id] = kind
    return found


def read_words(text: str) -> frozenset[str]:
    """The words that ``EnvBool`` takes, in lower case: those of the lists in its ``parse``. Raises: as above."""
    parser = _classes(text).get("EnvBool")
    lists = [node for node in ast.walk(parser) if isinstance(node, ast.List)] if parser is not None else []
    return frozenset(str(word.value) for node in lists for word in node.elts if isinstance(word, ast.Constant))


def read_members(text: str, name: str) -> tuple[str, ...]:
    """The values of an enumeration of strings, none where there is no such class. Raises: as above."""
    found = _classes(text).get(name)
    values = [node.value for node in found.body if isinstance(node, ast.Assign)] if found is not None else []
    return tuple(value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str))


def _classes(text: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}


def _parser(name: str, classes: Mapping[str, ast.ClassDef], depth: int = 9) -> str:
    """The class whose ``parse`` a class has, "" where that is not seen. ``depth`` ends a class that is its own base."""
    here = classes.get(name)
    if here is None or depth == 0:
        return ""
    if any(isinstance(node, ast.FunctionDef) and node.name == "parse" for node in here.body):
        return name
    bases = [base.id for base in here.bases if isinstance(base, ast.Name)]
    return next((found for base in bases if (found := _parser(base, classes, depth - 1))), "")
