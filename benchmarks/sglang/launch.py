"""SGLang's server on a vision-language checkpoint that ships no processor: text only. Takes its usual arguments.

Run as a file, in SGLang's own environment. ``--skip-tokenizer-init`` alone does not keep a multimodal architecture from
loading a processor, and the command line cannot say ``enable_multimodal=False``.
"""

from __future__ import annotations

import argparse
import os
import sys


def main() -> None:
    """Serve until killed."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    chosen = parser.parse_args(sys.argv[1:])
    chosen.enable_multimodal = False
    arguments = ServerArgs.from_cli_args(chosen)
    from sglang.launch_server import run_server
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":  # SGLang's processes import this file again
    main()
