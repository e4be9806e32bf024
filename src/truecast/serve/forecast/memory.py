"""Does a deployment fit in the memory of its GPUs, and how many tokens of KV cache are left?

The sum follows SGLang 0.5.20 (mem_cache/kv_cache_configurator.py, configs/mamba_utils.py, arg_groups/memory_hook.py):
what is free before loading times ``1 - mem_fraction_static`` stays free for activations, graphs and workspaces; of the
rest, weights come first, then the slots of recurrent states (one more than asked for), then the KV cache with the
draft model's beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from truecast.errors import UsageError
from truecast.serve.forecast import constants as c
from truecast.serve.hardware import GPUS, Gpu
from truecast.serve.parallel import LIMIT
from truecast.serve.stored_model import StoredModel


@dataclass(frozen=True, slots=True)
class Options:
    """What of the server's arguments costs memory.

    ``kv_bytes``: of a cache element (1: FP8, 2: BF16); ``state_bytes``: of an element of a recurrent state.
    ``slots``: ``--max-mamba-cache-size``; ``requests``: ``--max-running-requests`` (0: as many as slots).
    ``kv_tokens``: tokens of KV cache that are wanted (None: as many as fit).
    ``window``: tokens that a speculative step verifies, 0 without speculation; ``replay``: with
    ``--enable-linear-replayssm-spec``. ``draft_bytes``: weights of the draft model on a GPU; ``draft_kv_bytes``: its
    cache, bytes a token and GPU. ``symmetric_memory``: with ``--enable-symm-mem``.
    ``prefill_tokens``: ``--chunked-prefill-size``; ``graph_batch``: the largest batch with a decode graph.
    """

    mem_fraction: float
    kv_bytes: int = 2
    state_bytes: int = 4
    slots: int = 0
    requests: int = 0
    kv_tokens: int | None = None
    window: int = 0
    replay: bool = False
    draft_bytes: int = 0
    draft_kv_bytes: int = 0
    symmetric_memory: bool = False
    prefill_tokens: int = 8192
    graph_batch: int = 64


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Bytes on each GPU. ``parts``: what is held, by name; ``passing``: what is needed for a while during the load.

    ``free``: what SGLang leaves outside of its pools, for activations, graphs and workspaces; ``reserve``: what
    SGLang's own rule would leave for them. ``kv_tokens``: the cache that fits, or that was asked for; ``kv_token_bytes``:
    what a token of it costs. ``short``: by how many bytes it does not fit. ``would_fit``: topologies on which it would.
    """

    gpu: str
    gpus: int
    total: int
    parts: Mapping[str, int]
    passing: Mapping[str, int]
    free: int
    reserve: int
    kv_tokens: int
    kv_token_bytes: int
    short: int
    reasons: tuple[str, ...]
    would_fit: tuple[str, ...] = field(default=())

    @property
    def fits(self) -> bool:
        """Does everything that was asked for fit?"""
        return self.short == 0


def memory_fit(
    model: StoredModel,
    gpu: Gpu,
    tp: int,
    ep: int,
    *,
    mem_fraction: float,
    kv_bytes: int = 2,
    state_bytes: int = 4,
    slots: int = 0,
    requests: int = 0,
    kv_tokens: int | None = None,
    window: int = 0,
    replay: bool = False,
    draft_bytes: int = 0,
    draft_kv_bytes: int = 0,
    symmetric_memory: bool = False,
    prefill_tokens: int = 8192,
    graph_batch: int = 64,
) -> MemoryFit:
    """Bytes per GPU of ``model`` on ``tp`` GPUs, whose experts are divided into ``ep`` groups (SGLang's ``--tp-size``
    and ``--ep-size``: each expert is split over ``tp / ep`` GPUs). The options are those of :class:`Options`.

    If it does not fit, ``would_fit`` names the smallest topology of every known GPU on which it would.
    Raises: UsageError for sizes that are not positive, an ``ep`` that does not divide ``tp``, or a fraction outside
    of (0, 1).
    """
    options = Options(
        mem_fraction, kv_bytes, state_bytes, slots, requests, kv_tokens, window, replay, draft_bytes, draft_kv_bytes,
        symmetric_memory, prefill_tokens, graph_batch,
    )  # fmt: skip
    if tp < 1 or ep < 1 or tp % ep:
        raise UsageError(f"tp {tp} and ep {ep}", fix="ep must divide tp, both at least 1")
    if not 0 < mem_fraction < 1:
        raise UsageError(f"memory fraction {mem_fraction}", fix="a share of a GPU's memory, between 0 and 1")
    if min(slots, requests, kv_tokens or 0, window, draft_bytes, draft_kv_bytes) < 0:
        raise UsageError("memory cannot be worked out for negative counts")
    fit = _fit(model, gpu, tp, ep, options)
    return fit if fit.fits else replace(fit, would_fit=tuple(_smallest(model, options)))


