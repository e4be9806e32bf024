"""Memory of each GPU: does what the arguments ask for fit, by how much, and where it would if it does not."""

from __future__ import annotations

from collections.abc import Iterable

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.forecast.memory import MemoryFit, mem_fraction, memory_fit

LONG = 8192
"""Tokens of KV cache below which a server is of little use: one answer of a model that reasons."""
SLACK = 0.9
"""Of what SGLang's own rule leaves free: its own default comes out a few per cent below the rule."""
_BYTES = {"fp8_e4m3": 1, "fp8_e5m2": 1, "float32": 4, "bfloat16": 2, "float16": 2}
_TAKEN = 48
"""``--max-running-requests`` that SGLang takes with speculation where none is given."""


def fit_of(ground: Ground) -> MemoryFit:
    """What :func:`~truecast.serve.forecast.memory.memory_fit` says of the arguments. Needs model, topology, arguments."""
    assert ground.model is not None and ground.topology is not None
    gpu, tp, ep = ground.topology.gpu, ground.number("--tp-size", 1), ground.number("--ep-size", 1)
    chunk, graphs = ground.number("--chunked-prefill-size", 8192), ground.number("--cuda-graph-max-bs-decode", 64)
    given = ground.argument("--mem-fraction-static")
    fraction = float(given) if given else mem_fraction(gpu, tp, prefill_tokens=chunk, graph_batch=graphs)
    speculates = ground.argument("--speculative-algorithm") is not None
    block = ground.number("--speculative-dspark-block-size", 0)
    draft = ground.draft.weights.per_gpu(tp) if ground.draft is not None else 0
    return memory_fit(
        ground.model, gpu, tp, ep,
        mem_fraction=fraction,
        kv_bytes=_BYTES.get(ground.argument("--kv-cache-dtype") or "", 2),
        state_bytes=_BYTES.get(ground.argument("--mamba-ssm-dtype") or "", 4),
        slots=ground.number("--max-mamba-cache-size", 0),
        requests=ground.number("--max-running-requests", _TAKEN if speculates else 0),
        kv_tokens=ground.number("--max-total-tokens", 0) or None,
        window=ground.number("--speculative-num-draft-tokens", block + 1) if speculates else 0,
        replay=ground.argument("--enable-linear-replayssm-spec") is not None,
        draft_bytes=draft,
        symmetric_memory=ground.argument("--enable-symm-mem") is not None,
        prefill_tokens=chunk,
        graph_batch=graphs,
    )  # fmt: skip


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


def _fits(ground: Ground) -> Verdict:
    if ground.server is not None:
        return skipped("the server runs: it has its memory")
    missing = [n for n, v in (("checkpoint", ground.model), ("topology", ground.topology)) if v is None]
    if missing or ground.arguments is None:
        return skipped(f"not given: {', '.join(missing) or 'the arguments of the server'}")
    assert ground.model is not None and ground.topology is not None
    given = ground.argument("--mem-fraction-static")
    if given and not _is_share(given):
        return failed(f"--mem-fraction-static {given}", "give it a share of a GPU's memory, between 0 and 1")
    fit = fit_of(ground)
    held = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in fit.parts.items() if size >= 5e7)
    said = f"of {fit.total / 1e9:.1f} GB on each {ground.topology.gpu.title}: {held} GB"
    if not fit.fits:
        would = f"it would fit on {', '.join(fit.would_fit)}" if fit.would_fit else "it fits on no GPU that is known"
        return failed(
            f"{said}: {'; '.join(fit.reasons)}", f"{would}; or ask for less: --max-total-tokens, slots, graphs"
        )
    if not fit.kv_token_bytes:
        return unknown(f"{said}; {'; '.join(fit.reasons)}", "compare with the server's own log after loading")
    said = f"{said}; {fit.free / 1e9:.1f} GB stay free for activations and graphs; KV cache of {fit.kv_tokens:,} tokens"
    if fit.kv_tokens < LONG:
        return warned(f"{said}, less than one long answer", "raise --mem-fraction-static, or take more GPUs")
    if fit.free < SLACK * fit.reserve:
        return warned(f"{said}; {'; '.join(fit.reasons)}", "lower --mem-fraction-static or --chunked-prefill-size")
    return passed(said)


CHECKS: Iterable[Check] = (
    Check(
        "memory.fit",
        "weights, KV cache, recurrent states and graphs fit",
        _fits,
        ("SGLang, mem_cache/kv_cache_configurator.py", "https://github.com/vllm-project/recipes/issues/934"),
    ),
)
