"""How far a state is from the reference's, summed over tiles in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class StateError:
    """Relative error of one run's stream: over all rows, and of the worst row."""

    squared_error: float = 0.0
    squared: float = 0.0
    worst: float = 0.0

    def add(self, state: torch.Tensor, reference: torch.Tensor) -> None:
        """Take in a tile. Shapes: ``[N, hidden]`` both."""
        size = reference.double().square().sum(1)
        error = (state.double() - reference.double()).square().sum(1)
        self.squared_error += float(error.sum())
        self.squared += float(size.sum())
        tiny = torch.finfo(torch.float64).tiny
        self.worst = max(self.worst, float((error / size.clamp(min=tiny)).max().sqrt()))

    @property
    def relative(self) -> float:
        """Root of squared error over squared reference; 0 where both are."""
        return (self.squared_error / self.squared) ** 0.5 if self.squared else 0.0
