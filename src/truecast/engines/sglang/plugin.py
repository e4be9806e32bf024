"""The entry point ``truecast`` of group ``sglang.srt.plugins``: one hook, on the loading of a model."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from truecast.engines.sglang import start
from truecast.engines.sglang.choice import VARIABLE, chosen
from truecast.engines.sglang.fixes import FIXES
from truecast.engines.sglang.later import when_imported
from truecast.engines.sglang.source import function, installed
from truecast.errors import UsageError

MODULE = "sglang.srt.model_executor.model_runner"
METHOD = "ModelRunner.load_model"


def register() -> None:
    """Called by SGLang in each of its processes.

    SGLang logs an exception of a plug-in and goes on without it, so what must not be passed over ends the process.
    """
    try:
        names = chosen(FIXES, os.environ)
    except UsageError as error:
        _stop(str(error))
    if not names:
        return
    try:
        function(installed(), MODULE, METHOD)
        from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType
    except (LookupError, ImportError) as error:
        _stop(
            f"this SGLang cannot be mended, its loading of a model is gone: {error}; set {VARIABLE}=off to run without"
        )

    source = HookSource("truecast", "truecast")

    def hook() -> None:
        HookRegistry.register(f"{MODULE}.{METHOD}", start.load_model, HookType.AROUND, source=source)
        HookRegistry.apply_hooks()

    when_imported(MODULE, hook)


def _stop(message: str) -> NoReturn:
    print(f"truecast: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2)
