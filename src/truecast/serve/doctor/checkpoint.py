"""The checkpoint by its headers, and what a reasoning model wants of server and client."""

from __future__ import annotations

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.setting import OTHER_VERSION, no_sglang, place, quantization_config

SHOWN = 3
LEAST_ANSWER = 512
"""Tokens that Kimi-K3 wants at least for thinking and a short answer."""
PARSERS = {"kimi_k3": "kimi_k3"}
"""Reasoning and tool parser of a family."""
K3 = "sglang.srt.models.kimi_k3"
PARSER = "sglang.srt.parser.reasoning_parser"


def _scales(ground: Ground) -> Verdict:
    if ground.model is None:
        return skipped("no checkpoint is given (--for)")
    if not ground.model.problems:
        return passed(f"{ground.model.packed:,} matrices of {ground.model.format}, each with all its parts")
    told = "; ".join(f"{p.where}: {p.problem}" for p in ground.model.problems[:SHOWN])
    more = len(ground.model.problems) - SHOWN
    return failed(
        told + (f"; and {more} more" if more > 0 else ""),
        "download the files again, or convert again; `truecast check` lists them all",
    )


def _input_scales(ground: Ground) -> Verdict:
    """Where the kernel multiplies FP8 or FP4 activations by a stored scale, SGLang takes 1.0 for a missing one."""
    model = ground.model
    if model is None:
        return skipped("no checkpoint is given (--for)")
    without = model.packed - model.with_input_scale
    if model.format == "w4afp8" and model.dialect == "sglang":
        scheme = quantization_config(ground).get("moe_activation_scheme", "static")
        if scheme == "dynamic":
            return passed("moe_activation_scheme is dynamic: no stored activation scale is needed (with the plug-in)")
        if without:
            return failed(
                f"{without:,} of {model.packed:,} matrices have no input_scale, and the scheme is {scheme}: SGLang takes"
                " 1.0, and activations above 448 are cut off",
                "convert with --calibration, or set moe_activation_scheme to dynamic and use the plug-in",
            )
        return passed(f"each of {model.packed:,} matrices has an input_scale")
    if model.format == "nvfp4":
        marlin = ground.argument("--moe-runner-backend") == "marlin" or (ground.capability or 90) < 100
        if marlin:
            return skipped("Marlin multiplies in BF16 and reads no activation scale")
        if without:
            return failed(
                f"{without:,} of {model.packed:,} matrices have no input_scale, and FP4 kernels divide by it",
                "serve with --moe-runner-backend marlin, or convert with calibrated scales",
            )
        return passed(f"each of {model.packed:,} matrices has an input_scale")
    return skipped(f"{model.format} has no stored activation scales")


def _remote_code(ground: Ground) -> Verdict:
    held = [m for m in (ground.model, ground.draft) if m is not None and m.remote_code]
    if ground.model is None:
        return skipped("no checkpoint is given (--for)")
    asked = ground.argument("--trust-remote-code") is not None
    if not held:
        if asked:
            return warned(
                "--trust-remote-code is set, and the checkpoint names no code of its own",
                "leave --trust-remote-code out",
            )
        return passed("config.json names no code to be run")
    files = "; ".join(f"{m.location}: {', '.join(m.remote_code)}" for m in held)
    if asked:
        return warned(
            f"--trust-remote-code lets these files run with the server's rights: {files}",
            "read them, or serve a folder that you trust; truecast runs none of them",
        )
    return passed(f"it brings code ({files}), which is not run: --trust-remote-code is not set and stays your choice")


def _a_log(ground: Ground) -> Verdict:
    if said := no_sglang(ground):
        return said
    if ground.model is None or ground.model.family != "kimi_k3":
        return skipped("asked of Kimi-K3 (--for)")
    assert ground.installation is not None
    if "_a_log_weight_loader" in ground.installation.sources(K3):
        at = place(ground.installation, K3, "def _a_log_weight_loader")
        return passed(f"A_log of 128 values is narrowed to the heads at load ({at})")
    return unknown(f"{K3.replace('.', '/')}.py has no _a_log_weight_loader: it may not narrow A_log", OTHER_VERSION)


