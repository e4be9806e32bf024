"""What an audit can emulate; known without PyTorch."""

from __future__ import annotations

ACTIVATIONS = ("none", "fp8-tensor", "fp8-token", "mxfp8", "nvfp4")
KV = ("none", "fp8")
