"""nano-K3 in training: the reference model's own layers over the weights as the checkpoint will store them.

``refresh`` makes these from the float32 parameters: experts rounded to MXFP4, everything that is BF16 on disk rounded to
that, the float32 tensors as they are. So what is published computes what was trained. Gradients are taken at the stored
weights and applied to the parameters (straight-through).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from examples.nano_k3.mxfp4 import rounded
from examples.nano_k3.shape import config
from examples.shaped.kimi_k3 import K3Shape, layer_specs, top_specs
from truecast.models.experts import Experts
from truecast.models.hidden import Hidden
from truecast.models.kimi_k3 import weights
from truecast.models.kimi_k3.attn_res import mix
from truecast.models.kimi_k3.config import K3Config, read_config
from truecast.models.kimi_k3.layer import K3Layer
from truecast.models.linear import Dense
from truecast.models.norm import rms_norm
from truecast.models.rows import Rows
from truecast.models.taps import Taps

Parameters = dict[str, Tensor]
"""Name in the checkpoint -> float32. The experts of a layer are stacked: ``...experts.w1`` is ``[E, inter, latent]``."""

TEXT = "language_model."
BIAS = "e_score_correction_bias"


def untrained(name: str) -> bool:
    """Is this parameter not reached by any gradient? The router's bias, and the mix that layer 0 has no use for."""
    return name.endswith(BIAS) or ".layers.0.self_attention_res_" in name


def initial(shape: K3Shape, seed: int) -> Parameters:
    """Parameters before the first step, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    made: Parameters = {}
    for spec in [*top_specs(shape), *(s for n in range(shape.layers) for s in layer_specs(shape, n))]:
        if ".experts." not in spec.name:
            made[spec.name] = _start(spec.name, spec.shape, shape, generator)
    for layer in range(1, shape.layers):
        prefix = f"{TEXT}model.layers.{layer}.block_sparse_moe.experts."
        for name, rows, cols in (
            ("w1", shape.expert_width, shape.latent),
            ("w2", shape.latent, shape.expert_width),
            ("w3", shape.expert_width, shape.latent),
        ):
            made[prefix + name] = torch.randn(shape.experts, rows, cols, generator=generator) * cols**-0.5
    return made


def _start(name: str, dims: tuple[int, ...], shape: K3Shape, generator: torch.Generator) -> Tensor:
    if name.endswith("A_log"):
        return torch.zeros(shape.heads)
    if name.endswith("dt_bias"):  # decay rates spread from 0.001 to 0.5 a token
        rate = torch.exp(torch.empty(dims).uniform_(math.log(1e-3), math.log(0.5), generator=generator))
        return torch.logit(rate / 5)
    if name.endswith((BIAS, "res_proj.weight")):
        return torch.zeros(dims)
    if len(dims) == 1:
        return torch.ones(dims)
    if "conv1d" in name:
        return torch.empty(dims).uniform_(-0.5, 0.5, generator=generator)
    if "embed_tokens" in name:
        return torch.randn(dims, generator=generator) * 0.5
    gain = (2 * shape.layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight", "up_proj.weight")) else 1.0
    if name.endswith(("routed_expert_down_proj.weight", ".gate_proj.weight", ".mlp.up_proj.weight")):
        gain = 1.0
    if name.endswith("shared_experts.up_proj.weight") or "lm_head" in name:
        gain = 1.0
    return torch.randn(dims, generator=generator) * gain * dims[1] ** -0.5


class StackedExperts:
    """All experts of a layer at once, without asking the device how many tokens each one got.

    ``load`` counts the tokens of each expert among those that ``live`` marks.
    """

    def __init__(self, w1: Tensor, w2: Tensor, w3: Tensor, grouped: bool) -> None:
        self.w1, self.w2, self.w3, self.grouped = w1, w2, w3, grouped
        self.load: Tensor | None = None
        self.live: Tensor | None = None

    def __call__(
        self, z: Tensor, ids: Tensor, shares: Tensor, activation: Callable[[Tensor, Tensor], Tensor], taps: Taps
    ) -> Tensor:
        """See :class:`truecast.models.experts.Experts`."""
        experts = self.w1.shape[0]
        if self.load is not None:
            with torch.no_grad():
                chosen = ids[..., None] == torch.arange(experts, device=ids.device)
                live = chosen.any(1).float() if self.live is None else chosen.any(1) * self.live[:, None]
                self.load.add_(live.sum(0))
        return (self._grouped if self.grouped else self._dense)(z, ids, shares, activation)

    def _dense(self, z: Tensor, ids: Tensor, shares: Tensor, activation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Every expert on every token; those not chosen get the weight zero."""
        experts, width, latent = self.w1.shape
        weights = shares.new_zeros(z.shape[0], experts).scatter(1, ids, shares)
        h = activation(z @ self.w1.reshape(-1, latent).T, z @ self.w3.reshape(-1, latent).T)
        h = (h.reshape(-1, experts, width) * weights[:, :, None]).to(z.dtype).reshape(-1, experts * width)
        return (h @ self.w2.mT.reshape(experts * width, latent)).float()

    def _grouped(
        self, z: Tensor, ids: Tensor, shares: Tensor, activation: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Tokens sorted by expert, one product over all groups."""
        tokens, choices = ids.shape
        order = torch.argsort(ids.reshape(-1), stable=True)
        back = torch.argsort(order)
        counts = (ids.reshape(-1, 1) == torch.arange(self.w1.shape[0], device=ids.device)).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        x = _permute(z[:, None].expand(-1, choices, -1).reshape(tokens * choices, -1), order, back)
        h = activation(_grouped_product(x, self.w1.mT, ends), _grouped_product(x, self.w3.mT, ends))
        y = _permute(_grouped_product(h, self.w2.mT, ends), back, order)
        return (y.reshape(tokens, choices, -1).float() * shares[..., None]).sum(1)


def _grouped_product(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """Rows up to ``ends[e]`` times ``w[e]``. Shapes: ``[n, in]``, ``[E, in, out]``, ``[E]`` int32 -> ``[n, out]``."""
    return torch._grouped_mm(x, w, offs=ends)


class _Permutation(torch.autograd.Function):
    """Rows in another order; backward takes the inverse, so no sums are needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor) -> Tensor:
        """``x[order]``."""
        ctx.back = back
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """``gradient[back]``."""
        return gradients[0].index_select(0, ctx.back), None, None


