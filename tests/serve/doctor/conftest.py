"""A machine's packages as files: a released SGLang's own sources, and metadata made for a test beside it."""

from __future__ import annotations

import fcntl
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from examples.shaped import kimi_k3
from tests.engines.conftest import CACHE, SGLANG_VERSIONS, wheel_file
from tests.engines.sglang.test_binary import entry, library
from truecast.checkpoint.source import open_checkpoint
from truecast.layouts import LAYOUTS
from truecast.serve.doctor.ground import Ground
from truecast.serve.installed import Installation, find_installation
from truecast.serve.stored_model import StoredModel, stored_model
from truecast.serve.topology import read_topology

PINS = {
    "0.5.17": {"torch": "2.11.0", "sglang-kernel": "0.4.5", "flashinfer-python": "0.6.15.post1"},
    "0.5.20": {"torch": "2.13.0", "sglang-kernel": "0.4.7", "flashinfer-python": "0.6.18"},
    "0.5.23": {"torch": "2.14.1", "sglang-kernel": "0.4.10", "flashinfer-python": "0.7.2"},
}
"""What each wheel's METADATA says; a test compares."""
KERNEL_PINS = {"0.4.7": "2.13.0", "0.4.10": "2.14.1"}
HOPPER = library([entry(90), entry(90, 0x108011)])
NO_90A = library([entry(90)])


def unpacked(version: str) -> Path:
    """A release's Python sources and metadata, unpacked once."""
    folder = CACHE / f"sglang-{version}-sources"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"sglang-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = CACHE / f"sglang-{version}-making-{os.getpid()}"
            with zipfile.ZipFile(wheel_file("sglang", version)) as wheel:
                for name in wheel.namelist():
                    top, _, rest = name.partition("/")
                    server = top == "sglang" and rest.endswith(".py") and not rest.startswith("multimodal_gen/")
                    if server or top.endswith(".dist-info"):
                        wheel.extract(name, making)
            making.rename(folder)
    return folder


@dataclass
class Site:
    """A made ``site-packages``. ``version`` is SGLang's; further distributions are added by name."""

    root: Path
    version: str

    def distribution(self, name: str, version: str, requires: tuple[str, ...] = (), plugin: str = "") -> Site:
        """Metadata of one distribution, in place of an earlier one of that name."""
        stem = name.replace("-", "_")
        for old in self.root.glob(f"{stem}-*.dist-info"):
            old.rename(old.with_suffix(".gone"))  # of links, the link
        info = self.root / f"{stem}-{version}.dist-info"
        info.mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {r}" for r in requires),
        ]
        (info / "METADATA").write_text("\n".join(lines) + "\n\nLong words about it: none\n")
        if plugin:
            (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{plugin}\n")
        return self

    def beside(self) -> Site:
        """torch, sglang-kernel and FlashInfer as this SGLang asks, built for Hopper."""
        pins = PINS[self.version]
        self.distribution("torch", f"{pins['torch']}+cu130")
        kernel = pins["sglang-kernel"]
        own = (f"torch=={KERNEL_PINS[kernel]}",) if kernel in KERNEL_PINS else ()
        self.distribution("sglang-kernel", kernel, own)
        self.distribution("flashinfer-python", pins["flashinfer-python"])
        return self.kernel(HOPPER)

    def kernel(self, data: bytes, *libraries: str) -> Site:
        """sgl_kernel with this library for Hopper, and further empty ones."""
        folder = self.root / "sgl_kernel"
        (folder / "sm90").mkdir(parents=True, exist_ok=True)
        (folder / "sm90" / "common_ops.abi3.so").write_bytes(data)
        for name in libraries:
            (folder / name).touch()
        return self

    def plugin(self) -> Site:
        """truecast, with its entry point."""
        return self.distribution("truecast", "0.1", plugin="truecast = truecast.engines.sglang.plugin:register")

    def file(self, name: str, text: str) -> Site:
        """A file by its path. Folders on the way that are links get copied first, as links to what they hold."""
        path = self.root / name
        for folder in reversed(path.relative_to(self.root).parents):
            self._own(self.root / folder)
        path.unlink(missing_ok=True)
        path.write_text(text)
        return self

    def _own(self, folder: Path) -> None:
        if folder.is_symlink():
            source = folder.resolve()
            folder.unlink()
            folder.mkdir()
            for other in source.iterdir():
                (folder / other.name).symlink_to(other)
        folder.mkdir(exist_ok=True)

    def edited(self, module: str, old: str, new: str) -> Site:
        """One module of this SGLang with a piece of its text changed; ``old`` must be there."""
        name = f"{module.replace('.', '/')}.py"
        text = (self.root / name).read_text()
        assert old in text, f"{name} does not hold {old!r}"
        return self.file(name, text.replace(old, new))

    def find(self) -> Installation:
        """As the doctor finds it."""
        found = find_installation(self.root)
        assert found is not None
        return found


MakeSite = Callable[..., Site]


@pytest.fixture(scope="session", params=SGLANG_VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each release that the doctor knows best."""
    found: str = request.param
    return found


@pytest.fixture
def make_site(tmp_path: Path) -> MakeSite:
    """A folder of packages with a released SGLang and nothing else."""

    def make(version: str = "0.5.20", *, metadata: bool = True) -> Site:
        root = tmp_path / f"site-{len(list(tmp_path.glob('site-*')))}"
        root.mkdir()
        source = unpacked(version)
        (root / "sglang").symlink_to(source / "sglang")
        if metadata:
            (root / f"sglang-{version}.dist-info").symlink_to(source / f"sglang-{version}.dist-info")
        return Site(root, version)

    return make


@pytest.fixture(scope="session")
def small_k3(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """Kimi-K3 in small, MXFP4 as released."""
    folder = tmp_path_factory.mktemp("small") / "Kimi-K3"
    kimi_k3.make(folder)
    return stored_model(open_checkpoint(folder))


def recast(model: StoredModel, layout: str, *, with_input_scale: bool = True, **block: Any) -> StoredModel:
    """The same model in another layout, as its headers and config.json would say."""
    made = LAYOUTS[layout]
    config = {**made.quantization_config(["lm_head"], False), **block}
    text = {k: v for k, v in model.text.items() if k != "quantization_config"}
    return replace(
        model,
        format=made.FORMAT,
        dialect=made.DIALECT,
        text=text,
        config={**model.config, "text_config": text, "quantization_config": config},
        with_input_scale=model.packed if with_input_scale else 0,
    )


def plain(model: StoredModel, config: Mapping[str, Any], architecture: str = "DSparkDraftModel") -> StoredModel:
    """A draft model in BF16 with this config.json."""
    return replace(
        model,
        location="draft",
        name="draft",
        family="unknown",
        architecture=architecture,
        format="bf16",
        dialect="bf16",
        config=config,
        text=config,
        remote_code=(),
        packed=0,
        with_input_scale=0,
    )


def ground(site: Site | None = None, topology: str | None = None, arguments: str | None = None, **given: Any) -> Ground:
    """``arguments`` as words: ``"--tp-size 32 --disable-radix-cache"``."""
    return Ground(
        installation=None if site is None else site.find(),
        topology=None if topology is None else read_topology(topology),
        arguments=None if arguments is None else read_words(arguments),
        **given,
    )


def read_words(text: str) -> dict[str, str]:
    """Main spellings only."""
    found: dict[str, str] = {}
    name = ""
    for word in text.split():
        if word.startswith("--"):
            name, found[word] = word, ""
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found