def mem_fraction(
    gpu: Gpu, tp: int, *, prefill_tokens: int, graph_batch: int, vision: Mapping[str, object] | None = None
) -> float:
    """What SGLang 0.5.20 takes for ``--mem-fraction-static`` if it is not given, for a model with MLA on Hopper or
    Blackwell. ``vision``: ``vision_config`` of a model with images, for whose encoder it keeps 5 % and more.

    It is cautious: the published H200 recipe takes 0.90 where this says 0.82.
    """
    whole = c.DRIVER_MEMORY_MIB[gpu.name]
    share = round((whole - reserve(tp, prefill_tokens, graph_batch) / c.MIB) / whole, 3)
    if vision is None:
        return share
    layers, width = vision.get("num_hidden_layers", 24), vision.get("hidden_size", 1024)
    size = layers * width**2 / (24 * 1024**2) if isinstance(layers, int) and isinstance(width, int) else 1.0
    return share * 0.95 * max(0.8, min(1.05, 1 - 0.1 * (size - 1)))


def reserve(tp: int, prefill_tokens: int, graph_batch: int) -> int:
    """Bytes for activations and graphs by SGLang's rule (arg_groups/memory_hook.py): per token of a prefill chunk
    1.5 MiB, per request of the largest decode graph 2 MiB, per eight ranks 1 GiB, for prefill graphs 1.5 GiB."""
    rule = 512 + max(prefill_tokens, 2048) * 1.5 + tp / 8 * 1024 + graph_batch * 2 + 1536
    return round(max(rule, 10 * 1024)) * c.MIB


