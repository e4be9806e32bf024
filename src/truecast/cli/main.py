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

VERBS = {
    "inspect": "Show what a checkpoint holds, from its headers alone.",
    "plan": "Show what a conversion would write, from headers alone; --scan reads the scales and says whether it is exact.",
    "convert": "Recast a checkpoint. Runs again after any interruption; the output is the same byte for byte.",
    "verify": "Prove from the bytes on disk that OUT holds what SRC holds, element by element.",
    "check": "Look for faults in any checkpoint: scales, twins, index, exclude lists, conventions.",
    "audit": "Measure what a cast costs: exact KL to the reference, with intervals, reading each weight once.",
    "calibrate": "Note what enters each quantized matrix over a corpus: activation scales, and weights for rounding.",
    "corpus": "Make documents for an audit: continuations of prompts, sampled from the model itself or from a server.",
    "serve-reference": "Serve a checkpoint with the reference model, on the CPU or one GPU: OpenAI's API, to try it out.",
    "doctor": "Find what would stop a deployment or make it answer wrongly, before it starts or while it runs.",
    "launch": "Work out how SGLang serves a checkpoint on given GPUs: flags, environment, memory, each with its reason.",
    "smoke": "Test a running OpenAI-compatible server: answers, channels, tools, streams, canaries under load.",
    "bench": "Measure a deployment under load: speed of a stream, aggregate, time to first token, in the same steady window.",
    "eval": "Ask a running server a task's problems and score the answers, with error bars and truncation told apart.",
    "compare": "Compare two evals, load tests or audits: the difference, and the effect that could have been seen.",
    "card": "Write the model card: a README.md in which every figure comes from a recorded file beside it.",
}
"""Verbs and what they are for. Each is a module of this package (``_`` for ``-``), imported where a command names it."""

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
    words = sys.argv[1:] if argv is None else argv
    args = build_parser(words).parse_args(words)
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


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser for these words of a command line. It knows every verb, and the options of those among the words."""
    parser = argparse.ArgumentParser(
        prog="truecast", description="Recast very large 4-bit MoE checkpoints, and prove what changed and what did not."
    )
    parser.add_argument("--version", action="version", version=f"truecast {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, told in VERBS.items():
        sub = verbs.add_parser(name, help=told, description=told)
        if name not in words:
            continue  # importing all of them takes as long as many a command does
        verb = importlib.import_module(f"truecast.cli.{name.replace('-', '_')}")
        verb.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
        sub.add_argument("--quiet", action="store_true", help="print no progress and no warnings")
        sub.set_defaults(run=verb.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
