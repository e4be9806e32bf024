"""Muon for matrices, AdamW for the rest.

Muon moves a matrix along its momentum with all singular values set to about one (five Newton-Schulz steps), scaled so
that the entries move about as much as AdamW's would. Matrices of one shape are worked on together.

Source: K. Jordan et al., Muon, 2024 (the coefficients); Liu et al., arXiv:2502.16982 (the scale, the decay).
"""

from __future__ import annotations

import torch
from torch import Tensor

MOMENTUM = 0.95
DECAY = 0.1
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ADAM = ("embed_tokens", "lm_head", "block_sparse_moe.gate.weight", "b_proj", "res_proj", "conv1d")


def for_muon(name: str, parameter: Tensor) -> bool:
    """Is this a matrix inside the network?"""
    return parameter.dim() >= 2 and not any(part in name for part in _ADAM)


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearly orthogonal matrices with the same singular vectors. Shapes: ``[n, rows, cols]`` -> the same, bfloat16."""
    a, b, c = _COEFFICIENTS
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Optimizer:
    """Steps over named float32 parameters; their gradients are in ``gradients``, which a step leaves alone."""

    def __init__(self, parameters: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
        self.groups: dict[tuple[int, int], list[str]] = {}
        plain = []
        for name, parameter in parameters.items():
            if for_muon(name, parameter):
                self.groups.setdefault((parameter.shape[-2], parameter.shape[-1]), []).append(name)
            else:
                plain.append(name)
        self.parameters, self.gradients, self.plain = parameters, gradients, plain
        self.momenta = {name: torch.zeros_like(parameters[name]) for names in self.groups.values() for name in names}
        self.first = {name: torch.zeros_like(parameters[name]) for name in plain}
        self.second = {name: torch.zeros_like(parameters[name]) for name in plain}
        self.steps = 0

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update."""
        self.steps += 1
        for (rows, cols), names in self.groups.items():
            momenta = [self.momenta[name] for name in names]
            gradients = [self.gradients[name] for name in names]
            torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
            ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)
            moves = orthogonal(torch.cat([m.reshape(-1, rows, cols) for m in ahead])).float()
            parts = moves.split([m.numel() // (rows * cols) for m in momenta])
            chosen = [self.parameters[name] for name in names]
            torch._foreach_mul_(chosen, 1 - rate * DECAY)
            torch._foreach_add_(
                chosen, [p.reshape(c.shape) for p, c in zip(parts, chosen, strict=True)],
                alpha=-rate * 0.2 * max(rows, cols) ** 0.5,
            )  # fmt: skip
        self._adam(rate)

    def _adam(self, rate: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-10) -> None:
        chosen = [self.parameters[name] for name in self.plain]
        gradients = [self.gradients[name] for name in self.plain]
        first, second = [self.first[name] for name in self.plain], [self.second[name] for name in self.plain]
        torch._foreach_lerp_(first, gradients, 1 - betas[0])
        torch._foreach_mul_(second, betas[1])
        torch._foreach_addcmul_(second, gradients, gradients, 1 - betas[1])
        corrected = 1 - betas[0] ** self.steps
        roots = torch._foreach_sqrt(second)
        torch._foreach_div_(roots, (1 - betas[1] ** self.steps) ** 0.5)
        torch._foreach_add_(roots, eps)
        torch._foreach_addcdiv_(chosen, first, roots, value=-rate / corrected)

    def state(self) -> dict[str, Tensor]:
        """Everything but the parameters, for :meth:`restore`."""
        parts = {"momentum": self.momenta, "first": self.first, "second": self.second}
        return {f"{kind}/{name}": tensor for kind, held in parts.items() for name, tensor in held.items()}

    def restore(self, state: dict[str, Tensor], steps: int) -> None:
        """Go on where ``state`` was taken."""
        for key, tensor in self.state().items():
            tensor.copy_(state[key])
        self.steps = steps
