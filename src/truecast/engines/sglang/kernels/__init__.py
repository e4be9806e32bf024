"""Triton kernels of the fixes, each with its plain PyTorch form beside it."""
