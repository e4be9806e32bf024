"""``truecast inspect SRC``: what a checkpoint holds, from its headers."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from rich.console import Console

from truecast.checkpoint.source import open_checkpoint
from truecast.cli.output import gigabytes, print_result, table
from truecast.families import find_family
from truecast.layouts.base import class_of
from truecast.layouts.recognise import recognise

SHOWN = 500
"""Rows of the printed table: rich measures every cell of it. ``--json`` has them all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("src", metavar="SRC", help="folder, .safetensors file or fsspec URL")


def run(args: argparse.Namespace) -> int:
    """Inspect and print."""
    source = open_checkpoint(args.src)
    contents = recognise(source.tensors)
    classes: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for tensor in source.tensors.values():
        row = classes.setdefault((class_of(tensor.name), tensor.dtype, tensor.shape), [0, 0])
        row[0] += 1
        row[1] += tensor.nbytes
    layouts = Counter(m.layout for m in contents.matrices.values())
    document: dict[str, Any] = {
        "source": source.location,
        "family": find_family(source.config, source.tensors).name,
        "shards": len(source.shards),
        "tensors": len(source.tensors),
        "tensor_bytes": source.total_bytes,
        "file_bytes": sum(source.shards.values()),
        "fingerprint": source.fingerprint(),
        "matrices": dict(layouts),
        "classes": [
            {"class": name, "dtype": dtype, "shape": list(shape), "tensors": count, "bytes": size}
            for (name, dtype, shape), (count, size) in sorted(classes.items())
        ],
    }

    def render(console: Console) -> None:
        rows = [
            (c["class"], c["dtype"], "x".join(map(str, c["shape"])), c["tensors"], c["bytes"])
            for c in document["classes"][:SHOWN]
        ]
        console.print(table("", ("class", "dtype", "shape", ">tensors", ">bytes"), rows))
        if len(document["classes"]) > SHOWN:
            console.print(f"and {len(document['classes']) - SHOWN:,} more classes (--json lists them all)")
        console.print(f"\nfamily    {document['family']}")
        for layout, count in layouts.items():
            console.print(f"layout    {layout}: {count:,} matrices")
        console.print(f"shards    {document['shards']:,} ({gigabytes(document['file_bytes'])} on disk)")
        console.print(f"tensors   {document['tensors']:,}")
        console.print(f"bytes     {document['tensor_bytes']:,}")

    print_result(args, document, render)
    return 0
