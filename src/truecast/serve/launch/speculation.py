"""Speculative decoding: which draft, how deep, in which kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from truecast.errors import UsageError
from truecast.serve.forecast.constants import DRAFT_BYTES
from truecast.serve.forecast.memory import dspark_bytes
from truecast.serve.launch.case import CARD_003, COOKBOOK, Case, Draft
from truecast.serve.launch.setting import Setting
from truecast.serve.launch.versions import has

MANY, FEW = 2, 7
"""Drafted tokens a step: with many streams on Hopper, where experts are all in use and a longer verification costs what
it gains; and else the depth that Kimi-K3's draft was trained for."""
_DTYPE = "--speculative-draft-kv-cache-dtype"


def check_draft(draft: Draft, family: str) -> None:
    """Is this a draft that is known here? Raises: UsageError."""
    if family != "kimi_k3":
        raise UsageError("only DSpark drafts of Kimi-K3 are known here", where=draft.path, fix="leave --draft away")
    if draft.config is None:
        return  # a repository that is not here; the notes say so
    named = draft.config.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    if not any("DSpark" in name for name in names) and depth(draft) is None:
        raise UsageError(
            f"is no DSpark draft: its architecture is {', '.join(names) or 'not stated'}",
            where=draft.path,
            fix="name one such as RadixArk/Kimi-K3-DSpark",
        )


def depth(draft: Draft) -> int | None:
    """Tokens that the draft was made to give at once, None where its config does not say."""
    config: Mapping[str, Any] = draft.config or {}
    blocks = [config, *(b for key in ("dspark_config", "dflash_config") if isinstance(b := config.get(key), Mapping))]
    for block in blocks:
        for key in ("dspark_block_size", "block_size"):
            if type(value := block.get(key)) is int and value > 0:
                return value
    return None


def block(case: Case) -> int:
    """Tokens to draft a step, no more than the draft can."""
    wanted = FEW if case.latency or not case.hopper else MANY
    most = depth(case.draft) if case.draft else None
    return min(wanted, most) if most else wanted


def draft_memory(case: Case) -> tuple[int, int]:
    """Bytes on a GPU of the draft's weights, and of its cache a token. Where the draft is not here, the published one's."""
    if case.draft is None:
        return 0, 0
    weights, cache = dspark_bytes(case.split.tp)
    return round(weights * case.draft.bytes / DRAFT_BYTES) if case.draft.bytes else weights, cache


def speculation_settings(case: Case) -> list[Setting]:
    """All of it; nothing without a draft."""
    if case.draft is None:
        return []
    count = block(case)
    if count == MANY and not case.latency:
        why = f"with many streams every expert is in use, and more drafted tokens cost what they gain ({CARD_003})"
    else:
        why = f"the draft's own depth: pays while a step's experts are not all in use ({COOKBOOK})"
    found = [
        Setting("--speculative-algorithm", "DSPARK", "the kind of this draft"),
        Setting("--speculative-draft-model-path", case.draft.path, "as asked for with --draft"),
        Setting("--speculative-dspark-block-size", str(count), f"{why}; {count + 1} tokens are verified a step"),
        Setting(
            "--speculative-draft-model-quantization", "unquant", "else the draft is read by the target's quantization"
        ),
    ]
    if case.hopper:
        found.append(
            Setting("--speculative-draft-attention-backend", "flashinfer", f"the one known to be right ({COOKBOOK})")
        )
    if case.hopper and has(_DTYPE, case.version):
        found.append(Setting(_DTYPE, "bfloat16", "the draft's own cache is small; else it takes the target's FP8"))
    found.append(
        Setting(
            "--enable-linear-replayssm-spec", None, "keeps KDA's inputs of a verification, not a state for each token"
        )
    )
    return found


def speculation_notes(case: Case) -> list[str]:
    """What could not be looked at, or is missing in this release."""
    if case.draft is None:
        return []
    found = []
    if case.draft.config is None:
        found.append(
            f"{case.draft.path} is not on this machine: it was not looked into, and takes the memory of the published draft"
        )
    elif (most := depth(case.draft)) and most < (FEW if case.latency or not case.hopper else MANY):
        found.append(f"the draft gives {most} tokens at once, so no more are drafted")
    if case.hopper and not has(_DTYPE, case.version):
        found.append(f"{_DTYPE} is left out: SGLang has it from 0.5.18 on, so the draft's cache is FP8 as the target's")
    return found
