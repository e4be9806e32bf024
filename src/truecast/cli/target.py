"""The options that say what to convert to; ``plan`` and ``convert`` share them."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from truecast.convert import Target
from truecast.convert.calibrated import ROUNDINGS

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def add_target(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add ``--to`` and what goes with it."""
    parser.add_argument(
        "--to",
        required=required,
        type=str.lower,
        metavar="FORMAT",
        help="nvfp4, w4afp8, fp8, bf16, or mxfp4 (change of dialect only)",
    )
    parser.add_argument("--dialect", type=str.lower, metavar="NAME", help="nvfp4: modelopt (default), compressed-tensors;"
                        " w4afp8: sglang (default), compressed-tensors; fp8: deepseek (128 x 128 blocks, default),"
                        " compressed-tensors (per output channel);"
                        " mxfp4: compressed-tensors, deepseek, gpt-oss")  # fmt: skip
    parser.add_argument(
        "--activations",
        choices=("none", "nvfp4"),
        help="nvfp4: add activation scales of 1.0 (W4A4); none: weight-only, drop the source's;"
        " default: as the source has it, but nvfp4 for DeepSeek-V4 in the modelopt dialect",
    )
    parser.add_argument(
        "--method",
        choices=("exact", "signed", "amax"),
        default="exact",
        help="w4afp8: how group scales are found: exact: least squared error (default); signed: the largest value"
        " becomes -8; amax: the largest magnitude becomes 7",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="w4afp8: safetensors file of importance vectors, one weight an input channel: least weighted error",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="w4afp8: file of truecast calibrate: static activation scales, and what --rounding needs",
    )
    parser.add_argument(
        "--rounding",
        choices=ROUNDINGS,
        help="w4afp8: what a group's error counts: each weight alike (data-free), by its channel's mean square in the"
        " calibration (diagonal), or the error of outputs through its Hessian (gptq, on the CPU; default where the"
        " calibration holds Hessians)",
    )
    parser.add_argument(
        "--attention",
        choices=("fp8", "bf16"),
        help="w4afp8: attention as FP8 blocks (default where the engine can take it), or left in BF16",
    )
    parser.add_argument(
        "--inexact",
        choices=("error", "allow"),
        default="error",
        help="what to do where a block cannot be exact: refuse (default), or take the nearest values and list them"
        " (bf16, fp8: count them)",
    )
    parser.add_argument(
        "--no-fix-code",
        action="store_true",
        help="leave the source's modeling_kimi_linear.py as it is; default: its copy gets the loading rule for A_log that"
        " transformers needs, where it has none",
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
        method=args.method,
        weights=args.weights,
        attention=args.attention,
        fix_code=not args.no_fix_code,
        calibration=args.calibration,
        rounding=args.rounding,
    )


def size_in_bytes(text: str) -> int:
    """``5GB``, ``500 MB``, ``4GiB`` or plain bytes, a million or more. Raises: ArgumentTypeError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    size = float(found.group(1)) * _UNITS.get(found.group(2).upper(), 0) if found else 0
    if not 1 <= size < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 5GB")
    if size < 10**6 and found and not found.group(2):
        raise argparse.ArgumentTypeError(f"{text!r} are bytes: did you mean {text.strip()}GB?")
    return int(size)
