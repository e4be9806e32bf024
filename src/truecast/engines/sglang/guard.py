"""What an assertion in SGLang's source says of one activation and one backend: read as a syntax tree, nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Mapping


def holds(test: ast.expr, names: Mapping[str, object], backend_name: str, backend: str) -> bool:
    """Is ``test`` true where ``names`` are these values and the variable ``backend_name`` is this MoE backend?

    Understood are ``and``, ``or``, ``not``, ``==``, ``!=``, ``in``, ``not in`` and ``backend_name.is_<backend>()``.
    Raises: LookupError for anything else.
    """
    match test:
        case ast.BoolOp(op=op, values=values):
            found = [holds(value, names, backend_name, backend) for value in values]
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not holds(operand, names, backend_name, backend)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=attribute), args=[], keywords=[]):
            if owner == backend_name and attribute.startswith("is_"):
                return attribute == f"is_{backend}"
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compare(op, _value(left, names), _value(right, names))
    raise LookupError(f"an assertion asks for more than an activation and a backend: {ast.unparse(test)}")


def _compare(op: ast.cmpop, left: object, right: object) -> bool:
    if isinstance(op, ast.Eq | ast.NotEq):
        return (left == right) == isinstance(op, ast.Eq)
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, tuple | list | set):
        return (left in right) == isinstance(op, ast.In)
    raise LookupError(f"an assertion compares by {type(op).__name__}")


def _value(node: ast.expr, names: Mapping[str, object]) -> object:
    if isinstance(node, ast.Name):
        if node.id in names:
            return names[node.id]
        raise LookupError(f"an assertion asks for {node.id}")
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError):
        raise LookupError(f"an assertion asks for {ast.unparse(node)}") from None
    return value
