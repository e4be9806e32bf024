"""``router.sh`` against the argument parser of the router itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.engines.conftest import wheel_file
from tests.serve.launch.conftest import Launch
from tests.serve.launch.tools import judge
from truecast.serve.launch.router import OPTIONS, ROUTER, router_script, router_words

PARSE = """
import argparse, json, sys
from sglang_router.router_args import RouterArgs
parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser)
print(json.dumps(vars(parser.parse_args())))
"""


def test_the_router_takes_every_flag(tmp_path: Path) -> None:
    package, version = ROUTER.split("==")
    with zipfile.ZipFile(wheel_file(package, version, "manylinux_2_17_x86_64")) as wheel:
        wheel.extractall(tmp_path)
    urls = ["http://a:30000", "http://b:30000"]
    command = [sys.executable, "-c", PARSE, *router_words()[3:], *urls]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    given = json.loads(done.stdout)
    assert given["worker_urls"] == urls
    for flag, value, _ in OPTIONS:
        assert str(given[flag[2:].replace("-", "_")]) in (value, f"{value}.0")


def test_the_script(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "router.sh"
    path.write_text(router_script(launch("mxfp4", "h200:8x8", replicas=2)))
    judge(path)
    done = subprocess.run(["bash", path, "http://a:30000"], capture_output=True, text=True, check=False)
    assert (done.returncode, "the addresses of 2 replicas" in done.stderr) == (2, True)
