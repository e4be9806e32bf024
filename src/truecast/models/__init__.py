"""Reference models in plain PyTorch that read a checkpoint in any layout, one layer at a time."""

from __future__ import annotations

from truecast.models.open import open_model

__all__ = ["open_model"]
