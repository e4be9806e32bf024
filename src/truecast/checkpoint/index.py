"""The index of a sharded checkpoint, derived from what was written."""

from __future__ import annotations

import json
from collections.abc import Mapping

from truecast.checkpoint.header import TensorInfo

INDEX_FILE = "model.safetensors.index.json"


def encode_index(tensors: Mapping[str, TensorInfo]) -> bytes:
    """Index of these tensors: ``total_size`` is their true size in bytes, names are sorted."""
    document = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": {name: tensors[name].file for name in sorted(tensors)},
    }
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
