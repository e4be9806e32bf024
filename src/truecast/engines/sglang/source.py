"""The installed SGLang as text: what a fix looks at before it believes that a fault is there. Nothing is imported."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from truecast.engines.sglang.fix import Sources


def installed(package: str = "sglang") -> Sources:
    """The source text of the modules of an installed package."""
    from pathlib import Path

    spec = importlib.util.find_spec(package)
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec is not None else []

    def sources(module: str) -> str:
        below = module.split(".")[1:]
        for root in roots:
            for path in (root.joinpath(*below[:-1], f"{below[-1]}.py"), root.joinpath(*below, "__init__.py")):
                if path.is_file():
                    return path.read_text(encoding="utf-8")
        raise LookupError(f"there is no module {module}")

    return sources


def function(sources: Sources, module: str, name: str) -> str:
    """The source of a function or class of a module, or of a method: ``Class.method``.

    Raises: LookupError if it is not there.
    """
    return _cut(sources(module), module, name)


@lru_cache(maxsize=32)  # a module of thousands of lines takes a tenth of a second to parse
def _cut(text: str, module: str, name: str) -> str:
    import ast
    import textwrap

    node: ast.Module | ast.stmt = ast.parse(text)
    for part in name.split("."):
        inner = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt) and getattr(n, "name", None) == part]
        if not inner:
            raise LookupError(f"{module} defines no {name}")
        node = inner[0]
    assert isinstance(node, ast.stmt)
    return textwrap.dedent("\n".join(text.split("\n")[node.lineno - 1 : node.end_lineno]))
