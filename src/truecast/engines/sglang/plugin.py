"""The entry point ``truecast`` of group ``sglang.srt.plugins``: one hook, on the loading of a model.

Each process of a server imports this, and most of them load no model: so what only a model needs is imported where it is
needed, the fixes too.
"""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import NoReturn

from truecast.engines.sglang.later import when_imported
from truecast.engines.sglang.source import installed

MODULE = "sglang.srt.model_executor.model_runner"
METHOD = "ModelRunner.load_model"
TARGET = f"{MODULE}.{METHOD}"
VARIABLE = "TRUECAST_SGLANG"
PREFIXES = (VARIABLE, "SGLANG_", "K3_")
"""Of every variable that the plug-in reads: where none is set there is nothing to check."""


def register() -> None:
    """Called by SGLang in each of its processes.

    SGLang logs an exception of a plug-in and goes on without it, so what must not be passed over ends the process.
    """
    if any(name.startswith(PREFIXES) for name in os.environ) and not _chosen():
        return
    try:
        text = installed()(MODULE)  # not parsed: most processes load no model, and the hook is verified where one does
        if missing := [word for word in ("class ModelRunner", "def load_model(") if word not in text]:
            raise LookupError(f"{MODULE} has no {' and no '.join(missing)}")
        from sglang.srt.plugins import hook_registry  # noqa: F401  (that it is there)
    except (LookupError, ImportError) as error:
        _gone(error)
    when_imported(MODULE, _hook)


def _chosen() -> frozenset[str]:
    from truecast.engines.sglang.choice import chosen
    from truecast.engines.sglang.fixes import FIXES
    from truecast.errors import UsageError

    try:
        return chosen(FIXES, os.environ)
    except UsageError as error:
        _stop(str(error))


def _hook() -> None:
    """Put the hook on, now that there is something to put it on.

    SGLang applies all hooks after its last plug-in, and a target that was applied before is passed over there: applying
    ours too early would cost other plug-ins theirs. While it applies them, it may be an import for one of them that
    brought us here, and to apply again would put those on twice.
    """
    from sglang.srt import plugins
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    from truecast.engines.sglang import hooking, start
    from truecast.engines.sglang.fix import Hook

    load_plugins = getattr(getattr(plugins, "load_plugins", None), "__code__", None)
    applying = _runs(HookRegistry.apply_hooks.__code__)
    waiting = TARGET in HookRegistry._hooks and TARGET not in HookRegistry._patched
    if waiting if applying else _runs(load_plugins):
        HookRegistry.register(TARGET, start.load_model, HookType.AROUND, source=HookSource("truecast", "truecast"))
        return
    try:
        hooking.put_over([Hook(TARGET, start.load_model)])
    except LookupError as error:
        _gone(error)


def _runs(code: CodeType | None) -> bool:
    """Is this function among those that wait for us to return?"""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _gone(error: Exception) -> NoReturn:
    _stop(f"this SGLang cannot be mended, its loading of a model is gone: {error}; set {VARIABLE}=off to run without")


def _stop(message: str) -> NoReturn:
    print(f"truecast: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2)
