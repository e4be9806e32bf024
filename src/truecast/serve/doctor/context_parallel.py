"""Decode context parallelism of Kimi-K3 (``--dcp-size``): what it asks of FlashInfer and of other arguments."""

from __future__ import annotations

import ast

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.setting import dspark, no_sglang, numbers
from truecast.serve.installed import read_text

FUNCTION = "trtllm_batch_decode_with_kv_cache_mla"
PARAMETER = "enable_dcp"
FIRST = (0, 6, 17)
"""The FlashInfer that SGLang 0.5.20's own check names; 0.6.15 has no such parameter."""
DCP = "--dcp-size"
_PATHS = (("mla", "_core.py"), ("mla.py",), ("decode.py",), ("mla", "__init__.py"))


def _flashinfer(ground: Ground) -> Verdict:
    if said := _no_dcp(ground):
        return said
    if said := no_sglang(ground):
        return said
    assert ground.installation is not None
    size, decode = ground.number(DCP, 1), _decode(ground)
    if decode not in ("", "cutedsl_mla"):
        return skipped(f"decode by {decode}, which does not call FlashInfer's {FUNCTION}")
    remedy = f"leave {DCP} out, or install FlashInfer 0.6.17 or newer with the SGLang that asks for it"
    for parts in _PATHS:
        if (path := ground.installation.path("flashinfer", *parts)) is None:
            continue
        found = _parameters(read_text(path))
        if found is None:
            continue
        names, line = found
        if PARAMETER in names:
            return passed(f"{DCP} {size}: {FUNCTION} takes {PARAMETER} ({path}:{line})")
        return failed(f"{DCP} {size}: {FUNCTION} takes no {PARAMETER} ({path}:{line})", remedy)
    version = ground.installation.versions.get("flashinfer-python")
    if version is None:
        return unknown(f"{DCP} {size}, and no FlashInfer in {ground.installation.root}", "install it beside SGLang")
    if numbers(version) >= FIRST:
        return passed(f"{DCP} {size}: flashinfer-python {version}, and 0.6.17 has {PARAMETER}")
    return failed(f"{DCP} {size}: flashinfer-python {version} has no {PARAMETER} unless patched", remedy)


def _parameters(source: str) -> tuple[set[str], int] | None:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTION:
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            return {argument.arg for argument in arguments}, node.lineno
    return None


def _others(ground: Ground) -> Verdict:
    if said := _no_dcp(ground):
        return said
    size, decode = ground.number(DCP, 1), _decode(ground)
    mode = ground.environment.get("SGLANG_RAGGED_VERIFY_MODE", "static")
    if dspark(ground) and mode != "static":
        return failed(
            f"{DCP} {size} with DSPARK, and SGLANG_RAGGED_VERIFY_MODE={mode}",
            "export SGLANG_RAGGED_VERIFY_MODE=static",
        )
    backends = ("", "cutedsl_mla", "tokenspeed_mla", "aiter")
    if decode not in backends:
        return failed(
            f"{DCP} {size} with decode by {decode}: SGLang's assertion takes {', '.join(backends[1:])}",
            "set --decode-attention-backend cutedsl_mla, or leave it out",
        )
    return passed(f"{DCP} {size}, decode by {decode or 'cutedsl_mla'}, verify mode {mode}")


def _no_dcp(ground: Ground) -> Verdict | None:
    if ground.arguments is None:
        return skipped("the server's arguments are not given")
    if ground.number(DCP, 1) < 2:
        return skipped(f"{DCP} is not above 1")
    if ground.model is not None and ground.model.family != "kimi_k3":
        return skipped("SGLang asks this of Kimi-K3")
    return None


def _decode(ground: Ground) -> str:
    return ground.argument("--decode-attention-backend") or ground.argument("--attention-backend") or ""


_RULE = "sglang/srt/arg_groups/model_overrides/kimi_k3.py, _kimi_k3_overrides"
CHECKS = (
    Check(
        "dcp.flashinfer",
        "FlashInfer has decode context parallelism if it is asked for",
        _flashinfer,
        (_RULE, "flashinfer/mla/_core.py of 0.6.18", "kimi-k3-nvfp4 card, requirement 5"),
    ),
    Check(
        "dcp.arguments",
        "arguments that decode context parallelism binds are so",
        _others,
        (_RULE, "sgl-project/sglang#34920"),
    ),
)
