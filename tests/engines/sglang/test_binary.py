"""CUDA architectures of a library, on released wheels and on files made byte by byte."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.engines.conftest import wheel_file
from truecast.engines.sglang import binary
from truecast.engines.sglang.situation import Situation

MEMBER = "sgl_kernel/sm90/common_ops.abi3.so"
W4AFP8 = Situation(version="0.5.20", model="k3", quantization="w4afp8", capability=(9, 0))


def entry(architecture: int, flags: int = 0x8011, kind: int = 2, payload: bytes = b"\0" * 24) -> bytes:
    head = struct.pack("<HHIQIIIIIIQQQ", kind, 0x101, 64, len(payload), 0, 0, 0x10008, architecture, 0, 0, flags, 0, 0)
    return head + payload


def library(*containers: list[bytes], section: bytes = b".nv_fatbin") -> bytes:
    """An ELF with a section of fat binaries, 8 bytes between containers as a linker may leave."""
    code = b"\0" * 8
    for entries in containers:
        body = b"".join(entries)
        code += struct.pack("<IHHQ", binary.MAGIC, 1, 16, len(body)) + body + b"\0" * 8
    names = b"\0" + section + b"\0.shstrtab\0"
    table = 64 + len(code) + len(names)
    sections = [(0, 0, 0), (1, 64, len(code)), (2 + len(section), 64 + len(code), len(names))]
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + b"\0" * 24 + struct.pack("<Q", table)
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(sections), 2)
    return (
        head + code + names + b"".join(struct.pack("<IIQQQQIIQQ", n, 1, 0, 0, o, s, 0, 0, 8, 0) for n, o, s in sections)
    )


@pytest.fixture
def write(tmp_path: Path) -> object:
    def put(data: bytes) -> Path:
        path = tmp_path / "common_ops.abi3.so"
        path.write_bytes(data)
        return path

    return put


def test_the_released_aarch64_wheel_lacks_sm_90a(tmp_path: Path) -> None:
    wheel = zipfile.ZipFile(wheel_file("sglang-kernel", "0.4.7", "manylinux2014_aarch64"))
    path = Path(wheel.extract(MEMBER, tmp_path))
    assert binary.architectures(path) == {"sm_90", "sm_100", "sm_110a", "sm_120a", "sm_121a"}
    finding = binary.look(path, "0.5.20", "aarch64")
    assert finding.wrong and "MISSING" in finding.text and "-b v0.5.20" in finding.text
    assert "on aarch64" in finding.text and finding.text.endswith(f"over {path}")


def test_sm_90a_is_told_from_sm_90(write: object) -> None:
    both = library([entry(90), entry(90, 0x108011)], [entry(80)])
    path = write(both)  # type: ignore[operator]
    assert binary.architectures(path) == {"sm_80", "sm_90", "sm_90a"}
    assert not binary.look(path, "0.5.17").wrong
    path = write(library([entry(90)], [entry(100, 0x108011)]))  # type: ignore[operator]
    assert binary.architectures(path) == {"sm_90", "sm_100a"}
    assert binary.look(path, "0.5.17").wrong


def test_ptx_is_no_machine_code(write: object) -> None:
    assert binary.architectures(write(library([entry(90, 0x108011, kind=1)]))) == frozenset()  # type: ignore[operator]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        b"no library at all, and long enough to be read as one" * 4,
        library([entry(90)], section=b".something"),
        library([entry(90)])[:-40],
        library([entry(90)[:20]]),
        library([b"\0" * 64]),
    ],
    ids=["empty", "short", "text", "no section", "cut off", "half an entry", "zeros"],
)
def test_what_is_no_cuda_library(write: object, data: bytes) -> None:
    path = write(data)  # type: ignore[operator]
    with pytest.raises(ValueError):
        binary.architectures(path)
    finding = binary.look(path, "0.5.17")
    assert finding.wrong and "cannot be read" in finding.text and str(path) in finding.text


def test_a_section_without_end_is_given_up(write: object, monkeypatch: pytest.MonkeyPatch) -> None:
    far = write(library([entry(90)], [entry(90, 0x108011)]))  # type: ignore[operator]
    assert "sm_90a" in binary.architectures(far)
    monkeypatch.setattr(binary, "GAP", 4)
    with pytest.raises(ValueError, match="no containers"):
        binary.architectures(far)
    monkeypatch.undo()
    monkeypatch.setattr(binary, "MOST", 8)
    for containers in ([[entry(90)] * 9], [[]] * 9):
        path = write(library(*containers))  # type: ignore[operator]
        with pytest.raises(ValueError, match="has no end"):
            binary.architectures(path)


def test_only_a_quantized_model_on_hopper_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sm90").mkdir()
    (tmp_path / "sm90" / "common_ops.abi3.so").write_bytes(library([entry(90)]))
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(binary.importlib.util, "find_spec", lambda name: spec)
    finding = binary.kernels(W4AFP8)
    assert finding is not None and finding.wrong
    assert binary.kernels(Situation(version="0.5.20", model="m", capability=(9, 0))) is None
    assert binary.kernels(Situation(version="0.5.20", model="m", quantization="w4afp8", capability=(10, 0))) is None
    monkeypatch.setattr(binary.importlib.util, "find_spec", lambda name: None)
    assert binary.kernels(W4AFP8) is None
