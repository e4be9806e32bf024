"""Speculative decoding by DSPARK: the draft model, and the arguments that it binds.

Rules as in SGLang's arg_groups/speculative_hook.py (``_handle_dspark``) and speculative/dspark_components/dspark_config.py,
read in 0.5.17, 0.5.20 and 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.setting import OTHER_VERSION, dspark
from truecast.serve.stored_model import StoredModel

DEFAULT_GAMMA = 7
"""``DEFAULT_DSPARK_GAMMA`` of the three versions."""
HEADS = ("vanilla", "gated", "rnn")
BLOCK, TOKENS = "--speculative-dspark-block-size", "--speculative-num-draft-tokens"
PATH = "--speculative-draft-model-path"
QUANTIZATION = "--speculative-draft-model-quantization"
RUNNING = "--max-running-requests"


def _with_dspark(run: Callable[[Ground], Verdict]) -> Callable[[Ground], Verdict]:
    def checked(ground: Ground) -> Verdict:
        if ground.arguments is None:
            return skipped("the server's arguments are not given")
        if not dspark(ground):
            return skipped("no --speculative-algorithm DSPARK")
        return run(ground)

    return checked


def _draft(ground: Ground) -> Verdict:
    if ground.draft is None:
        if ground.argument(PATH) is not None:
            return skipped(f"{PATH} {ground.argument(PATH)} was not looked at (--draft)")
        if ground.model is not None and _prefixed(ground.model.config):
            return passed("the checkpoint brings its own draft (dspark_* in config.json)")
        return failed(f"DSPARK without {PATH}", f"add {PATH}, such as RadixArk/Kimi-K3-DSpark")
    config = ground.draft.config
    rank, head, token = (_value(config, key) for key in ("markov_rank", "markov_head_type", "mask_token_id"))
    if token is None:
        return failed(f"{ground.draft.location}/config.json gives no mask_token_id", "use a draft made for DSPARK")
    vocabulary = ground.model.text.get("vocab_size") if ground.model is not None else None
    if type(token) is int and type(vocabulary) is int and token >= vocabulary:
        return failed(
            f"the draft's mask_token_id {token} is outside the model's {vocabulary} tokens", "use this model's draft"
        )
    if rank and head is None and not _prefixed(config):
        return failed(f"{ground.draft.location}/config.json: markov_rank {rank}, no markov_head_type", "complete it")
    if head is not None and str(head).lower() not in HEADS:
        return failed(f"{ground.draft.location}/config.json: markov_head_type {head!r}", f"one of {', '.join(HEADS)}")
    return _architecture(ground, ground.draft)


def _architecture(ground: Ground, draft: StoredModel) -> Verdict:
    if ground.installation is None:
        return skipped("no SGLang to ask for the draft's architecture")
    folder = ground.installation.root / "sglang" / "srt" / "models"
    paths = sorted(folder.glob("*dspark*.py"))
    if not paths:
        return unknown(f"no file {folder}/*dspark*.py", OTHER_VERSION)
    name = draft.architecture
    for path in paths:
        if name.isidentifier() and f"class {name}(" in ground.installation.sources(f"sglang.srt.models.{path.stem}"):
            return passed(f"{name} in {path}")
    return failed(
        f"the draft {draft.location} is a {name or 'model without a name'}, which none of"
        f" {', '.join(path.name for path in paths)} defines",
        "use RadixArk/Kimi-K3-DSpark (DSparkDraftModel), or an SGLang that has the draft's class",
    )


def _format(ground: Ground) -> Verdict:
    asked = ground.argument(QUANTIZATION)
    main = ground.argument("--quantization")
    if ground.draft is None:
        named = ground.argument(PATH)
        return skipped(f"{PATH} {named} was not looked at (--draft)" if named else "no draft is given (--draft)")
    if ground.draft.format == "bf16":
        if asked not in (None, "unquant"):
            return failed(f"{QUANTIZATION} {asked}, and the draft is plain BF16", f"set {QUANTIZATION} unquant")
        if asked is None and main is not None:
            return failed(
                f"--quantization {main} counts for the draft too, which is plain BF16", f"add {QUANTIZATION} unquant"
            )
        return passed(f"the draft is plain BF16, {QUANTIZATION} {asked or 'is not needed'}")
    problems = [str(problem) for problem in ground.draft.problems[:2]]
    if problems:
        return failed(f"the draft's tensors fit no layout: {'; '.join(problems)}", "run `truecast check` on it")
    return passed(f"the draft is {ground.draft.format} ({ground.draft.dialect})")


def _block(ground: Ground) -> Verdict:
    given, tokens = ground.argument(BLOCK), ground.argument(TOKENS)
    stored = _stored_gamma(ground)
    if given is not None and (not given.isdecimal() or int(given) < 1):
        return failed(f"{BLOCK} {given}", "give it a number above 0")
    if tokens is not None and (not tokens.isdecimal() or int(tokens) < 2):
        return failed(f"{TOKENS} {tokens}: the verify window is the block and one more", f"leave {TOKENS} out")
    gamma = int(given) if given is not None else stored
    if gamma is not None and tokens is not None and int(tokens) != gamma + 1:
        told = f"{BLOCK} {given}" if given is not None else f"the draft's block_size {stored}"
        return failed(f"{TOKENS} {tokens} with {told}", f"set {TOKENS} {gamma + 1}, or leave it out")
    if gamma is None and tokens is None:
        return warned(
            f"neither {BLOCK} nor {TOKENS}, and no draft was looked at: if its config.json has no block_size, SGLang"
            f" takes {DEFAULT_GAMMA}",
            f"set {BLOCK}, or name the draft (--draft)",
        )
    if gamma is not None and stored is not None and gamma > stored:
        return warned(
            f"{BLOCK} {gamma} is more than the {stored} tokens that the draft was trained for", f"set {BLOCK} {stored}"
        )
    return passed(f"block {gamma if gamma is not None else int(tokens or 2) - 1}, verify window one more")


def _stored_gamma(ground: Ground) -> int | None:
    for model in (ground.draft, ground.model):
        if model is None:
            continue
        value = model.config.get("dspark_block_size")
        if value is None and model is ground.draft:
            value = _value(model.config, "block_size")
        if type(value) is int and value > 0:
            return value
    return None


def _prefixed(config: Mapping[str, Any]) -> bool:
    keys = ("dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")
    return any(config.get(key) is not None for key in keys)


def _value(config: Mapping[str, Any], key: str) -> Any:
    """Where SGLang looks: the prefixed key, ``dspark_config``, ``dflash_config``, the text model's part, the top."""
    prefixed = {"mask_token_id": "dspark_noise_token_id"}.get(key, f"dspark_{key}")
    holders = [config.get("dspark_config"), config.get("dflash_config"), config.get("text_config"), config]
    places = [(config, prefixed), *((holder, key) for holder in holders if isinstance(holder, Mapping))]
    return next((holder[name] for holder, name in places if holder.get(name) is not None), None)


