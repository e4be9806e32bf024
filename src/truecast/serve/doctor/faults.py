"""SGLang's faults that truecast's plug-in mends: is each there, would this deployment meet it, and is it mended?

What is known of a fault lies with its fix, and is asked there: ``need`` for this model and these arguments, ``faulty`` for
the installed source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from truecast.engines.sglang.choice import chosen
from truecast.engines.sglang.fix import Fix, Need
from truecast.engines.sglang.fixes import FIXES
from truecast.engines.sglang.situation import Situation
from truecast.errors import UsageError
from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.setting import OTHER_VERSION, no_sglang, numbers, situation

INSTALL = "install truecast into SGLang's environment: pip install --no-deps . in its clone (docs/sglang.md)"
_ANOTHER = {
    "fp8-kv-gather": "or set --max-total-tokens, such as 524288, so that a whole pool in BF16 still fits",
    "load-barrier": "or warm the page cache on every node first",
    "situ-w4afp8": "or serve MXFP4 or NVFP4 on Marlin",
    "situ-nvfp4": "or serve the MXFP4 checkpoint with --moe-runner-backend marlin",
    "w4afp8-config": "or use an SGLang that reads the list",
}
_SOURCES = {
    "situ-nvfp4": ("sglang/srt/layers/quantization/modelopt_quant.py", "kimi-k3-nvfp4 card, requirements 1 and 2"),
    "load-barrier": ("sgl-project/sglang#5457, #39629, #39128, #7905", "kimi-k3-nvfp4 card, requirement 3"),
    "expert-load-filter": ("Kimi-K3-W4AFP8 card, patch 02", "vllm-project/vllm#37136, #48827"),
    "fp8-kv-gather": ("sgl-project/sglang#35291, #34638, #35322, #36087", "Kimi-K3-W4AFP8 card, patch 03"),
    "marlin-ep-tile": ("sgl-project/sglang#35389", "vllm-project/vllm#48066", "Kimi-K3-W4AFP8 card, patch 04"),
    "w4a8-routing": ("sglang/kernels/ops/moe/ep_moe_kernels.py", "Kimi-K3-W4AFP8 card, patch 05"),
    "situ-w4afp8": ("sglang/srt/layers/quantization/w4afp8.py", "ai-dynamo/aiconfigurator#1435"),
    "w4afp8-config": ("sglang/srt/layers/quantization/w4afp8.py", "Kimi-K3-W4AFP8 card, apply_patch.py"),
    "nvfp4-twins": ("sglang/srt/layers/quantization/modelopt_quant.py",),
    "marlin-repeatable": ("sglang/srt/layers/moe/fused_moe_triton/fused_marlin_moe.py", "lightseekorg/tokenspeed#879"),
    "kda-precompile": ("sglang/srt/models/kimi_k3.py of 0.5.17",),
}


def plugin_state(ground: Ground, fix: Fix) -> str | None:
    """Why the plug-in does not mend this; None where it does. Raises: UsageError for a bad ``TRUECAST_SGLANG``."""
    assert ground.installation is not None
    if "truecast" not in ground.installation.plugins:
        return "the plug-in is not installed there"
    only = ground.environment.get("SGLANG_PLUGINS", "")
    if only and "truecast" not in [name.strip() for name in only.split(",")]:
        return f"SGLANG_PLUGINS={only} leaves the plug-in out"
    if fix.name not in chosen(FIXES, ground.environment):
        return f"TRUECAST_SGLANG={ground.environment.get('TRUECAST_SGLANG')} leaves {fix.name} out"
    version = numbers(ground.installation.version or "")
    if not numbers(fix.versions[0]) <= version < numbers(fix.versions[1]):
        return f"{fix.name} is for SGLang {fix.versions[0]} up to, not with, {fix.versions[1]}"
    return None


def _situation(ground: Ground) -> Situation:
    """Settings of the plug-in's fixes do nothing where it is not installed, and end the server where they are bad.

    Raises: UsageError for a bad one.
    """
    assert ground.installation is not None
    here = situation(ground)
    if "truecast" not in ground.installation.plugins:
        return replace(here, environment={})
    chosen(FIXES, ground.environment)
    return here


def _fault(fix: Fix) -> Callable[[Ground], Verdict]:
    def run(ground: Ground) -> Verdict:
        if said := no_sglang(ground):
            return said
        if ground.model is None:
            return skipped("no checkpoint is given (--for)")
        need = fix.need(_situation(ground))
        if need is None:
            blind = "" if ground.capability is not None else "; no GPU is told (--topology)"
            return skipped(f"this model with these arguments does not meet it{blind}")
        return _verdict(ground, fix, need)

    return run


def _verdict(ground: Ground, fix: Fix, need: Need) -> Verdict:
    assert ground.installation is not None
    version = ground.installation.version
    try:
        faulty = fix.faulty(ground.installation.sources)
    except (LookupError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return unknown(f"{need.why}; SGLang {version} looks different: {error}", OTHER_VERSION)
    if not faulty:
        return passed(f"{need.why}; SGLang {version} has not got the fault")
    why = plugin_state(ground, fix)
    if why is None:
        return passed(f"{need.why}; the plug-in mends it ({fix.summary})")
    remedy = f"{INSTALL}, and do not leave {fix.name} out"
    if fix.name in _ANOTHER:
        remedy += f"; {_ANOTHER[fix.name]}"
    say = failed if need.required else warned
    return say(f"{need.why}; SGLang {version} has the fault, and {why}", remedy)


def _fp8_kv(ground: Ground) -> Verdict:
    """Like the others, but the pool may also be capped, and which backend prefills may be SGLang's own choice."""
    fix = _named("fp8-kv-gather")
    if said := no_sglang(ground):
        return said
    if ground.model is None or ground.arguments is None:
        return skipped("wants a checkpoint (--for) and the server's arguments")
    here = _situation(ground)
    fp8 = here.kv_cache_dtype.startswith("fp8") and "kv_lora_rank" in here.config
    if not fp8:
        return skipped("no FP8 KV cache of MLA")
    cap = ground.argument("--max-total-tokens")
    need = fix.need(here)
    if need is None and here.prefill_attention:
        return skipped(f"prefill by {here.prefill_attention} does not meet it")
    if cap is not None:
        return passed(f"--max-total-tokens {cap} caps the pool that a prefill may convert")
    if need is None:
        return unknown(
            "FP8 KV cache, and no --prefill-attention-backend: which one SGLang chooses decides",
            "set --prefill-attention-backend and --decode-attention-backend",
        )
    return _verdict(ground, fix, need)


