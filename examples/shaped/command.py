"""The command line that all makers share."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.shaped.shards import Made
from truecast.errors import TruecastError


def run(program: str, make: Callable[..., Made], small: Any, full: Any) -> int:
    """Parse the command line, make the checkpoint, print one line. Returns the exit code.

    ``small`` and ``full`` are dataclasses of integer dimensions, each of which becomes an option.
    """
    parser = argparse.ArgumentParser(prog=f"python -m examples.shaped.{program}")
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--full", action="store_true", help="the true dimensions; the options below still override")
    parser.add_argument("--sparse", action="store_true", help="true headers over holes that read as zeros")
    parser.add_argument("--seed", type=int, default=0)
    names = [field.name for field in dataclasses.fields(small)]
    for name in names:
        sizes = f"{getattr(small, name)}, with --full {getattr(full, name)}"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"default {sizes}")
    given = parser.parse_args()
    chosen = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    shape = dataclasses.replace(full if given.full else small, **chosen)
    begun = time.perf_counter()
    try:
        made = make(given.out, shape=shape, seed=given.seed, sparse=given.sparse)
    except TruecastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{given.out}: {made}, {time.perf_counter() - begun:.1f} s")
    return 0
