"""What the user chose through the environment: ``TRUECAST_SGLANG`` and the settings of each fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from truecast.engines.sglang.fix import Fix
from truecast.engines.sglang.plugin import VARIABLE
from truecast.errors import UsageError


def chosen(fixes: Iterable[Fix], environment: Mapping[str, str]) -> frozenset[str]:
    """Names of the fixes that may be applied: all unless ``TRUECAST_SGLANG`` is ``off`` or names some, with commas.

    Raises: UsageError for a name that is none or empty, and for a setting of a fix that does not parse.
    """
    known = {fix.name: fix for fix in fixes}
    names = [name.strip(" ") for name in environment[VARIABLE].split(",")] if VARIABLE in environment else list(known)
    if names == ["off"]:
        return frozenset()
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"no fix of SGLang is called {', '.join(map(ascii, unknown))}",
            where=_shown(VARIABLE, environment),
            fix=f"set it to off, or to some of {', '.join(known)} with commas between, or leave it away for all",
        )
    for fix in known.values():
        for variable, parse in fix.settings.items():
            if variable in environment:
                try:
                    parse(environment[variable])
                except ValueError as problem:
                    raise UsageError(
                        str(problem), where=_shown(variable, environment), fix=f"it sets the fix {fix.name}"
                    ) from problem
    return frozenset(names)


def _shown(variable: str, environment: Mapping[str, str]) -> str:
    """Quoted, so that spaces and what is no letter are seen."""
    text = environment[variable]
    return f"{variable}={text[:60]!a}" + ("..." if len(text) > 60 else "")


def switch(text: str) -> bool:
    """A setting that is on or off. Raises: ValueError."""
    if text not in ("0", "1"):
        raise ValueError("neither 0 nor 1")
    return text == "1"


def seconds(text: str) -> float:
    """A setting that is a time: digits, and a point if it has to be. Raises: ValueError."""
    value = float(text) if re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,7})?", text) else 0.0
    if not 0 < value <= 30 * 86400:
        raise ValueError("no number of seconds from above 0 to 30 days, in digits")
    return value