def _pipeline(ground: Ground) -> Verdict:
    size = ground.number("--pp-size", 1)
    if size == 1:
        return passed("--pp-size 1")
    return failed(f"DSPARK with --pp-size {size}: SGLang refuses it", "leave --pp-size out, and raise --tp-size")


def _running(ground: Ground) -> Verdict:
    asked = ground.argument(RUNNING)
    if asked is not None:
        return passed(f"{RUNNING} {asked}")
    return warned(f"{RUNNING} is not set: with DSPARK SGLang takes 48", f"set {RUNNING} to the streams that you want")


_HOOK = "sglang/srt/arg_groups/speculative_hook.py, _handle_dspark"
_CONFIG = "sglang/srt/speculative/dspark_components/dspark_config.py"
CHECKS = (
    Check("draft.model", "the draft model is one that DSPARK runs", _with_dspark(_draft), (_HOOK, _CONFIG)),
    Check(
        "draft.format",
        "the draft is read in the format in which it is stored",
        _with_dspark(_format),
        ("sglang/srt/arg_groups/serving_hook.py", "Kimi-K3-W4AFP8 card, launch"),
    ),
    Check("draft.block-size", "block size and draft tokens agree", _with_dspark(_block), (_HOOK, _CONFIG)),
    Check("draft.pipeline", "DSPARK runs without pipeline parallelism", _with_dspark(_pipeline), (_HOOK,)),
    Check("draft.running-requests", "DSPARK does not lower the number of streams", _with_dspark(_running), (_HOOK,)),
)
