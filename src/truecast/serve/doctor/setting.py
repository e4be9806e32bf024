"""What several checks on an SGLang share: where a piece of its source lies, and which model it is about to load how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from truecast.engines.sglang.situation import Situation
from truecast.serve.doctor.finding import Verdict, skipped, unknown
from truecast.serve.doctor.ground import Ground
from truecast.serve.installed import Installation

TESTED = ("0.5.17", "0.5.20", "0.5.23")
"""Versions whose own wheels the checks are tested on."""
PATCHES = tuple(f"0.5.{patch}" for patch in range(17, 24))
"""Versions that were released in between; their sources are read in the same way."""
MODELOPT = {"NVFP4": "modelopt_fp4", "FP8": "modelopt_fp8"}
OTHER_VERSION = f"use one of SGLang {', '.join(TESTED)}, on which truecast's checks are tested"


def place(installation: Installation, module: str, text: str) -> str:
    """File and line of the first place of ``text``, such as ``sglang/srt/environ.py:45``; the file where it is not there.

    Raises: LookupError if there is no such module.
    """
    file = f"{module.replace('.', '/')}.py"
    before, found, _ = installation.sources(module).partition(text)
    return f"{file}:{before.count(chr(10)) + 1}" if found else file


def no_sglang(ground: Ground) -> Verdict | None:
    """SKIP where no SGLang is given, UNKNOWN where it is of no version that is known here; None where it is."""
    if ground.installation is None:
        return skipped("no SGLang is installed here or given by --site-packages")
    version = ground.installation.version
    if version is None:
        return unknown(f"{ground.installation.root}/sglang tells no version", OTHER_VERSION)
    if version not in PATCHES:
        return unknown(f"SGLang {version} is not known to this truecast; nothing is guessed", OTHER_VERSION)
    return None


def quantization(ground: Ground) -> str | None:
    """SGLang's name of the method that it would choose for the model, None for none."""
    if asked := ground.argument("--quantization"):
        return asked
    block = quantization_config(ground)
    method = str(block.get("quant_method", "")) or None
    if method == "modelopt":
        inner = block.get("quantization")
        algorithm = block.get("quant_algo") or (inner.get("quant_algo") if isinstance(inner, Mapping) else None)
        return MODELOPT.get(str(algorithm), "modelopt")
    return method


def quantization_config(ground: Ground) -> Mapping[str, Any]:
    """The block of config.json that SGLang reads: the outer one, or the text model's."""
    if ground.model is None:
        return {}
    for holder in (ground.model.config, ground.model.text):
        for name in ("quantization_config", "compression_config"):
            if isinstance(block := holder.get(name), Mapping):
                return block
    return {}


def situation(ground: Ground) -> Situation:
    """The model as a rank of this server would load it. Needs a model and an SGLang; arguments default to SGLang's."""
    assert ground.model is not None and ground.installation is not None
    attention = ground.argument("--attention-backend") or ""
    capability = ground.capability
    tp = ground.number("--tp-size", 1)
    return Situation(
        version=ground.installation.version or "",
        model=ground.model.name,
        quantization=quantization(ground),
        config=ground.model.text,
        quantization_config=quantization_config(ground),
        moe_backend=ground.argument("--moe-runner-backend") or "auto",
        prefill_attention=ground.argument("--prefill-attention-backend") or attention,
        decode_attention=ground.argument("--decode-attention-backend") or attention,
        kv_cache_dtype=ground.argument("--kv-cache-dtype") or "auto",
        page_size=ground.number("--page-size", 1) or 1,
        capability=None if capability is None else divmod(capability, 10),
        tp_size=tp or 1,
        ep_size=ground.number("--ep-size", 1) or 1,
        expert_places_fixed=_fixed(ground),
        environment=ground.environment,
    )


def _fixed(ground: Ground) -> bool:
    """Does no balancing move experts between ranks?"""
    moving = ground.argument("--enable-eplb") is not None or ground.number("--ep-num-redundant-experts", 0) > 0
    return not moving and (ground.argument("--init-expert-location") or "trivial") == "trivial"


def numbers(version: str) -> tuple[int, ...]:
    """The release's numbers, such as (0, 6, 15) of ``0.6.15.post1+cu130``; empty where it does not begin with one."""
    found = []
    for part in version.split("+")[0].split("."):
        if not part.isdecimal():
            break
        found.append(int(part))
    return tuple(found)


def dspark(ground: Ground) -> bool:
    """Is speculative decoding by DSPARK asked for?"""
    return (ground.argument("--speculative-algorithm") or "").upper() == "DSPARK"
