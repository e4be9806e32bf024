"""Where others look into a forward pass, or change what passes: emulation of activations, calibration."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Taps(Protocol):
    """Called at the places that matter to quantization; returns what the model goes on with."""

    def input(self, module: str, x: Tensor, scale: Tensor | None) -> Tensor:
        """Right before each product with a *quantized* matrix. Shapes: ``[n, in]`` -> ``[n, in]``.

        ``module`` is the matrix's full name in the checkpoint; ``scale`` the stored input scale (float32 scalar that
        multiplies, whatever the layout), None where there is none.
        """

    def kv(self, layer: int, x: Tensor) -> Tensor:
        """What the layer's cache keeps: latent and shared key of MLA, keys and values of GQA. ``[n, ...]`` both ways."""


class Plain:
    """Changes nothing."""

    def input(self, module: str, x: Tensor, scale: Tensor | None) -> Tensor:
        """See :class:`Taps`."""
        return x

    def kv(self, layer: int, x: Tensor) -> Tensor:
        """See :class:`Taps`."""
        return x


PLAIN: Taps = Plain()
"""The forward pass as it is."""
