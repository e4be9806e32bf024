"""Findings about modelling code beside the weights: what it does with ``A_log``. Read as text, never run."""

from __future__ import annotations

from pathlib import PurePosixPath

from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.families.delta_attention import FILE, MAX_BYTES, judge, linear_heads, longer
from truecast.verify.check.findings import Collector, Place


def check_code(found: Collector, checkpoint: Checkpoint) -> None:
    """``A_log`` built at head_dim, or at num_heads beside a longer tensor without a rule that narrows it."""
    heads, width = linear_heads(checkpoint.config)
    names = longer(checkpoint.config, {t.name: t.shape for t in checkpoint.tensors.values()})
    for name, size in checkpoint.auxiliary.items():
        if PurePosixPath(name).name != FILE or size > MAX_BYTES:
            continue
        try:
            verdict = judge(checkpoint.read_small(name, MAX_BYTES))
        except InputError:
            continue  # a file that cannot be read is no code that could run
        if verdict == "oversized" and (heads is None or heads != width):
            sizes = f" ({width} for {heads} heads)" if heads and width else ""
            found.add("a-log-oversized", Place(file=name), f"KimiDeltaAttention builds A_log at head_dim{sizes}")
        elif verdict == "unfixed" and names:
            tensor = checkpoint.tensors[names[0]]
            more = f", and {len(names) - 1} more are as long" if len(names) > 1 else ""
            found.add(
                "a-log-unloadable",
                Place(file=name),
                f"KimiDeltaAttention builds A_log at num_heads ({heads}), but {tensor.name} has {tensor.shape[0]} values{more}",
            )
