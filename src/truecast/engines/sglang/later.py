"""Something to do when a module has been imported, if it ever is.

SGLang's registry imports what it hooks. The process that answers HTTP and the one that turns tokens into text never load a
model, and would import the whole of it for nothing: seconds at start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Watch:
    """A finder that finds one module as everybody else does, and acts each time after it was executed.

    It stays: looking a module up does not import it, and an import that failed may be tried again.
    """

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self.name = name
        self.act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        spec = self._spec_of_others(path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                self.act()

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec

    def _spec_of_others(self, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        after = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for finder in after:
            if (look := getattr(finder, "find_spec", None)) is not None:
                spec: ModuleSpec | None = look(self.name, path, target)
                if spec is not None:
                    return spec
        return None


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call ``act`` at the end of each import of module ``name`` from now on; at once too if that has been."""
    if name in sys.modules:
        act()
    sys.meta_path.insert(0, _Watch(name, act))
