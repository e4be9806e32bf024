"""What an audit can emulate, and where it can run; known without PyTorch."""

from __future__ import annotations

ACTIVATIONS = ("none", "fp8-tensor", "fp8-token", "mxfp8", "nvfp4")
KV = ("none", "fp8")
DEVICES = ("auto", "cpu", "cuda")