def _named(name: str) -> Fix:
    return next(fix for fix in FIXES if fix.name == name)


def _installed(ground: Ground) -> Verdict:
    if said := no_sglang(ground):
        return said
    assert ground.installation is not None
    wanted = []
    if ground.model is not None:
        here = _situation(ground)
        wanted = [(fix, need) for fix in FIXES if (need := fix.need(here)) is not None]
    if not ground.installation.plugins.get("truecast"):
        names = ", ".join(fix.name for fix, _ in wanted)
        if ground.model is not None and not wanted:
            return passed("this model with these arguments wants none of its fixes")
        say = failed if any(need.required for _, need in wanted) else warned
        root = ground.installation.root
        return say(
            f"no distribution truecast with the entry point sglang.srt.plugins in {root}"
            + (f"; this deployment wants {names}" if names else ""),
            INSTALL,
        )
    if left := {plugin_state(ground, fix): fix.name for fix, _ in wanted if plugin_state(ground, fix)}:
        return warned("; ".join(filter(None, left)), "unset what leaves fixes out, unless you mean it")
    chosen(FIXES, ground.environment)  # a bad setting ends the server at start
    return passed(f"truecast {ground.installation.versions.get('truecast')} is found by SGLang as a plug-in")


def _checked(run: Callable[[Ground], Verdict]) -> Callable[[Ground], Verdict]:
    """A bad value of a plug-in's variable ends the server at start: that is no broken file, but a FAIL."""

    def checked(ground: Ground) -> Verdict:
        try:
            return run(ground)
        except UsageError as error:
            return failed(f"{error.where}: {error.problem}", error.fix)

    return checked


CHECKS = (
    Check(
        "plugin.installed", "truecast's plug-in is installed beside SGLang", _checked(_installed), ("docs/sglang.md",)
    ),
    *(
        Check(
            f"fault.{fix.name}",
            f"not met, or mended: {fix.summary}",
            _checked(_fp8_kv if fix.name == "fp8-kv-gather" else _fault(fix)),
            _SOURCES[fix.name],
        )
        for fix in FIXES
    ),
)
