"""Kimi-K3 in plain PyTorch: KDA, gated MLA without positions, AttnRes, latent mixture of experts, SiTU.

Formulas: Kimi Linear (arXiv:2510.26692), Attention Residuals (arXiv:2603.15031), LatentMoE (arXiv:2601.18089), and the
released modelling code, which decides where they leave something open.
"""
