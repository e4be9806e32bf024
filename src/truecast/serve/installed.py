"""An SGLang as it lies in a folder, installed or merely unpacked: read as files, never imported."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from urllib.parse import unquote, urlparse

from truecast.engines.sglang.fix import Sources
from truecast.errors import UsageError
from truecast.serve.server_flags import Flag, read_flags

MAX_SOURCE = 16 << 20
"""Bytes of a source or metadata file that are read at all; SGLang's longest has 0.5 MB."""
_PIN = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?\s*\(?==\s*([\w.+!-]+)\)?\s*")
_VERSION = re.compile(r"^(?:__version__ = )?version = '([^']+)'|^__version__ = [\"']([^\"']+)[\"']", re.M)
_VARIABLE = re.compile(rb"\bSGL(?:ANG)?_[A-Z0-9_]+\b")
_NOT_SERVER = {"__pycache__", "multimodal_gen", "test"}


@dataclass(frozen=True)
class Installation:
    """An SGLang in ``root``, the folder that holds ``sglang/``, and the distributions beside it.

    ``versions``: of each distribution, by its normalised name (``sglang-kernel``). ``pins``: what a distribution asks for
    with ``==`` whatever the platform, by name. ``plugins``: distributions with an entry point in the group
    ``sglang.srt.plugins``, and its value. ``sources``: source text by dotted module name; raises LookupError.
    ``problems``: what could not be read, for evidence. ``folders``: where packages beside sglang may lie.
    """

    root: Path
    versions: Mapping[str, str]
    sources: Sources
    pins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    plugins: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()

    @property
    def version(self) -> str | None:
        """SGLang's, None where nothing says it."""
        return self.versions.get("sglang")

    def path(self, *parts: str) -> Path | None:
        """A file or folder of a package that is installed here, None if it is not there."""
        for folder in self.folders or (self.root,):
            if _exists(path := folder.joinpath(*parts)):
                return path
        return None


def find_installation(site_packages: Path | None = None) -> Installation | None:
    """The SGLang in a folder of packages, or of the running environment where no folder is given.

    ``site_packages`` may also be the environment's own folder, or the ``sglang`` folder. An editable installation is
    followed to where its source lies. None if there is no SGLang.

    Raises: UsageError if the folder is none.
    """
    if site_packages is None:
        return _running()
    folder = Path(site_packages)
    if not folder.is_dir():
        raise UsageError("is no folder", where=str(folder), fix="name the site-packages folder that holds sglang")
    if folder.name == "sglang" and _exists(folder / "srt"):
        folder = folder.parent
    if not _exists(folder / "sglang" / "srt"):
        inner = sorted(p for p in folder.glob("lib/python3*/site-packages") if _exists(p))
        folder = inner[0] if inner else folder
    return _installation((folder,))


def _running() -> Installation | None:
    folders = tuple(Path(entry) for entry in sys.path if entry and Path(entry).is_dir())
    try:
        spec = importlib.util.find_spec("sglang")
    except (ImportError, ValueError):
        spec = None
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    return _installation((*(place.parent for place in places), *folders)) if places else None


def _installation(folders: tuple[Path, ...]) -> Installation | None:
    found = _Distributions()
    for folder in folders:
        found.read(folder)
    for root in (*folders, *found.editable):
        if _exists(root / "sglang" / "srt"):
            break
    else:
        return None
    if "sglang" not in found.versions and (version := _own_version(root)):
        found.versions["sglang"] = version
    everywhere = tuple(dict.fromkeys((root, *folders)))
    return Installation(
        root, found.versions, _sources(root), found.pins, found.plugins, tuple(found.problems), everywhere
    )


