"""Llama and models of its shape (SmolLM2): grouped-query attention with rotary positions, SwiGLU, tied or own head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from truecast.models.head import head_matrix
from truecast.models.hidden import Hidden
from truecast.models.linear import Linear
from truecast.models.memory import nbytes
from truecast.models.norm import rms_norm
from truecast.models.rope import frequencies, rotate
from truecast.models.rows import Rows, by_documents
from truecast.models.settings import Settings
from truecast.models.stored import Stored
from truecast.models.taps import PLAIN, Taps

_ELEMENTS = 1 << 28
"""So many elements of the queries are worked on at a time."""


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """What the forward pass needs to know."""

    hidden: int
    layers: int
    vocab: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    tied: bool
    steps: Tensor
    """Angles of one position, ``[head_dim / 2]``."""


def read_config(document: Mapping[str, Any], where: str) -> LlamaConfig:
    """Read ``config.json``. Raises: InputError for a setting that is missing, wrong, or not computed here."""
    text = Settings(document, where)
    text.require("hidden_act", "silu")
    for name in ("attention_bias", "mlp_bias"):
        text.require(name, False, absent_is_fine=True)
    for name in ("sliding_window", "layer_types"):
        if document.get(name) is not None:
            raise text.error(name, "is set; the reference model attends to all earlier tokens in every layer")
    hidden, heads = text.natural("hidden_size"), text.natural("num_attention_heads")
    kv_heads = text.natural("num_key_value_heads", heads)
    head_dim = text.natural("head_dim", hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise text.error("num_attention_heads", f"is {heads} of {head_dim} channels, over {kv_heads} key-value heads")
    return LlamaConfig(
        hidden=hidden,
        layers=text.natural("num_hidden_layers"),
        vocab=text.natural("vocab_size"),
        width=text.natural("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=text.positive("rms_norm_eps"),
        tied=text.flag("tie_word_embeddings", False),
        steps=frequencies(text, head_dim),
    )


@dataclass(slots=True)
class LlamaCache:
    """Keys, turned, and values of one sequence: ``[T, kv heads, head_dim]``."""

    k: Tensor | None = None
    v: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append, and return all there is."""
        self.k = k if self.k is None else torch.cat([self.k, k])
        self.v = v if self.v is None else torch.cat([self.v, v])
        return self.k, self.v


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One decoder layer with its weights."""

    config: LlamaConfig
    index: int
    attention_norm: Tensor
    q: Linear
    k: Linear
    v: Linear
    out: Linear
    mlp_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear

    @property
    def nbytes(self) -> int:
        """What its weights take in memory."""
        return nbytes(self)

    def __call__(self, hidden: Hidden, rows: Rows, taps: Taps = PLAIN, cache: LlamaCache | None = None) -> Hidden:
        """See :class:`truecast.models.base.Layer`."""
        config, stream = self.config, hidden.stream
        x = rms_norm(stream, self.attention_norm, config.eps)
        stream = stream + self._attend(x, rows, taps, cache)
        x = rms_norm(stream, self.mlp_norm, config.eps)
        return Hidden(stream + self.down(functional.silu(self.gate(x, taps)) * self.up(x, taps), taps))

    def _attend(self, x: Tensor, rows: Rows, taps: Taps, cache: LlamaCache | None) -> Tensor:
        config = self.config
        past = 0 if cache is None or cache.k is None else cache.k.shape[0]
        places = torch.cat([torch.arange(past, past + n, device=x.device) for n in rows.lengths])
        q = rotate(self.q(x, taps).reshape(-1, config.heads, config.head_dim), places, config.steps)
        k = rotate(self.k(x, taps).reshape(-1, config.kv_heads, config.head_dim), places, config.steps)
        k, v = taps.kv(self.index, k), taps.kv(self.index, self.v(x, taps).reshape(k.shape))
        if cache is None:
            limit = max(1, _ELEMENTS // (config.heads * config.head_dim))
            attended = by_documents(rows, limit, partial(_padded, config=config), q, k, v)
        else:
            k, v = cache.extend(k, v)
            attended = _attention(q[None], k[None], v[None], config, past)[0]
        return self.out(attended, taps)


def _padded(rows: Rows, q: Tensor, k: Tensor, v: Tensor, *, config: LlamaConfig) -> Tensor:
    return rows.flat(_attention(rows.pad(q), rows.pad(k), rows.pad(v), config, 0))


def _attention(q: Tensor, k: Tensor, v: Tensor, config: LlamaConfig, past: int) -> Tensor:
    """Causal attention. Shapes: q ``[B, n, H, d]``, k and v ``[B, past + n, kv heads, d]`` -> ``[B, n, H d]``."""
    groups = config.heads // config.kv_heads
    k, v = (t.repeat_interleave(groups, dim=2).transpose(1, 2) for t in (k, v))
    mask = None
    if past and q.shape[1] > 1:
        mask = torch.ones(q.shape[1], k.shape[2], dtype=torch.bool, device=q.device).tril(past)
    out = functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, mask, is_causal=past == 0)
    return out.transpose(1, 2).flatten(2)


@dataclass(frozen=True, slots=True)
class LlamaHead:
    """The last norm and the head's matrix."""

    norm: Tensor
    weight: Tensor
    eps: float

    def final(self, hidden: Hidden) -> Tensor:
        """See :class:`truecast.models.base.Head`."""
        return rms_norm(hidden.stream, self.norm, self.eps)


@dataclass(frozen=True, slots=True)
class Llama:
    """See :class:`truecast.models.model.Architecture`."""

    config: LlamaConfig
    family: ClassVar[str] = "llama"

    def layer(self, i: int, prefix: str, stored: Stored) -> LlamaLayer:
        """See :class:`truecast.models.model.Architecture`."""
        config, prefix = self.config, f"{prefix}layers.{i}."
        inner, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        return LlamaLayer(
            config,
            i,
            attention_norm=stored.tensor(f"{prefix}input_layernorm.weight", (config.hidden,)),
            q=stored.linear(f"{prefix}self_attn.q_proj", inner, config.hidden),
            k=stored.linear(f"{prefix}self_attn.k_proj", kv, config.hidden),
            v=stored.linear(f"{prefix}self_attn.v_proj", kv, config.hidden),
            out=stored.linear(f"{prefix}self_attn.o_proj", config.hidden, inner),
            mlp_norm=stored.tensor(f"{prefix}post_attention_layernorm.weight", (config.hidden,)),
            gate=stored.linear(f"{prefix}mlp.gate_proj", config.width, config.hidden),
            up=stored.linear(f"{prefix}mlp.up_proj", config.width, config.hidden),
            down=stored.linear(f"{prefix}mlp.down_proj", config.hidden, config.width),
        )

    def head(self, prefix: str, stored: Stored) -> LlamaHead:
        """See :class:`truecast.models.model.Architecture`."""
        config = self.config
        norm = stored.tensor(f"{prefix}norm.weight", (config.hidden,))
        return LlamaHead(norm, head_matrix(prefix, stored, config.vocab, config.hidden, config.tied), config.eps)

    def new_cache(self) -> list[LlamaCache]:
        """See :class:`truecast.models.base.Decoder`."""
        return [LlamaCache() for _ in range(self.config.layers)]
