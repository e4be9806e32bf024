"""Engines' own code as the judge: functions cut out of a released wheel's source, so that they run without a GPU."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SGLANG = "0.5.20"
SGLANG_VERSIONS = ("0.5.17", "0.5.20", "0.5.23")
CACHE = Path(__file__).parents[2] / ".engines"
X86 = "manylinux_2_34_x86_64"


@cache
def wheel_file(package: str, version: str, platform: str = X86) -> Path:
    """A released wheel, downloaded once without its dependencies."""
    pattern = f"{package.replace('-', '_')}-{version}-*{platform}*.whl"
    CACHE.mkdir(exist_ok=True)
    if not (found := sorted(CACHE.glob(pattern))):
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:  # several test processes may do this at once
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
            command += ["--platform", platform, "--python-version", "3.11", "--implementation", "cp"]
            subprocess.run([*command, "-d", folder, f"{package}=={version}"], check=True)
            for wheel in Path(folder).glob("*.whl"):
                wheel.replace(CACHE / wheel.name)
        found = sorted(CACHE.glob(pattern))
    return found[0]


@dataclass(frozen=True)
class Release:
    """One release of SGLang. ``sources`` is what a fix's ``faulty`` takes."""

    version: str
    wheel: zipfile.ZipFile
    changed: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(version: str) -> Release:
        return Release(version, _opened(str(wheel_file("sglang", version)), os.getpid()))

    def path(self, module: str) -> str:
        """The file of a dotted module name inside the wheel."""
        stem = module.replace(".", "/")
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if path in self.wheel.NameToInfo:
                return path
        raise LookupError(f"SGLang {self.version} has no module {module}")

    def sources(self, module: str) -> str:
        return self.changed[module] if module in self.changed else text(str(self.wheel.filename), self.path(module))

    def edited(self, module: str, old: str, new: str) -> Release:
        """The same release with one piece of source text changed; ``old`` must be there."""
        text = self.sources(module)
        assert old in text, f"{module} of SGLang {self.version} does not hold {old!r}"
        return replace(self, changed={**self.changed, module: text.replace(old, new)})

    def without(self, module: str) -> Release:
        """The same release with a module that is there but empty."""
        self.path(module)
        return replace(self, changed={**self.changed, module: ""})

    def cut(self, module: str, names: set[str], namespace: dict[str, Any]) -> dict[str, Any]:
        """:func:`cut` by dotted module name."""
        return cut(self.wheel, self.path(module), names, namespace)


@pytest.fixture(scope="session", params=SGLANG_VERSIONS)
def release(request: pytest.FixtureRequest) -> Release:
    """Each release that the plug-in is tested with."""
    return Release.of(request.param)


@pytest.fixture(scope="session")
def sglang_wheel() -> zipfile.ZipFile:
    return Release.of(SGLANG).wheel


@pytest.fixture
def hook_registry(release: Release, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The release's own ``HookRegistry``, importable under its own name. It needs nothing else of SGLang."""
    name = "sglang.srt.plugins.hook_registry"
    for parent in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        module = ModuleType(parent)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, parent, module)
    spec = importlib.util.spec_from_loader(name, loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(release.sources(name), release.path(name), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)
    yield module.HookRegistry
    module.HookRegistry.reset()


@cache
def _opened(wheel: str, process: int) -> zipfile.ZipFile:
    """A wheel, whose list of files takes a tenth of a second to read; a fork has to open it itself."""
    return zipfile.ZipFile(wheel)


@cache
def text(wheel: str, path: str) -> str:
    """A source file of a wheel, unpacked once a process."""
    return _opened(wheel, os.getpid()).read(path).decode()


@cache
def _definitions(wheel: str, path: str) -> dict[str, str]:
    """Functions, classes, methods and constants of one source file by name, the source of each."""
    source = text(wheel, path)
    lines = source.split("\n")
    tree = ast.parse(source)
    nodes = list(tree.body) + [m for c in tree.body if isinstance(c, ast.ClassDef) for m in c.body]
    found: dict[str, str] = {}
    for node in nodes:
        name = getattr(node, "name", None)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = target.id if isinstance(target, ast.Name) else None
        if name is not None and name not in found:
            found[name] = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    return found


def cut(wheel: zipfile.ZipFile, path: str, names: set[str], namespace: dict[str, Any]) -> dict[str, Any]:
    """Define the named functions, methods and constants of one source file in ``namespace``."""
    definitions = _definitions(str(wheel.filename), path)
    assert names <= definitions.keys(), f"{path} no longer defines {names - definitions.keys()}"
    for name, segment in definitions.items():  # in the file's order
        if name in names:
            exec(compile("from __future__ import annotations\n" + segment, path, "exec"), namespace)
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
