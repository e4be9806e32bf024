"""truecast: recast very large 4-bit MoE checkpoints, and prove what changed and what did not."""

__version__ = "0.1.0"
