"""Where a checkpoint can be served: GPUs, how experts split over them, which kernel an engine runs. Facts as data."""

from __future__ import annotations

from truecast.serve.choice import Candidate, Choice, choices
from truecast.serve.hardware import GPUS, Gpu, find_gpu
from truecast.serve.parallel import Module, Parallel, legal_parallel
from truecast.serve.weights import Weights, weights_of

__all__ = [
    "GPUS",
    "Candidate",
    "Choice",
    "Gpu",
    "Module",
    "Parallel",
    "Weights",
    "choices",
    "find_gpu",
    "legal_parallel",
    "weights_of",
]
