"""verify and the changed copy of modelling code: the source's bytes and the known addition, or a failure."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path

import pytest

from examples.shaped import kimi_k3
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert
from truecast.convert.a_log_rule import BLOCK, RULE
from truecast.convert.manifest import encode_manifest
from truecast.verify import verify
from truecast.verify.code import KNOWN, check_code
from truecast.verify.report import Failures
from truecast.verify.rules import CodeClaim

FILE = "modeling_kimi_linear.py"
FLIPS = 1000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("code")
    kimi_k3.make(folder / "src")
    (folder / "src" / "configuration_kimi_k3.py").write_text("SIZE = 1\n")
    convert(folder / "src", folder / "out", Target("nvfp4"))
    return folder / "src", folder / "out"


@pytest.fixture
def out(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair[1], tmp_path / "out"))


def sign(out: Path, **changes: object) -> None:
    """Make the manifest agree with the files as they are: what somebody would do who wants his change to pass."""
    manifest = json.loads((out / "truecast.json").read_bytes()) | changes
    for name, entry in manifest["files"].items():
        raw = (out / name).read_bytes()
        entry |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    for entry in manifest["code"]:
        entry["after"] = manifest["files"][entry["file"]]["sha256"]
    (out / "truecast.json").write_bytes(encode_manifest(manifest))


def kinds(src: Path, out: Path) -> list[tuple[str, str]]:
    return [(f.kind, f.file) for f in verify(src, out).failures.kept]


def test_the_sha256_that_verify_knows_is_that_of_the_rule() -> None:
    assert {RULE: hashlib.sha256(BLOCK.encode()).hexdigest()} == KNOWN


def test_source_plus_rule_passes(pair: tuple[Path, Path]) -> None:
    report = verify(*pair)
    assert report.ok and report.manifest_checked


def test_every_flipped_bit_is_found_even_under_a_manifest_that_agrees(pair: tuple[Path, Path], out: Path) -> None:
    rng = random.Random(0)
    raw = (out / FILE).read_bytes()
    source, target = open_checkpoint(pair[0]), open_checkpoint(out)
    for bit in rng.sample(range(len(raw) * 8), FLIPS):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        (out / FILE).write_bytes(damaged)
        claim = CodeClaim(
            RULE, hashlib.sha256((pair[0] / FILE).read_bytes()).hexdigest(), hashlib.sha256(damaged).hexdigest()
        )
        failures = Failures()
        check_code(source, target, {}, {FILE: claim}, failures)
        assert [f.kind for f in failures.kept] == ["code"], bit
    assert ("hash", FILE) in kinds(pair[0], out)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw + b"import os\n",
        lambda raw: raw[:-1],
        lambda raw: raw.replace(b"if not value.is_meta and", b"if False and"),
        lambda raw: b"\n" + raw,
        lambda raw: raw.replace(BLOCK.encode(), b""),
    ],
    ids=["more behind", "less", "rule altered", "more in front", "rule gone"],
)
def test_another_change_under_a_manifest_that_agrees(pair: tuple[Path, Path], out: Path, change) -> None:
    (out / FILE).write_bytes(change((out / FILE).read_bytes()))
    sign(out)
    assert kinds(pair[0], out) == [("code", FILE)]


def test_a_change_that_the_manifest_does_not_tell(pair: tuple[Path, Path], out: Path) -> None:
    (out / "configuration_kimi_k3.py").write_text("SIZE = 2\n")
    sign(out, code=[])
    assert kinds(pair[0], out) == [("code", "configuration_kimi_k3.py"), ("code", FILE)]


def test_claims_that_do_not_hold(pair: tuple[Path, Path], out: Path) -> None:
    (entry,) = json.loads((out / "truecast.json").read_bytes())["code"]
    for wrong in ({"rule": "other/1"}, {"before": "0" * 64}):
        sign(out, code=[entry | wrong])
        assert kinds(pair[0], out) == [("code", FILE)], wrong
    sign(out, code=[entry, entry | {"file": "config.json", "rule": "a_log/1"}])
    assert kinds(pair[0], out) == [("code", "config.json")]
    for damaged in ([entry, entry], [{}], [entry | {"rule": 1}], {"file": FILE}, 3):
        raw = json.loads((out / "truecast.json").read_bytes()) | {"code": damaged}
        (out / "truecast.json").write_bytes(encode_manifest(raw))
        assert ("manifest", "truecast.json") in kinds(pair[0], out), damaged
