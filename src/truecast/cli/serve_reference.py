"""``truecast serve-reference CKPT``: an OpenAI-compatible server on the reference model."""

from __future__ import annotations

import argparse
import gc
from typing import TYPE_CHECKING

from truecast.cli.options import add_model_device, needing
from truecast.cli.output import print_result

if TYPE_CHECKING:
    from truecast.serve.reference.served import Served


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("ckpt", metavar="CKPT", help="folder or fsspec URL")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=8000, help="0 takes a free one (default: %(default)s)")
    add_model_device(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM (exit 0) or Ctrl-C (exit 130)."""
    with needing("serve", args.verb):
        from truecast.serve.reference.run import serve
    gc.enable()  # a server runs for long

    def ready(url: str, served: Served) -> None:
        document = {"url": f"{url}/v1", "model": served.names[0], "context": served.context, "vocabulary": served.vocab}
        line = f"{document['model']} at {document['url']}, context {served.context:,} tokens; Ctrl-C ends it"
        print_result(args, document, lambda console: console.print(line))

    serve(args.ckpt, args.host, args.port, args.device, ready)
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 0 to 65535")
    return int(text)
