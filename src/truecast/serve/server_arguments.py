"""The words of an SGLang command line as a mapping: one spelling of each argument, unknown ones apart."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from truecast.errors import UsageError
from truecast.serve.server_flags import Flag

SPELLINGS = {
    "--model": "--model-path",
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--ep": "--ep-size",
    "--expert-parallel-size": "--ep-size",
    "--pp": "--pp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--dp": "--dp-size",
    "--data-parallel-size": "--dp-size",
    "--dcp": "--dcp-size",
    "--decode-context-parallel-size": "--dcp-size",
    "--nccl-init-addr": "--dist-init-addr",
    "--speculative-draft-model": "--speculative-draft-model-path",
}
"""Other names of what is looked at here, for where no SGLang is there to ask."""


@dataclass(frozen=True, slots=True)
class ServerArguments:
    """``values``: by main spelling with dashes, ``""`` for a switch. ``unknown``: what is no argument of this SGLang, and
    the nearest that is (``""`` if nothing is near)."""

    values: Mapping[str, str]
    unknown: Mapping[str, str]


def read_arguments(words: Sequence[str], flags: Mapping[str, Flag] | None = None) -> ServerArguments:
    """Parse ``["--tp-size", "32", "--port=30000", "--trust-remote-code"]``.

    As SGLang's own parser does it: ``--name=value``, unique beginnings of a name, several words after one name, the last
    one counts. ``flags``: those of an installation, by every spelling; without them nothing is unknown.
    Raises: UsageError for a word that belongs to no argument.
    """
    values: dict[str, str] = {}
    unknown: dict[str, str] = {}
    name = ""
    for word in words:
        if not word.startswith("--"):
            if not name:
                raise UsageError(f"{word!r} belongs to no argument", fix="write --name value, as for sglang serve")
            values[name] = f"{values[name]} {word}".strip()
            continue
        spelled, equals, value = word.partition("=")
        name = _main(spelled, flags)
        if flags is not None and name not in flags:
            unknown[name] = next(iter(difflib.get_close_matches(name, flags, n=1)), "")
        values[name] = value if equals else ""
    return ServerArguments({k: v for k, v in values.items() if k not in unknown}, unknown)


def _main(spelled: str, flags: Mapping[str, Flag] | None) -> str:
    if flags is None:
        return SPELLINGS.get(spelled, spelled)
    if spelled in flags:
        return flags[spelled].name
    begun = {flag.name for name, flag in flags.items() if name.startswith(spelled)}
    return begun.pop() if len(begun) == 1 else SPELLINGS.get(spelled, spelled)
