"""What the SGLang plug-in costs at start in a process that loads no model.

``python -m benchmarks.sglang_startup --sglang FOLDER [--repeat 50]``

FOLDER holds the package ``sglang``: an installation's ``site-packages``, or a wheel unpacked. Fresh processes in turn, one of
each kind a round: an empty one; one with what SGLang's own plug-in loader imports; that with the plug-in imported and
registered beside. Medians of wall time and of processor time, which other work on the machine changes less; the plug-in's
cost is the median of the differences within a round. A model that is loaded adds reading its needs, once; in each step
nothing is added where no fix is needed, since SGLang's functions are the ones it came with
(``tests/engines/sglang/test_start.py`` compares the objects).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

LOADER = """
import importlib.machinery, importlib.util, sys
for name in ("sglang", "sglang.srt"):  # without running their own start, which imports all of SGLang
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = importlib.util.module_from_spec(spec)
import sglang.srt.plugins.hook_registry, importlib.metadata
importlib.metadata.entry_points(group="sglang.srt.plugins")
"""
PROGRAMS = {
    "empty": "pass",
    "loader": LOADER,
    "plugin": LOADER + "from truecast.engines.sglang.plugin import register\nregister()\n",
}


def once(program: str, folder: Path) -> tuple[float, float]:
    """Wall and processor seconds of one process."""
    before, start = os.times(), time.perf_counter()
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", program, str(folder)], env=environment, check=True)
    wall, after = time.perf_counter() - start, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    """Print the medians in milliseconds, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sglang", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=50)
    arguments = parser.parse_args()
    for program in PROGRAMS.values():  # compiled to .pyc, and in the page cache
        once(program, arguments.sglang)
    rounds = [{n: once(p, arguments.sglang) for n, p in PROGRAMS.items()} for _ in range(arguments.repeat)]
    found = {}
    for place, clock in enumerate(("wall_ms", "processor_ms")):
        table = {n: statistics.median(r[n][place] for r in rounds) for n in PROGRAMS}
        table["added"] = statistics.median(r["plugin"][place] - r["loader"][place] for r in rounds)
        found[clock] = {n: round(1000 * seconds, 2) for n, seconds in table.items()}
    print(json.dumps({"rounds": arguments.repeat, "python": sys.version.split()[0], **found}))


if __name__ == "__main__":
    main()
