"""Options that several verbs have: one spelling and one meaning of each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from truecast.cli.output import positive
from truecast.cli.target import size_in_bytes
from truecast.errors import InputError, UsageError

_DEVICES = ("auto", "cpu", "cuda")


def add_model_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``, for a verb that computes with a model."""
    parser.add_argument(
        "--device", choices=_DEVICES, default="auto", help="where the model computes (default: CUDA if there is a GPU)"
    )


def add_corpus(parser: argparse.ArgumentParser) -> None:
    """Add ``--corpus`` and ``--limit``, for a verb that goes through documents."""
    parser.add_argument(
        "--corpus", type=Path, required=True, metavar="FILE", help="documents as token ids, made by `truecast corpus`"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N documents")


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add ``--api-key-env``, for a verb that asks a server; :func:`key_of` reads it."""
    parser.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the server's key")


def key_of(args: argparse.Namespace) -> str:
    """The key, empty where none is named. Raises: UsageError if the variable holds none."""
    if args.api_key_env is None:
        return ""
    key = os.environ.get(args.api_key_env, "")
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError("holds no key", where=f"environment variable {args.api_key_env}")
    return key


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Add ``--memory``, for a verb that can go through a model in less than its size."""
    parser.add_argument(
        "--memory",
        type=size_in_bytes,
        metavar="SIZE",
        help="resident memory to stay within, e.g. 600MB (default: no cap)",
    )


@contextmanager
def needing(extra: str, verb: str) -> Iterator[None]:
    """Context of the imports of a verb that wants an extra of the package.

    Raises: InputError naming the extra where a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("truecast"):
            raise
        raise InputError(f"{verb} needs the package {error.name}", fix=f"pip install 'truecast[{extra}]'") from None
