"""DeepSeek-V4's MXFP4 experts.

``<module>.weight`` I8 (or U8) ``[out, in/2]`` and ``<module>.scale`` F8_E8M0 (or U8) ``[out, in/32]``. The same bytes as
in compressed-tensors' form under other names and dtype tags. FP8 modules beside them also use ``.weight`` and
``.scale``; their dtype and shape tell them apart, and they are plain tensors to truecast.

Source: NVIDIA-NeMo/Automodel 36044ad3, components/models/deepseek_v4/state_dict_adapter.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts import suffixed
from truecast.layouts.base import Matrix, OutTensor

NAME = "mxfp4-deepseek"
FORMAT = "mxfp4"
DIALECT = "deepseek"
STACKED = False

_TABLE = suffixed.Suffixes(NAME, FORMAT, ".weight", ("I8", "U8"), ".scale", ("F8_E8M0", "U8"))


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.match(_TABLE, tensor, tensors)


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.emit(_TABLE, matrices, activations)


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """A plain ``mxfp4`` block. DeepSeek-V4's own config keeps its ``fp8`` block, with ``expert_dtype`` beside it."""
    return {"quant_method": "mxfp4", "modules_to_not_convert": list(excluded)}
