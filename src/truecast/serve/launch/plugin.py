"""What truecast's plug-in mends in SGLang for this launch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from truecast.engines.sglang.choice import chosen
from truecast.engines.sglang.fixes import FIXES
from truecast.engines.sglang.situation import Situation
from truecast.serve.installed import Installation
from truecast.serve.launch.case import Case
from truecast.serve.launch.setting import Setting
from truecast.serve.launch.versions import version_numbers

_METHODS = {
    ("mxfp4", "compressed-tensors"): "compressed-tensors",
    ("mxfp4", "gpt-oss"): "mxfp4",
    ("mxfp4", "deepseek"): "fp8",
    ("nvfp4", "modelopt"): "modelopt_fp4",
    ("nvfp4", "compressed-tensors"): "compressed-tensors",
    ("w4afp8", "sglang"): "w4afp8",
    ("w4afp8", "compressed-tensors"): "compressed-tensors",
    ("fp8", "deepseek"): "fp8",
    ("fp8", "compressed-tensors"): "compressed-tensors",
}
"""SGLang's name of the quantization method."""


def plugin_notes(case: Case, arguments: Sequence[Setting], installation: Installation | None) -> list[str]:
    """One line for each fix that this launch wants; with an installation only those whose fault it has.

    Raises: UsageError for a setting of a fix in this process's environment that does not parse.
    """
    chosen(FIXES, os.environ)
    return list(_notes(_situation(case, {a.name: a.value or "" for a in arguments}), installation))


def _notes(situation: Situation, installation: Installation | None) -> Iterator[str]:
    numbers = version_numbers(situation.version)
    for fix in FIXES:
        first, end = (tuple(map(int, v.split("."))) for v in fix.versions)
        need = fix.need(situation) if first <= numbers < end else None
        if need is None:
            continue
        word = "required" if need.required else "wanted"
        if installation is None:
            yield f"plug-in, {word}: {fix.name}: {need.why}"
            continue
        try:
            if fix.faulty(installation.sources):
                yield f"plug-in, {word}: {fix.name}: {need.why}"
        except LookupError as error:
            yield f"plug-in, not known whether {word}: {fix.name}: {error}"


def _situation(case: Case, arguments: Mapping[str, str]) -> Situation:
    block = case.model.config.get("quantization_config") or case.model.text.get("quantization_config")
    return Situation(
        version=".".join(map(str, case.version)),
        model=case.model.location,
        quantization=_METHODS.get((case.model.format, case.model.dialect)),
        config=case.model.text,
        quantization_config=block if isinstance(block, Mapping) else {},
        moe_backend=arguments.get("--moe-runner-backend", "cutlass" if case.model.format == "w4afp8" else "auto"),
        prefill_attention=arguments.get("--prefill-attention-backend", ""),
        decode_attention=arguments.get("--decode-attention-backend", ""),
        kv_cache_dtype=arguments.get("--kv-cache-dtype", "auto"),
        capability=divmod(case.gpu.capability, 10),
        tp_size=case.split.tp,
        ep_size=case.split.ep,
    )