def _permute(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
    return cast(Tensor, _Permutation.apply(x, order, back))  # type: ignore[no-untyped-call]


class _Lookup(torch.autograd.Function):
    """Rows of a table; the gradient is a matrix product, the same in each run and free of sorting."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor) -> Tensor:
        """``table[tokens]``."""
        ctx.size, ctx.tokens = table.shape[0], tokens
        return table.index_select(0, tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The sum of each token's gradients."""
        marks = ctx.tokens[:, None] == torch.arange(ctx.size, device=ctx.tokens.device)
        return marks.to(gradients[0].dtype).T @ gradients[0], None


def _look_up(table: Tensor, tokens: Tensor) -> Tensor:
    return cast(Tensor, _Lookup.apply(table, tokens))  # type: ignore[no-untyped-call]


def grouped_products_work(device: torch.device) -> bool:
    """Do grouped products give the same values and gradients here as one product after another?"""
    if device.type != "cuda":
        return False
    try:
        g = torch.Generator(device).manual_seed(0)
        x = torch.randn(96, 64, device=device, generator=g).bfloat16().requires_grad_()
        w = torch.randn(3, 32, 64, device=device, generator=g).bfloat16().requires_grad_()
        ends = torch.tensor([16, 16, 96], device=device, dtype=torch.int32)
        got = _grouped_product(x, w.mT, ends)
        want = torch.cat([x[:16] @ w[0].T, x[16:16] @ w[1].T, x[16:] @ w[2].T])
        pairs = zip(
            torch.autograd.grad(got.square().sum(), (x, w)),
            torch.autograd.grad(want.square().sum(), (x, w)),
            strict=True,
        )
        return torch.allclose(got, want, rtol=0.05, atol=0.1) and all(
            ((a - b).float().norm() / b.float().norm()).item() < 0.02 for a, b in pairs
        )
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        print(f"grouped products are not available: {str(error).splitlines()[0]}")
        return False


_WIDE = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", BIAS)
"""Ends of the names that are float32 on disk."""


class Model:
    """One set of parameters and what to compute with them. Numbers run in ``dtype``."""

    def __init__(self, shape: K3Shape, parameters: Parameters, dtype: torch.dtype, grouped: bool = False) -> None:
        self.config: K3Config = read_config(config(shape), "config.json")
        self.parameters, self.dtype, self.grouped = parameters, dtype, grouped
        device = next(iter(parameters.values())).device
        self.load = torch.zeros(shape.layers, shape.experts, device=device)
        """Tokens of each expert since it was last zeroed; row 0 (the dense layer) stays zero."""
        self.stored: dict[str, Tensor] = {}
        """Name -> the weight in use, of which gradients are taken; the router's bias is the parameter itself."""
        for name, parameter in parameters.items():
            if name.endswith(BIAS):
                self.stored[name] = parameter
            else:
                wide = name.endswith(_WIDE)
                held = torch.empty_like(parameter, dtype=torch.float32 if wide else dtype)
                self.stored[name] = held.requires_grad_(not untrained(name))
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the stored weights from the parameters."""
        names = [name for name in self.parameters if not name.endswith(BIAS) and ".experts." not in name]
        sources = [self.parameters[name] for name in names]
        sources = [p if n.endswith(_WIDE) else p.bfloat16() for n, p in zip(names, sources, strict=True)]
        torch._foreach_copy_([self.stored[name] for name in names], sources)
        names = [name for name in self.parameters if ".experts." in name]
        values = rounded(torch.cat([self.parameters[name].reshape(-1) for name in names]))
        parts = values.split([self.parameters[name].numel() for name in names])
        for name, part in zip(names, parts, strict=True):
            self.stored[name].copy_(part.reshape(self.stored[name].shape))

    def hidden(self, tokens: Tensor, rows: Rows, live: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the head takes, and the head. Shapes: ``[N]`` -> ``[N, hidden]``, ``[V, hidden]``."""
        state = Hidden(_look_up(self._stored("model.embed_tokens.weight"), tokens))
        for index in range(self.config.layers):
            state = self._layer(index, live)(state, rows)
        res = weights.attn_res(self.config, f"{TEXT}model.output_attn_res", _Parameters(self.stored))
        mixed = mix(state.stream, state.snapshots, res, self.config.eps)
        return rms_norm(mixed, self._stored("model.norm.weight"), self.config.eps), self._stored("lm_head.weight")

    def logits(self, tokens: Tensor, rows: Rows, live: Tensor | None = None) -> Tensor:
        """Shapes: ``[N]`` -> ``[N, V]``."""
        hidden, head = self.hidden(tokens, rows, live)
        return functional.linear(hidden, head)

    def _stored(self, name: str) -> Tensor:
        return self.stored[TEXT + name]

    def _layer(self, index: int, live: Tensor | None) -> K3Layer:
        def experts(config: K3Config, prefix: str, stored: weights.Weights) -> Experts:
            made = StackedExperts(*(self.stored[prefix + w] for w in ("w1", "w2", "w3")), grouped=self.grouped)
            made.load, made.live = self.load[index], live
            return cast(Experts, made)

        return weights.layer(self.config, index, f"{TEXT}model.", _Parameters(self.stored), experts)


@dataclass(frozen=True)
class _Parameters:
    """See :class:`truecast.models.kimi_k3.weights.Weights`."""

    stored: Parameters

    def has(self, module: str) -> bool:
        return f"{module}.weight" in self.stored

    def tensor(self, name: str, *shapes: tuple[int, ...]) -> Tensor:
        return self.stored[name]

    def linear(self, module: str, rows: int, cols: int) -> Dense:
        return Dense(self.tensor(f"{module}.weight"))

    def where(self, name: str) -> str:
        return name
