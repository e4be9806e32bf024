"""The options that say what to convert to; ``plan`` and ``convert`` share them."""

from __future__ import annotations

import argparse
import math
import re

from truecast.convert import Target

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add ``--to`` and what goes with it."""
    parser.add_argument("--to", required=True, metavar="FORMAT", help="nvfp4, mxfp4 (change of dialect only) or bf16")
    parser.add_argument("--dialect", metavar="NAME", help="nvfp4: modelopt (default), compressed-tensors;"
                        " mxfp4: compressed-tensors, deepseek, gpt-oss")  # fmt: skip
    parser.add_argument(
        "--activations",
        choices=("none", "nvfp4"),
        help="nvfp4: add activation scales of 1.0 (W4A4); none: weight-only, drop the source's;"
        " default: as the source has it, but nvfp4 for DeepSeek-V4 in the modelopt dialect",
    )
    parser.add_argument(
        "--inexact",
        choices=("error", "allow"),
        default="error",
        help="what to do where a block cannot be exact: refuse (default), or take the nearest values and list them",
    )
    parser.add_argument(
        "--max-shard-size",
        type=size_in_bytes,
        metavar="SIZE",
        help="split anew, e.g. 5GB; default: as the source is split",
    )


def target_of(args: argparse.Namespace) -> Target:
    """The target that the options describe."""
    return Target(
        format=args.to,
        dialect=args.dialect,
        activations=None if args.activations is None else args.activations == "nvfp4",
        allow_inexact=args.inexact == "allow",
        max_shard_bytes=args.max_shard_size,
    )


def size_in_bytes(text: str) -> int:
    """``5GB``, ``500 MB``, ``4GiB`` or plain bytes. Raises: ArgumentTypeError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    size = float(found.group(1)) * _UNITS.get(found.group(2).upper(), 0) if found else 0
    if not 1 <= size < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 5GB")
    return int(size)
