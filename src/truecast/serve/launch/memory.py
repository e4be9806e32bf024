"""Share of memory, requests at a time, and what each takes: only where SGLang's own choice does not do."""

from __future__ import annotations

from collections.abc import Mapping

from truecast.serve.forecast import memory
from truecast.serve.forecast.memory import MemoryFit, memory_fit
from truecast.serve.launch import attention, speculation
from truecast.serve.launch.case import CARD_003, Case
from truecast.serve.launch.setting import Setting

PREFILL_CHUNK, PREFILL_LIMIT = 4096, 8192
STREAMS = {"throughput": 64, "latency": 16}
SLOTS_A_REQUEST = 3
MOST = 0.90
"""Of a GPU's memory: what the published H200 recipe for throughput takes."""


def streams(case: Case) -> int:
    """Requests that run at a time."""
    return STREAMS[case.profile]


def fraction(case: Case, fit_at: Mapping[float, MemoryFit] | None = None) -> float:
    """SGLang's own rule for this chunk and batch, which for a model with a vision tower takes off 5 % and more by the
    tower's size (arg_groups/memory_hook.py of 0.5.20), to the nearest hundredth."""
    chunk, batch = (PREFILL_CHUNK, streams(case)) if case.is_k3 else (8192, 256)
    share = memory.mem_fraction(case.gpu, case.split.tp, prefill_tokens=chunk, graph_batch=batch)
    vision = case.model.config.get("vision_config")
    if isinstance(vision, Mapping):
        layers, width = (_count(vision, f"vt_{key}", key) for key in ("num_hidden_layers", "hidden_size"))
        size = (layers or 24) * (width or 1024) ** 2 / (24 * 1024**2)
        share *= 0.95 * min(max(1 - 0.1 * (size - 1), 0.8), 1.05)
    return round(share, 2)


def fitted(case: Case) -> tuple[float, MemoryFit]:
    """The share of memory to take, and what it gives: the rule's, or more up to :data:`MOST` where that does not fit."""
    share = fraction(case)
    fit = fit_at(case, share)
    while not fit.fits and round(share + 0.01, 2) <= MOST:
        share = round(share + 0.01, 2)
        fit = fit_at(case, share)
    return share, fit


def fit_at(case: Case, share: float) -> MemoryFit:
    """Bytes on each GPU with that share of memory for weights, states and KV cache."""
    k3, split = case.is_k3, case.split
    return memory_fit(
        case.model, case.gpu, split.tp, split.ep, mem_fraction=share,
        kv_bytes=attention.kv_bytes(case),
        state_bytes=4,
        slots=SLOTS_A_REQUEST * streams(case) if k3 else 0,
        requests=streams(case) if k3 else 0,
        window=speculation.block(case) + 1 if case.draft else 0,
        replay=bool(case.draft),
        draft_bytes=-(-case.draft.bytes // split.tp) if case.draft else 0,
        prefill_tokens=PREFILL_CHUNK if k3 else 8192,
        graph_batch=streams(case) if k3 else 256,
    )  # fmt: skip


def fraction_setting(case: Case, share: float) -> list[Setting]:
    """``--mem-fraction-static``."""
    if not case.is_k3:
        return []
    rule = fraction(case)
    why = (
        f"SGLang's own rule for chunks of {PREFILL_CHUNK}, {streams(case)} requests and {case.split.tp} ranks, less what a"
        f" vision tower takes: {rule:.2f}"
    )
    if share != rule:
        why += f"; with that the model does not fit, up to {MOST:.2f} was tried"
    return [Setting("--mem-fraction-static", f"{share:.2f}", why)]


def request_settings(case: Case) -> list[Setting]:
    """How many requests run, and what they keep."""
    if not case.is_k3:
        return []
    count = streams(case)
    slots = SLOTS_A_REQUEST * count
    few = "few streams, so that each is fast" if case.latency else "more than the 50 streams that were measured"
    found = [
        Setting("--disable-radix-cache", None, f"prompts share little, and states of KDA are costly to keep ({CARD_003})"),
        Setting("--max-running-requests", str(count), f"{few} ({CARD_003} takes 64)"),
        Setting("--cuda-graph-max-bs-decode", str(count), "every number of running requests has its CUDA graph"),
    ]
    if case.model.request is not None and case.model.request.state_elements:
        why = f"{SLOTS_A_REQUEST} slots of KDA state for each of {count} requests, SGLang's own ratio ({CARD_003})"
        found.append(Setting("--max-mamba-cache-size", str(slots), why))
    return [
        *found,
        Setting("--chunked-prefill-size", str(PREFILL_CHUNK), f"bounds activations, 1.5 MiB a token ({CARD_003})"),
        Setting("--max-prefill-tokens", str(PREFILL_LIMIT), f"two chunks, so that prefill does not starve decode ({CARD_003})"),
    ]


def memory_notes(case: Case, fit: MemoryFit) -> list[str]:
    """What the fit says to people."""
    found = list(fit.reasons)
    if fit.kv_tokens and case.is_k3:
        found.append(f"KV cache for {fit.kv_tokens:,} tokens: {fit.kv_tokens // streams(case):,} for each of {streams(case)} requests")
    return found


def _count(block: Mapping[str, object], *keys: str) -> int:
    return next((value for key in keys if type(value := block.get(key)) is int), 0)
