"""A verdict on exclude lists in a process of its own, which can be ended: Python's ``re`` knows no time limit.

Only lists with a regex that might backtrack without end come here. Both ways the process is spoken to in JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from truecast.verify.check.findings import Collector, Finding, Place

LIMIT_S = 5


def judge_apart(lists: Mapping[str, Any]) -> Collector | None:
    """What :meth:`Lists.judge` finds; None if it does not end in time or fails, for instance for want of memory."""
    path = os.pathsep.join(p for p in sys.path if p)
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=json.dumps(lists).encode(),
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        return None
    found = Collector()
    for rule, severity, tensor_class, total, shown in json.loads(ended.stdout):
        findings = [Finding(**{**finding, "place": Place(**finding["place"])}) for finding in shown]
        found.restore((rule, severity, tensor_class), findings, total)
    return found


def main() -> None:
    """Judge the lists on stdin."""
    from truecast.verify.check.exclude import Lists  # which imports this module

    if hasattr(signal, "alarm"):
        signal.alarm(2 * LIMIT_S)  # should the parent have been killed, nobody else ends this process
    found = Collector()
    Lists.of(json.load(sys.stdin.buffer)).judge(found)
    rows = [[*key, kind.total, [asdict(finding) for finding in kind.shown]] for key, kind in found.kinds.items()]
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