def _parsers(ground: Ground) -> Verdict:
    if ground.model is None or ground.arguments is None:
        return skipped("wants a checkpoint (--for) and the server's arguments")
    wanted = PARSERS.get(ground.model.family)
    if wanted is None:
        return skipped(f"no parser is known for the family {ground.model.family}")
    told = {name: ground.argument(name) for name in ("--reasoning-parser", "--tool-call-parser")}
    wrong = [f"{name} {value}" for name, value in told.items() if value not in (None, wanted, "auto")]
    if wrong:
        return failed(
            f"{', '.join(wrong)}: thinking or tool calls end up in the answer's text",
            f"set --reasoning-parser {wanted} --tool-call-parser {wanted}",
        )
    if missing := [name for name, value in told.items() if value is None]:
        return warned(
            f"{', '.join(missing)} not set: the answer's text then holds thinking or tool calls as raw markers",
            f"set --reasoning-parser {wanted} --tool-call-parser {wanted}",
        )
    return passed(", ".join(f"{name} {value}" for name, value in told.items()))


def _skipped_thinking(ground: Ground) -> Verdict:
    """An answer without a think channel that the parser takes for thinking comes out empty."""
    if said := no_sglang(ground):
        return said
    if ground.model is None or ground.model.family != "kimi_k3":
        return skipped("asked of Kimi-K3 (--for)")
    if ground.arguments is not None and ground.argument("--reasoning-parser") is None:
        return skipped("no --reasoning-parser")
    assert ground.installation is not None
    if "def _skipped_think_channel" in ground.installation.sources(PARSER):
        return passed(f"the parser knows it ({place(ground.installation, PARSER, 'def _skipped_think_channel')})")
    return warned(
        f"{PARSER.replace('.', '/')}.py has no _skipped_think_channel: an answer without thinking, or whose thinking is not"
        " closed, comes out in reasoning_content with an empty content",
        "use SGLang 0.5.20 or newer, or let clients read reasoning_content where content is empty",
    )


def _room(ground: Ground) -> Verdict:
    if ground.model is None or ground.arguments is None:
        return skipped("wants a checkpoint (--for) and the server's arguments")
    if ground.model.family not in PARSERS:
        return skipped("asked of models that think before they answer")
    context = ground.number("--context-length", ground.model.context)
    total = ground.number("--max-total-tokens", 0)
    room = min(filter(None, (context, total)), default=0)
    advice = (
        f"clients: max_tokens of {LEAST_ANSWER} or more; an empty content with finish_reason length is cut-off thinking"
    )
    if room and room < 2 * LEAST_ANSWER:
        return failed(f"only {room} tokens for question, thinking and answer", f"raise --context-length; {advice}")
    return passed(
        f"{f'{room:,}' if room else 'an unstated number of'} tokens for question, thinking and answer; {advice}"
    )


CHECKS = (
    Check(
        "checkpoint.scales",
        "every packed matrix has all its scales",
        _scales,
        ("vllm-project/vllm#45212, #54189", "sgl-project/sglang#22929, #25792"),
    ),
    Check(
        "checkpoint.input-scales",
        "activation scales are there where the kernel reads them",
        _input_scales,
        ("sglang/srt/layers/quantization/w4afp8.py, create_weights", "vllm-project/vllm#45212"),
    ),
    Check("checkpoint.remote-code", "no code of the checkpoint runs unasked", _remote_code, ("config.json, auto_map",)),
    Check(
        "checkpoint.a-log",
        "SGLang narrows the padded A_log",
        _a_log,
        ("kimi-k3-nvfp4 card, Bundled fix", "sglang/srt/models/kimi_k3.py"),
    ),
    Check(
        "reasoning.parsers",
        "thinking and tool calls are told from the answer",
        _parsers,
        ("sglang/srt/parser/reasoning_parser.py", "sgl-project/sglang#33995, #23341"),
    ),
    Check(
        "reasoning.skipped-thinking",
        "an answer without thinking is not taken for thinking",
        _skipped_thinking,
        ("sgl-project/sglang#33995, #32567", "sglang/srt/parser/reasoning_parser.py of 0.5.17 and 0.5.20"),
    ),
    Check(
        "reasoning.room",
        "there is room for thinking and an answer",
        _room,
        ("kimi-k3-nvfp4 card, Deployment",),
    ),
)
