"""One kind of batch through the model and back: eagerly, or as a recorded CUDA graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from examples.nano_k3.data import Batch, Kind
from examples.nano_k3.model import Model
from truecast.models.rows import Rows


class Step:
    """Adds the gradients of one kind's batches to ``gradients``. Nothing in it asks the device for a number."""

    def __init__(self, model: Model, kind: Kind, gradients: dict[str, Tensor]) -> None:
        self.model, self.kind, self.gradients = model, kind, gradients
        device, n = model.load.device, kind.rows * kind.length
        self.tokens = torch.zeros(n, dtype=torch.int64, device=device)
        self.targets = torch.zeros_like(self.tokens)
        self.weights = torch.zeros(n, device=device)
        self.live = torch.zeros(n, device=device)
        self.loss = torch.zeros((), device=device)
        """Mean over the targets that count, of the last batch."""
        self.graph: torch.cuda.CUDAGraph | None = None

    def feed(self, batch: Batch) -> None:
        """Take the next batch."""
        weights = torch.from_numpy(batch.counts).flatten().float()
        for held, value in (
            (self.tokens, torch.from_numpy(batch.tokens.astype(np.int64)).flatten()),
            (self.targets, torch.from_numpy(batch.targets.astype(np.int64)).flatten()),
            (self.live, torch.from_numpy(batch.live).flatten().float()),
            (self.weights, weights / weights.sum().clamp(min=1)),
        ):
            held.copy_(value.pin_memory() if held.is_cuda else value, non_blocking=True)

    def run(self) -> None:
        """Forward and backward."""
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()

    def _run(self) -> None:
        rows = Rows((self.kind.length,) * self.kind.rows)
        scores = self.model.logits(self.tokens, rows, self.live).float()
        loss = (functional.cross_entropy(scores, self.targets, reduction="none") * self.weights).sum()
        names = list(self.gradients)
        found = torch.autograd.grad(loss * self.kind.share, [self.model.stored[name] for name in names])
        torch._foreach_add_([self.gradients[name] for name in names], list(found))
        self.loss.copy_(loss.detach())

    def record(self, pool: tuple[int, int] | None) -> tuple[int, int]:
        """Record the work as a graph, and check that it gives the loss of the eager run. Returns the memory pool.

        Raises: RuntimeError if it cannot be recorded or differs.
        """
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        wanted = self.loss.item()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            self._run()
        self.loss.zero_()
        graph.replay()
        torch.cuda.synchronize()
        if not abs(self.loss.item() - wanted) < 0.02 * abs(wanted):
            raise RuntimeError(f"the recorded step gives {self.loss.item()}, the eager one {wanted}")
        self.graph = graph
        return graph.pool()
