"""Engines' own code as the judge: functions cut out of a released wheel's source, so that they run without a GPU."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SGLANG = "0.5.20"
CACHE = Path(__file__).parents[2] / ".engines"


@pytest.fixture(scope="session")
def sglang_wheel() -> zipfile.ZipFile:
    found = list(CACHE.glob(f"sglang-{SGLANG}-*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        command += ["--platform", "manylinux_2_34_x86_64", "--python-version", "3.11", "--implementation", "cp"]
        subprocess.run([*command, "-d", str(CACHE), f"sglang=={SGLANG}"], check=True)
        found = list(CACHE.glob(f"sglang-{SGLANG}-*.whl"))
    return zipfile.ZipFile(found[0])


def cut(wheel: zipfile.ZipFile, path: str, names: set[str], namespace: dict[str, Any]) -> dict[str, Any]:
    """Define the named functions, methods and constants of one source file in ``namespace``."""
    source = wheel.read(path).decode()
    tree = ast.parse(source)
    nodes = list(tree.body) + [m for c in tree.body if isinstance(c, ast.ClassDef) for m in c.body]
    found = set()
    for node in nodes:
        name = getattr(node, "name", None)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = target.id if isinstance(target, ast.Name) else None
        if name in names and name not in found:
            segment = ast.get_source_segment(source, node, padded=True)
            assert segment is not None
            exec(compile("from __future__ import annotations\n" + textwrap.dedent(segment), path, "exec"), namespace)
            found.add(name)
    assert found == names, f"{path} no longer defines {names - found}"
    return namespace


def constant(wheel: zipfile.ZipFile, path: str, attribute: str) -> Mapping[str, list[str]]:
    """A literal dict assigned to ``attribute`` anywhere in a source file."""
    for node in ast.walk(ast.parse(wheel.read(path).decode())):
        if isinstance(node, ast.Assign) and any(
            getattr(t, "id", getattr(t, "attr", None)) == attribute for t in node.targets
        ):
            value: Mapping[str, list[str]] = ast.literal_eval(node.value)
            return value
    raise AssertionError(f"{path} assigns no {attribute}")
