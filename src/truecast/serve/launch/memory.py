"""Share of memory, requests at a time, and what each takes: only where SGLang's own choice does not do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from truecast.serve.forecast import memory
from truecast.serve.forecast.memory import MemoryFit, memory_fit
from truecast.serve.launch import attention, speculation
from truecast.serve.launch.case import CARD_003, Case
from truecast.serve.launch.setting import Setting

PREFILL_CHUNK, PREFILL_LIMIT = 4096, 8192
STREAMS = {"throughput": (64, 48, 32, 24, 16, 8), "latency": (16, 8, 4)}
"""Requests that run at a time: the first number that leaves each of them :data:`TOKENS_A_STREAM`."""
TOKENS_A_STREAM = 8192
"""Prompt, thinking and answer of a reasoning model; the published deployment has room for about twice that."""
SLOTS_A_STREAM = 3
MOST = 0.90
"""Of a GPU's memory: what the published H200 recipe for throughput takes."""


def fraction(case: Case) -> float:
    """SGLang's own rule for this chunk and batch, which for a model with a vision tower takes off 5 % and more by the
    tower's size (arg_groups/memory_hook.py of 0.5.20), to the nearest hundredth."""
    chunk, batch = (PREFILL_CHUNK, case.streams) if case.streams else (8192, 256)
    share = memory.mem_fraction(case.gpu, case.split.tp, prefill_tokens=chunk, graph_batch=batch)
    vision = case.model.config.get("vision_config")
    if isinstance(vision, Mapping):
        layers, width = (_count(vision, f"vt_{key}", key) for key in ("num_hidden_layers", "hidden_size"))
        size = (layers or 24) * (width or 1024) ** 2 / (24 * 1024**2)
        share *= 0.95 * min(max(1 - 0.1 * (size - 1), 0.8), 1.05)
    return round(share, 2)


def fitted(case: Case) -> tuple[Case, float, MemoryFit]:
    """Requests at a time and the share of memory to take, and what they give.

    The rule's share with the most requests that have room to think; if none has, the most that fit at all; if none fits,
    larger shares up to :data:`MOST`. What is returned does not fit where nothing does.
    """
    cases = [replace(case, streams=count) for count in (STREAMS[case.profile] if case.is_k3 else (0,))]
    added = 0.0
    while True:
        tried = [(c, share := round(fraction(c) + added, 2), fit_at(c, share)) for c in cases]
        roomy = (t for t in tried if t[2].fits and t[2].kv_tokens >= t[0].streams * TOKENS_A_STREAM)
        fitting = (t for t in tried if t[2].fits)
        if found := next(roomy, None) or next(fitting, None):
            return found
        added = round(added + 0.01, 2)
        if tried[-1][1] >= MOST:
            return tried[-1]


def fit_at(case: Case, share: float) -> MemoryFit:
    """Bytes on each GPU with that share of memory for weights, states and KV cache."""
    split = case.split
    draft, draft_kv = speculation.draft_memory(case.draft, split.tp)
    return memory_fit(
        case.model, case.gpu, split.tp, split.ep, mem_fraction=share,
        kv_bytes=attention.kv_bytes(case),
        state_bytes=4,
        slots=SLOTS_A_STREAM * case.streams,
        requests=case.streams,
        window=speculation.block(case) + 1 if case.draft else 0,
        replay=bool(case.draft),
        draft_bytes=draft,
        draft_kv_bytes=draft_kv,
        prefill_tokens=PREFILL_CHUNK if case.streams else 8192,
        graph_batch=case.streams or 256,
    )  # fmt: skip


def fraction_setting(case: Case, share: float) -> list[Setting]:
    """``--mem-fraction-static``."""
    if not case.streams:
        return []
    rule, ranks = fraction(case), f"{case.split.tp} rank{'s' if case.split.tp > 1 else ''}"
    why = f"SGLang's own rule for prefill in chunks of {PREFILL_CHUNK:,}, {case.streams} requests and {ranks}"
    if "vision_config" in case.model.config:
        why += ", less what it keeps for a vision tower"
    if share > rule:
        why += f": {rule:.2f}, with which the model does not fit; up to {MOST:.2f} was tried"
    return [Setting("--mem-fraction-static", f"{share:.2f}", why)]


def request_settings(case: Case) -> list[Setting]:
    """How many requests run, and what they keep."""
    if not case.streams:
        return []
    count = case.streams
    slots = SLOTS_A_STREAM * count
    most = STREAMS[case.profile][0]
    few = "few streams, so that each is fast" if case.latency else f"{CARD_003} takes 64 and was measured with 50"
    if count < most:
        few += f"; {most} would have no room for {TOKENS_A_STREAM:,} tokens each"
    found = [
        Setting(
            "--disable-radix-cache",
            None,
            f"as that deployment ran; take it out where prompts share long beginnings ({CARD_003})",
        ),
        Setting("--max-running-requests", str(count), few),
        Setting("--cuda-graph-max-bs-decode", str(count), "every number of running requests has its CUDA graph"),
    ]
    if case.model.request is not None and case.model.request.state_elements:
        why = f"{SLOTS_A_STREAM} slots of KDA state a request, SGLang's base ratio; without radix cache one would do ({CARD_003})"
        found.append(Setting("--max-mamba-cache-size", str(slots), why))
    return [
        *found,
        Setting(
            "--chunked-prefill-size", str(PREFILL_CHUNK), f"bounds activations, 1.5 MiB a token of Kimi-K3 ({CARD_003})"
        ),
        Setting(
            "--max-prefill-tokens",
            str(PREFILL_LIMIT),
            f"two chunks in a step at most ({CARD_003})",
        ),
    ]


def memory_notes(case: Case, share: float, fit: MemoryFit) -> list[str]:
    """What the fit says to people; not that little is left over where that is SGLang's own rule."""
    found = [reason for reason in fit.reasons if share > fraction(case) or "activations" not in reason]
    if fit.kv_tokens and case.streams:
        found.append(
            f"KV cache for {fit.kv_tokens:,} tokens: {fit.kv_tokens // case.streams:,} for each of {case.streams} requests"
        )
    return found


def _count(block: Mapping[str, object], *keys: str) -> int:
    return next((value for key in keys if type(value := block.get(key)) is int), 0)
