"""The three servers: a format, the command that makes its checkpoint, SGLang's arguments."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

LAUNCH = Path(__file__).parents[1] / "sglang" / "launch.py"
MODEL = "nano-k3"
FORMATS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mxfp4": ((), ("--moe-runner-backend", "marlin")),
    "nvfp4": (("--to", "nvfp4"), ("--moe-runner-backend", "marlin")),
    "w4afp8": (("--to", "w4afp8"), ("--fp8-gemm-backend", "triton")),
}
"""Arguments of ``truecast convert`` (none: the source itself) and of SGLang."""
STREAMS = 32
COMMON = (
    "--trust-remote-code",
    *("--served-model-name", MODEL),
    *("--reasoning-parser", "kimi_k3", "--tool-call-parser", "kimi_k3"),
    *("--attention-backend", "triton", "--sampling-backend", "pytorch", "--grammar-backend", "xgrammar"),
    *("--mm-attention-backend", "sdpa", "--mm-feature-transport", "cpu"),
    *("--enable-metrics", "--disable-radix-cache", "--disable-custom-all-reduce", "--skip-server-warmup"),
    *("--mem-fraction-static", "0.25", "--max-total-tokens", "65536", "--context-length", "4096"),
    *("--max-running-requests", str(STREAMS), "--watchdog-timeout", "900"),
)
GRAPHS = ("--cuda-graph-max-bs-decode", str(STREAMS))
EAGER = ("--disable-cuda-graph",)


class NotReadyError(Exception):
    """A server ended, or did not answer in time."""


def command(name: str, chat: Path, port: int, eager: bool) -> list[str]:
    """What starts the server of a format."""
    where = ("--model-path", str(chat), "--port", str(port), "--nccl-port", str(port + 50))
    return [
        *(sys.executable, "-P", "-W", "ignore", str(LAUNCH)),
        *(*where, *COMMON, *FORMATS[name][1], *(EAGER if eager else GRAPHS)),
    ]


@contextlib.contextmanager
def serving(
    lines: Mapping[str, Sequence[str]], env: Mapping[str, str], logs: Path, limit: float
) -> Iterator[dict[str, str]]:
    """Start all, wait until each answers; yields their addresses by name. Raises: NotReadyError after ``limit`` s."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    begin = time.monotonic()
    try:
        for name, line in lines.items():
            with (logs / f"server-{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(line, env=dict(env), stdout=log, stderr=log, start_new_session=True)
        urls = {name: f"http://127.0.0.1:{line[line.index('--port') + 1]}" for name, line in lines.items()}
        for name, url in urls.items():
            while not _answers(f"{url}/model_info"):
                if running[name].poll() is not None:
                    raise NotReadyError(f"{name}: the server ended; see {logs / f'server-{name}.log'}")
                if time.monotonic() - begin > limit:
                    raise NotReadyError(f"{name}: no answer in {limit:g} s")
                time.sleep(0.5)
        yield urls
    finally:
        for process in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
