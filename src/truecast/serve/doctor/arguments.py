"""Server arguments and environment variables against what this SGLang knows."""

from __future__ import annotations

import difflib
import re

from truecast.engines.sglang.fix import Fix
from truecast.engines.sglang.fixes import FIXES
from truecast.serve.doctor.faults import plugin_state
from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.setting import no_sglang
from truecast.serve.installed import Installation, flags, variables

SINCE = {"--speculative-draft-kv-cache-dtype": "0.5.18"}
"""Arguments that came with a version after 0.5.17."""
PATCH_ONLY = {
    "SGLANG_EXPERT_LOAD_FILTER": "expert-load-filter",
    "SGLANG_MARLIN_EP_BLOCK": "marlin-ep-tile",
    "K3_W4_SRC2DST": "w4a8-routing",
    "SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S": "load-barrier",
}
"""Variables that no released SGLang reads, by the fix of the plug-in that does."""
_NEAR = 0.8
_OTHER = "K3_W4_SRC2DST"
"""The one whose name does not begin as SGLang's own do."""


def _unknown(ground: Ground) -> Verdict | list[Verdict]:
    if ground.arguments is None:
        return skipped("the server's arguments are not given")
    if ground.server is not None:
        return skipped("the server has taken its arguments")
    if said := no_sglang(ground):
        return said
    assert ground.installation is not None
    known = flags(ground.installation)
    nearest = dict(ground.unknown_arguments)
    for name in ground.arguments:
        if name not in known:
            nearest.setdefault(name, next(iter(difflib.get_close_matches(name, known, 1, _NEAR)), ""))
    version = ground.installation.version
    told = []
    for name, near in nearest.items():
        since = f"; it came with {SINCE[name]}" if name in SINCE else ""
        remedy = f"write {near}" if near and not since else "leave it out, or use a version that has it"
        told.append(failed(f"SGLang {version} has no argument {name}{since}", remedy))
    return told or passed(f"SGLang {version} has each of {len(ground.arguments)} arguments")


def _choices(ground: Ground) -> Verdict | list[Verdict]:
    if ground.arguments is None:
        return skipped("the server's arguments are not given")
    if ground.server is not None:
        return skipped("the server has taken its arguments")
    if said := no_sglang(ground):
        return said
    assert ground.installation is not None
    known = flags(ground.installation)
    told = []
    for name, value in ground.arguments.items():
        flag = known.get(name)
        if flag is None or "$" in value:
            continue
        if flag.takes_value and value == "":
            told.append(failed(f"{name} has no value", f"give {name} a value"))
        elif not flag.takes_value and value:
            told.append(failed(f"{name} {value}: it is a switch and takes no value", f"write {name} alone"))
        elif flag.choices is not None and (wrong := [v for v in value.split() if v not in flag.choices]):
            told.append(failed(f"{name} {' '.join(wrong)} is none of its choices", f"one of {', '.join(flag.choices)}"))
        elif flag.number and (wrong := [v for v in value.split() if not _is_number(v, flag.number)]):
            told.append(failed(f"{name} {' '.join(wrong)} is no number", f"give {name} a value of type {flag.number}"))
    return told or passed(f"no value of {len(ground.arguments)} arguments is outside what the source lists")


def _is_number(text: str, kind: str) -> bool:
    """As argparse reads it."""
    try:
        int(text) if kind == "int" else float(text)
    except ValueError:
        return False
    return True


def _patch_only(ground: Ground) -> Verdict | list[Verdict]:
    if ground.server is not None and ground.server.environment is None:
        return skipped("the server does not show its environment")
    if said := no_sglang(ground):
        return said
    assert ground.installation is not None
    held = [name for name in PATCH_ONLY if name in ground.environment]
    if not held:
        return passed(f"none of {', '.join(PATCH_ONLY)} is set")
    told: list[Verdict] = []
    for name in held:
        value = f"{name}={ground.environment[name]}"
        if _reads(ground.installation, name):
            told.append(passed(f"{value} is read by this SGLang"))
            continue
        why = plugin_state(ground, _fix(PATCH_ONLY[name]))
        if why is None:
            told.append(passed(f"{value} is read by the plug-in's {PATCH_ONLY[name]}"))
        else:
            told.append(
                warned(
                    f"{value} does nothing: SGLang {ground.installation.version} does not read it, and {why}",
                    "install the plug-in (docs/sglang.md), or unset it",
                )
            )
    return told


def _reads(installation: Installation, name: str) -> bool:
    """Does this SGLang, maybe a patched one, read the variable? The file that declares most is asked before all others."""
    if name == _OTHER:
        modules = ("sglang.kernels.ops.moe.ep_moe_kernels", "sglang.srt.layers.moe.cutlass_w4a8_moe")
        return any(name in installation.sources(module) for module in modules)
    try:
        if re.search(rf"\b{re.escape(name)}\b", installation.sources("sglang.srt.environ")):
            return True
    except LookupError:
        pass
    return name in variables(installation)


def _fix(name: str) -> Fix:
    return next(fix for fix in FIXES if fix.name == name)


def _misspelled(ground: Ground) -> Verdict | list[Verdict]:
    if ground.server is not None and ground.server.environment is None:
        return skipped("the server does not show its environment")
    if said := no_sglang(ground):
        return said
    assert ground.installation is not None
    ours = {name for fix in FIXES for name in fix.settings}
    held = [
        n for n in sorted(ground.environment) if n.startswith(("SGLANG_", "SGL_")) and n not in ours | set(PATCH_ONLY)
    ]
    if not held:
        return passed("no other variable SGLANG_* is set")
    told = []
    for name in held:
        if _reads(ground.installation, name) or _reads(ground.installation, name.replace("SGL_", "SGLANG_", 1)):
            continue
        read = variables(ground.installation)
        near = next(iter(difflib.get_close_matches(name, sorted(read), 1, _NEAR)), "")
        told.append(
            warned(
                f"{name} is set, and SGLang {ground.installation.version} never mentions it",
                f"write {near}" if near else "unset it, or use the version that reads it",
            )
        )
    return told or passed(f"SGLang {ground.installation.version} knows each of {', '.join(held)}")


CHECKS = (
    Check(
        "arguments.known",
        "this SGLang has every server argument",
        _unknown,
        ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields/"),
    ),
    Check(
        "arguments.values",
        "every value is one that this SGLang takes",
        _choices,
        ("sglang/srt/server_args.py", "sglang/srt/arg_groups/choices.py"),
    ),
    Check(
        "environment.patch-only",
        "variables of the published patches are read by somebody",
        _patch_only,
        ("Kimi-K3-W4AFP8 card, patches 02, 04, 05", "sgl-project/sglang#39629"),
    ),
    Check(
        "environment.known",
        "this SGLang reads every variable SGLANG_* that is set",
        _misspelled,
        ("sglang/srt/environ.py",),
    ),
)
