"""SGLang's server on a vision-language checkpoint that ships no processor: text only. Takes its usual arguments.

Run as a file, in SGLang's own environment. ``--skip-tokenizer-init`` alone does not keep a multimodal architecture from
loading a processor, and the command line cannot say ``enable_multimodal=False``. Servers that are compared bit for bit must
also run the same kernels: Triton's autotuner would pick among the forms of a kernel by timing, in each process anew, and some
forms add in another order.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any


def one_form_each() -> None:
    """Every autotuned Triton kernel that is defined from now on has its first configuration alone."""
    from triton.runtime import autotuner

    made = autotuner.Autotuner.__init__

    def first(self: Any, fn: Any, arg_names: Any, configs: Any, *args: Any, **kwargs: Any) -> None:
        made(self, fn, arg_names, (configs or [])[:1], *args, **kwargs)

    autotuner.Autotuner.__init__ = first


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


if __name__ in ("__main__", "__mp_main__"):  # SGLang's processes import this file again
    one_form_each()
if __name__ == "__main__":
    main()
