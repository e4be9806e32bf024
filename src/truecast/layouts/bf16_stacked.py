"""Plain BF16 banks as transformers loads gpt-oss: ``<bank>.gate_up_proj`` ``[E, H, 2I]``, ``down_proj`` ``[E, I, H]``.

Stored ``[in, out]``; gate in the even columns, up in the odd ones; ``_bias`` ``[E, out]``.

Source: huggingface/transformers, models/gpt_oss/modeling_gpt_oss.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from truecast.layouts.base import Matrix, OutTensor
from truecast.layouts.bf16 import match, quantization_config
from truecast.layouts.stacked import stack_experts

__all__ = ["DIALECT", "FORMAT", "NAME", "STACKED", "emit", "match", "quantization_config"]

NAME = "bf16-stacked"
FORMAT = "bf16"
DIALECT = "bf16"
STACKED = True


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """See :class:`truecast.layouts.base.Layout`. Raises: InputError where experts cannot be stacked."""
    for bank, projection, pieces in stack_experts(matrices):
        first = pieces[0][0]
        stem, lead, rows = f"{bank}.{projection}", len(pieces), first.rows * len(pieces[0])
        yield OutTensor(stem, "BF16", (lead, first.cols, rows), "weight", pieces=pieces, transposed=True)
        if first.bias is not None:
            yield OutTensor(f"{stem}_bias", first.bias.tensor.dtype, (lead, rows), "bias", pieces=pieces)
