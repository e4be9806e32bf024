"""Something to do when a module has been imported, if it ever is.

SGLang's registry imports what it hooks. The process that answers HTTP and the one that turns tokens into text never load a
model, and would import the whole of it for nothing: seconds at start.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Watch:
    """A finder that finds one module as everybody else does, and acts after it was executed."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self.name = name
        self.act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                self.act()

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call ``act`` at the end of the first import of module ``name``; at once if that has been."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Watch(name, act))
