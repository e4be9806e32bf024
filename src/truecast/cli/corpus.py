"""``truecast corpus CKPT --prompts FILE --out FILE``: documents of the model's own making, for an audit."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from truecast.cli.options import add_model_device, needing
from truecast.cli.output import REPORT_EVERY_S, positive, print_result, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("ckpt", metavar="CKPT", help="the checkpoint: its tokenizer, and without --url its model")
    parser.add_argument(
        "--prompts", type=Path, required=True, metavar="FILE", help="JSON Lines of messages, tokens or text"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="corpus to write")
    parser.add_argument("--url", metavar="URL", help="sample from this OpenAI-compatible server, http://host:port/v1")
    parser.add_argument(
        "--max-tokens", type=positive, default=512, metavar="N", help="tokens to a prompt (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=_temperature, default=1.0, metavar="T", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first prompt (default: %(default)s)")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N prompts")
    add_model_device(parser)


def run(args: argparse.Namespace) -> int:
    """Make the corpus and print what it holds."""
    with needing("serve", args.verb):
        from truecast.audit.make_corpus import make_corpus
        from truecast.models.device import choose_device
    last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if not args.quiet and time.monotonic() - last >= REPORT_EVERY_S:
            last = time.monotonic()
            say(f"corpus: {done:,} of {total:,} documents")

    result = make_corpus(
        args.ckpt,
        args.prompts,
        args.out,
        url=args.url.rstrip("/") if args.url else None,
        device="cpu" if args.url else choose_device(args.device),
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
        limit=args.limit,
        progress=progress,
    )
    made = (
        f"{result['documents']:,} documents, {result['kept']:,} kept from before; {result['made_tokens']:,} tokens made"
    )
    print_result(args, result, lambda console: console.print(f"{args.out}: {made}"))
    return 0


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 100")
    return value
