"""The ``truecast`` command: registration and exit codes, nothing else."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import signal
import sys
from collections.abc import Sequence

from truecast import __version__
from truecast.errors import RefusedError, TruecastError

VERBS = (
    "inspect",
    "plan",
    "convert",
    "verify",
    "check",
    "audit",
    "calibrate",
    "corpus",
    "serve-reference",
    "doctor",
    "launch",
    "smoke",
    "bench",
    "eval",
    "compare",
    "card",
)
"""Verbs, each a module of this package (``_`` for ``-``); imported once ``main`` can answer Ctrl-C."""

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 done, 1 claim fails, 2 bad input, 3 refused, 130 interrupted."""
    try:
        return _run(argv)
    except KeyboardInterrupt:
        print("truecast: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    from truecast.cli.output import print_error, tolerate_output

    tolerate_output()
    args = build_parser().parse_args(argv)
    gc.disable()  # headers of a large checkpoint are millions of objects without a cycle: scanning them costs 40%
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR if args.quiet else logging.WARNING, format="%(message)s")
    try:
        return int(args.run(args))
    except TruecastError as error:
        print_error(args, str(error), error.exit_code)
        return error.exit_code
    except RuntimeError as error:
        if not _no_memory(error):
            raise
        refused = RefusedError(
            "not enough memory for what this checkpoint and these documents need",
            fix="free memory, give fewer or shorter documents, or --memory where the command has it",
        )
        print_error(args, str(refused), refused.exit_code)
        return refused.exit_code
    except MemoryError:
        refused = RefusedError("not enough memory for a matrix of this checkpoint", fix="run with fewer --jobs")
        print_error(args, str(refused), refused.exit_code)
        return refused.exit_code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one has nothing left to stop
        print_error(args, f"interrupted{_afterwards(args)}", INTERRUPTED)
        return INTERRUPTED


def _no_memory(error: RuntimeError) -> bool:
    """Is this PyTorch's way to say that memory is short, on the CPU or a GPU? It has no type of its own on the CPU."""
    return any(words in str(error) for words in ("can't allocate memory", "not enough memory", "CUDA out of memory"))


def _afterwards(args: argparse.Namespace) -> str:
    """What the same command does after an interruption, for the message."""
    if args.verb in ("serve-reference", "launch"):
        return ""  # Ctrl-C is how they end
    if args.verb == "bench" and args.out is not None:
        return "; the runs that had finished are kept"
    kept = args.verb in ("convert", "corpus", "eval") or (args.verb == "audit" and args.out is not None)
    return "; the same command " + ("goes on from here" if kept else "starts again: nothing was kept")


def build_parser() -> argparse.ArgumentParser:
    """The parser with every verb registered."""
    parser = argparse.ArgumentParser(
        prog="truecast", description="Recast very large 4-bit MoE checkpoints, and prove what changed and what did not."
    )
    parser.add_argument("--version", action="version", version=f"truecast {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in (importlib.import_module(f"truecast.cli.{name.replace('-', '_')}") for name in VERBS):
        sub = verbs.add_parser(verb.NAME, help=verb.HELP, description=verb.HELP)
        verb.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
        sub.add_argument("--quiet", action="store_true", help="print no progress and no warnings")
        sub.set_defaults(run=verb.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
