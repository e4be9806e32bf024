"""SmolLM2-135M as an MXFP4 checkpoint: a real model, small enough for a laptop, that no download page is needed for."""
