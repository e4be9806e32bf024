"""Triton kernels that fixes put in the place of SGLang's, each beside its plain PyTorch form."""
