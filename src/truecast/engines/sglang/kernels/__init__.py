<<<<<<< HEAD
"""Triton kernels that fixes put in the place of SGLang's, each beside its plain PyTorch form."""
=======
"""Triton kernels of the fixes, each with its plain PyTorch form beside it."""
>>>>>>> route
