"""Small safetensors files written by hand, so that they can also be wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

Tensor = tuple[str, list[int], bytes]
"""dtype, shape, bytes"""


def raw_file(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header text; ``length`` lies about its size."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def json_file(document: Any, data: bytes = b"") -> bytes:
    """A file whose header is this JSON document."""
    return raw_file(json.dumps(document).encode(), data)


def tensor_file(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """A correct file that holds these tensors one after another."""
    document: dict[str, Any] = {"__metadata__": metadata} if metadata is not None else {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        document[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return json_file(document, data)


def write_checkpoint(
    folder: Path, shards: dict[str, dict[str, Tensor]], weight_map: dict[str, Any] | None = None
) -> Path:
    """Write shards, and an index: a true one, or with this ``weight_map``."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, tensors in shards.items():
        (folder / file).write_bytes(tensor_file(tensors))
    if weight_map is None:
        weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    total = sum(len(content) for tensors in shards.values() for _, _, content in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def two_shards() -> dict[str, dict[str, Tensor]]:
    """Two shards of two tensors each."""
    return {
        "model-00001-of-00002.safetensors": {
            "a.weight": ("F32", [2, 2], bytes(range(16))),
            "b.weight": ("U8", [3], b"abc"),
        },
        "model-00002-of-00002.safetensors": {
            "c.weight": ("BF16", [4], b"\xa5" * 8),
            "d.weight": ("F8_E4M3", [2, 1], b"\x38\x7e"),
        },
    }