def slot_bytes(model: StoredModel, tp: int, state_bytes: int, *, replay: bool) -> int:
    """Bytes on a GPU of one slot for a request's recurrent states: state, convolution, and the ring of replay."""
    request = model.request
    if request is None or not request.state_elements:
        return 0
    size = request.state_elements * state_bytes + request.convolution_elements * 2
    if replay:
        linear = model.text["linear_attn_config"]
        width, layers_heads = linear["head_dim"], len(linear["kda_layers"]) * linear["num_heads"]
        size += layers_heads * c.REPLAY_LENGTH * (4 * 2 * width + 4 * width + 4)  # four BF16 and one FP32 vector, beta
    return -(-size // tp)


def kv_token_bytes(model: StoredModel, tp: int, kv_bytes: int, draft_kv_bytes: int = 0) -> int:
    """Bytes on a GPU that a token of context costs, the draft model's included; 0 if the attention is not known."""
    if model.request is None:
        return 0
    size = model.request.kv_elements * kv_bytes
    return (-(-size // tp) if model.request.kv_divided else size) + draft_kv_bytes


def dspark_bytes(tp: int, *, kv_bytes: int = 2) -> tuple[int, int]:
    """``draft_bytes`` and ``draft_kv_bytes`` of Kimi-K3's published DSpark draft: weights on a GPU, cache a token and GPU.

    With fewer key and value heads than ranks, each rank keeps one.
    """
    weights = (c.DRAFT_BYTES - c.DRAFT_WHOLE) // tp + c.DRAFT_WHOLE
    return weights, c.DRAFT_LAYERS * max(c.DRAFT_KV_HEADS // tp, 1) * 2 * c.DRAFT_KV_WIDTH * kv_bytes


def _fit(model: StoredModel, gpu: Gpu, tp: int, ep: int, options: Options) -> MemoryFit:
    total = c.CUDA_MEMORY[gpu.name]
    process = c.PROCESS + (c.SYMMETRIC_MEMORY if options.symmetric_memory else 0)
    free = int((total - process) * (1 - options.mem_fraction))
    experts = -(-model.weights.experts // tp)
    split = -(-model.weights.split // tp)
    slot = slot_bytes(model, tp, options.state_bytes, replay=options.replay)
    states = (options.slots + 1) * slot if slot else 0
    if slot and options.window and not options.replay:
        states += (min(options.requests or options.slots, options.slots) + 1) * options.window * slot
    parts = {
        "process, NCCL": process,
        "experts": experts,
        "padding of experts": _padding(model, experts, tp // ep),
        "other weights, split": split,
        "other weights, whole": model.weights.whole,
        "draft model": options.draft_bytes,
        "multimodal cache": c.MULTIMODAL if "vision_config" in model.config else 0,
        "recurrent states": states,
    }
    rest = total - free - sum(parts.values())
    token = kv_token_bytes(model, tp, options.kv_bytes, options.draft_kv_bytes)
    tokens = options.kv_tokens if options.kv_tokens is not None else max(rest // token, 0) if token else 0
    parts["KV cache"] = tokens * token
    passing = _passing(model, gpu, experts)
    ruled = reserve(tp, options.prefill_tokens, options.graph_batch)
    short = max(parts["KV cache"] + (0 if tokens else token) - rest, c.RUNTIME_LEAST - free, 0)
    return MemoryFit(
        gpu.name, tp, total, parts, passing, free, ruled, tokens, token, short,
        tuple(_reasons(model, tp, options, free=free, ruled=ruled, rest=rest, token=token, short=short)),
    )  # fmt: skip


def _reasons(
    model: StoredModel, tp: int, options: Options, *, free: int, ruled: int, rest: int, token: int, short: int
) -> Iterator[str]:
    if not token:
        yield "the KV cache of this model's attention is not known: only weights were counted"
    if model.request and model.request.state_elements and not options.slots:
        yield "no slots for recurrent states were asked for: one is counted"
    if short:
        yield f"short by {short / 1e9:.1f} GB a GPU"
    if rest < 0:
        yield "weights and states leave nothing for the KV cache at this memory fraction"
    if free < c.RUNTIME_LEAST:
        yield f"{free / 1e9:.1f} GB are left for activations and graphs, at least {c.RUNTIME_LEAST / 1e9:.1f} are needed"
    elif free < ruled:
        yield (
            f"{free / 1e9:.1f} GB are left for activations and graphs, SGLang's own rule would leave {ruled / 1e9:.1f}: "
            "lower the memory fraction or the prefill chunk if prefill runs out of memory"
        )


def _padding(model: StoredModel, experts: int, inside: int) -> int:
    """Bytes that padding adds to the experts' ``experts`` bytes if each expert is split over ``inside`` GPUs."""
    unit, width = c.PADDING.get(model.format), model.text.get("moe_intermediate_size")
    if unit is None or type(width) is not int or width < 1:
        return 0
    part = -(-width // inside)
    return experts * (-(-part // unit) * unit - part) // part


def _passing(model: StoredModel, gpu: Gpu, experts: int) -> dict[str, int]:
    """Marlin's repack holds a layer's experts three times: as loaded, expert by expert, and stacked again."""
    if model.format not in c.PADDING or gpu.capability >= 100 or not model.layers:
        return {}
    return {"Marlin repack": 2 * experts // model.layers}


def _smallest(model: StoredModel, options: Options) -> Iterator[str]:
    for gpu in GPUS.values():
        board = 4 if gpu.host == "aarch64" else 8
        for gpus in (2**n for n in range(LIMIT.bit_length())):
            split = model.parallel.split(gpus)
            if split and _fit(model, gpu, gpus, split[1], options).fits:
                yield f"{gpu.name}:{-(-gpus // board)}x{min(gpus, board)}"
                break