class _Distributions:
    """What the ``dist-info`` folders say; the first one of a name counts, as on Python's path."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.pins: dict[str, dict[str, str]] = {}
        self.plugins: dict[str, str] = {}
        self.problems: list[str] = []
        self.editable: list[Path] = []

    def read(self, folder: Path) -> None:
        try:
            infos = sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith(".dist-info"))
        except OSError as error:
            self.problems.append(f"{folder}: {error.strerror or error}")
            return
        for info in map(Path, infos):
            try:
                self._one(info)
            except LookupError as error:
                self.problems.append(str(error))

    def _one(self, info: Path) -> None:
        headers = read_text(info / "METADATA").replace("\r\n", "\n").partition("\n\n")[0].splitlines()
        told = [(k.strip().lower(), v.strip()) for k, colon, v in (h.partition(":") for h in headers) if colon]
        names = [v for k, v in told if k == "name"]
        versions = [v for k, v in told if k == "version"]
        if not names or not versions:
            raise LookupError(f"{info / 'METADATA'}: has no Name or no Version")
        name = normal_name(names[0])
        if name in self.versions:
            return
        self.versions[name] = versions[0]
        pins = (_PIN.fullmatch(v) for k, v in told if k == "requires-dist")
        self.pins[name] = {normal_name(pin[1]): pin[2] for pin in pins if pin}
        if _exists(info / "entry_points.txt") and (value := _plugin(read_text(info / "entry_points.txt"))):
            self.plugins[name] = value
        if name == "sglang" and _exists(info / "direct_url.json"):
            self.editable += _editable(read_text(info / "direct_url.json"))


def normal_name(name: str) -> str:
    """A distribution's name as packaging compares it: lower case, one hyphen for each run of ``-_.``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _plugin(text: str) -> str | None:
    group = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            group = line.strip("[] ")
        elif group == "sglang.srt.plugins" and "=" in line:
            return line.partition("=")[2].strip()
    return None


def _editable(text: str) -> list[Path]:
    """Source folders of an editable installation (PEP 610): the project's folder, and ``python/`` in it."""
    try:
        document = json.loads(text)
        if not document["dir_info"]["editable"]:
            return []
        folder = Path(unquote(urlparse(document["url"]).path))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return [folder, folder / "python"]


def _own_version(root: Path) -> str | None:
    for name in ("_version.py", "version.py"):
        try:
            found = _VERSION.search(read_text(root / "sglang" / name))
        except LookupError:
            continue
        if found:
            return found[1] or found[2]
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a loop of links, no right to look
        return False


def read_text(path: Path) -> str:
    """A text file of at most :data:`MAX_SOURCE` bytes. Raises: LookupError naming the file and why it cannot be read."""
    try:
        if not path.is_file():  # also a pipe or a device, that would not end
            raise LookupError(f"{path}: is no file")
        with path.open("rb") as file:
            data = file.read(MAX_SOURCE + 1)
        if len(data) > MAX_SOURCE:
            raise LookupError(f"{path}: longer than {MAX_SOURCE >> 20} MiB")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LookupError(f"{path}: is not UTF-8: {error.reason} at byte {error.start}") from None
    except (OSError, ValueError) as error:
        raise LookupError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _sources(root: Path) -> Sources:
    @cache
    def sources(module: str) -> str:
        return read_text(module_path(root, module))

    return sources


def module_path(root: Path, module: str) -> Path:
    """The file of a dotted module name. Raises: LookupError if there is none."""
    below = module.split(".")
    for path in (root.joinpath(*below[:-1], f"{below[-1]}.py"), root.joinpath(*below, "__init__.py")):
        if _exists(path):
            return path
    raise LookupError(f"there is no module {module} in {root}")


def flags(installation: Installation) -> Mapping[str, Flag]:
    """All server arguments, by every spelling. Raises: LookupError naming the file that cannot be read or parsed."""
    return _flags(installation.root)


@lru_cache(maxsize=8)
def _flags(root: Path) -> Mapping[str, Flag]:
    folder = root / "sglang" / "srt"
    paths = [folder / "server_args.py", folder / "arg_groups" / "choices.py"]
    fields = folder / "arg_groups" / "fields"
    paths = [path for path in paths if _exists(path)] + (sorted(fields.glob("*.py")) if _exists(fields) else [])
    texts = [read_text(path) for path in paths]
    try:
        found = read_flags(texts)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise LookupError(f"{folder}: the server arguments cannot be parsed: {error}") from None
    if "--model-path" not in found:
        raise LookupError(f"{folder}: declares no server arguments in a form that is known")
    return found


def variables(installation: Installation) -> frozenset[str]:
    """Environment variables ``SGLANG_*`` and ``SGL_*`` that this SGLang's Python mentions outside its image generation.

    A name that only stands in a comment counts: it is better to miss a typing error than to call a right name wrong.
    """
    return _variables(installation.root)


@lru_cache(maxsize=8)
def _variables(root: Path) -> frozenset[str]:
    names: set[bytes] = set()
    for path in _python_files(root / "sglang"):
        try:
            with path.open("rb") as file:
                names.update(_VARIABLE.findall(file.read(MAX_SOURCE)))
        except OSError:
            continue
    return frozenset(name.decode() for name in names)


def _python_files(top: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(top):  # follows no link, so there is no loop
        inner[:] = [name for name in inner if name not in _NOT_SERVER]
        for name in files:
            path = Path(folder, name)
            if name.endswith(".py") and path.is_file():
                yield path
