"""Broken and hostile packages: the doctor ends in findings, never in an error, and runs none of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serve.doctor.cases import EP, MLA, SPEC, statuses
from tests.serve.doctor.conftest import MakeSite, Site, ground, plain, recast
from truecast.errors import InputError
from truecast.serve.doctor.doctor import doctor
from truecast.serve.doctor.finding import Check, Status, passed
from truecast.serve.doctor.ground import Ground
from truecast.serve.stored_model import StoredModel

WORDS = f"{EP} {MLA} {SPEC} --dcp-size 8 --unheard 1"
READ = (
    "sglang/srt/server_args.py",
    "sglang/srt/arg_groups/choices.py",
    "sglang/srt/layers/quantization/w4afp8.py",
    "sglang/srt/layers/quantization/modelopt_quant.py",
    "sglang/srt/layers/moe/moe_runner/marlin.py",
    "sglang/srt/models/kimi_k3.py",
    "flashinfer/mla/_core.py",
)


def _every(site: Site, text: str | bytes) -> None:
    for name in READ:
        path = site.root / name
        site.file(name, "")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def _links(site: Site) -> None:
    for name in READ:
        path = site.root / name
        site.file(name, "")
        path.unlink()
        path.symlink_to(path)


def _pipes(site: Site) -> None:
    for name in READ:
        path = site.root / name
        site.file(name, "")
        path.unlink()
        os.mkfifo(path)


def _metadata(data: bytes) -> Callable[[Site], None]:
    def breaks(site: Site) -> None:
        for info in site.root.glob("*.dist-info"):
            if info.is_symlink():
                info.unlink()
                info.mkdir()
            (info / "METADATA").write_bytes(data)
            (info / "entry_points.txt").write_bytes(data)

    return breaks


def _folders(site: Site) -> None:
    for info in site.root.glob("*.dist-info"):
        info.unlink() if info.is_symlink() else info.rename(info.with_suffix(".gone"))
    (site.root / "sgl_kernel" / "sm90" / "common_ops.abi3.so").unlink()
    (site.root / "sgl_kernel" / "sm90" / "common_ops.abi3.so").mkdir()
    (site.root / "torch-1.dist-info").symlink_to(site.root / "torch-1.dist-info")
    (site.root / "triton-1.dist-info" / "METADATA").mkdir(parents=True)


BREAKS: dict[str, Callable[[Site], None]] = {
    "syntax": lambda site: _every(site, "def broken(:\n"),
    "null bytes": lambda site: _every(site, b"x = 1\0\n"),
    "no UTF-8": lambda site: _every(site, b"# caf\xe9\n"),
    "deep": lambda site: _every(site, "x = " + "(" * 5000 + ")" * 5000),
    "long line": lambda site: _every(site, "x = " + "-" * 200_000 + "1"),
    "empty": lambda site: _every(site, ""),
    "links in a circle": _links,
    "pipes": _pipes,
    "metadata of no text": _metadata(b"\xff\xfe\0\0Name: sglang"),
    "metadata without a name": _metadata(b"Version: 1\n\n"),
    "metadata of nothing": _metadata(b""),
    "folders for files": _folders,
    "a kernel cut off": lambda site: site.kernel(b"\x7fELF\x02\x01") and None,
    "a kernel of zeros": lambda site: site.kernel(b"\0" * 4096) and None,
}


@pytest.mark.parametrize("breaks", BREAKS.values(), ids=list(BREAKS))
def test_broken_packages_end_in_findings(
    make_site: MakeSite, small_k3: StoredModel, breaks: Callable[[Site], None]
) -> None:
    site = make_site().beside().plugin()
    breaks(site)
    draft = plain(small_k3, {})
    environment = {"K3_W4_SRC2DST": "count"}
    for layout, topology in (("w4afp8-sglang", "gh200:8x4"), ("nvfp4-modelopt", "b200:2x8")):
        model = recast(small_k3, layout)
        report = doctor(ground(site, topology, WORDS, model=model, draft=draft, environment=environment))
        assert all(f.evidence for f in report.findings)
        assert all(f.remedy for f in report.findings if f.status in (Status.FAIL, Status.WARN, Status.UNKNOWN))


def test_code_of_the_packages_is_read_and_never_run(make_site: MakeSite, small_k3: StoredModel, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    evil = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    site = make_site().beside().plugin()
    for name in READ:
        site.file(name, f"{evil}\n")
    module = "sglang.srt.layers.quantization.modelopt_quant"
    site.file(
        f"{module.replace('.', '/')}.py",
        "_SUPPORTED_ACT_STRS = ('silu',)\nclass ModelOptNvFp4FusedMoEMethod:\n    def apply(self, activation):\n"
        f"        assert {evil} or activation in _SUPPORTED_ACT_STRS\n",
    )
    site.file("sglang/__init__.py", f"{evil}\n")
    site.file("sgl_kernel/__init__.py", f"{evil}\n")
    loaded = set(sys.modules)
    for topology in ("gh200:8x4", "b200:2x8"):
        told = statuses(ground(site, topology, EP, model=recast(small_k3, "nvfp4-modelopt")))
    assert not mark.exists() and not {m for m in set(sys.modules) - loaded if m.startswith(("sglang", "sgl_kernel"))}
    assert told["fault.situ-nvfp4"] in ("UNKNOWN", "SKIP", "FAIL")


@pytest.mark.parametrize("error", [LookupError("no x"), SyntaxError("bad"), RecursionError(), InputError("cut off")])
def test_what_a_broken_file_brings_a_check_to_is_unknown(error: Exception) -> None:
    def run(ground: Ground) -> object:
        raise error

    report = doctor(Ground(), [Check("a.b", "t", run, ("s",)), Check("c.d", "t", lambda g: passed("fine"), ("s",))])  # type: ignore[arg-type]
    assert [f.status for f in report.findings] == ["UNKNOWN", "PASS"] and report.ok
    assert report.findings[0].evidence.startswith("cannot be told") and report.findings[0].remedy


def test_nothing_given_is_nothing_wrong() -> None:
    report = doctor(Ground())
    assert report.ok and {f.status for f in report.findings} <= {Status.SKIP, Status.PASS}
