"""A single flipped bit anywhere in the output: found, and named as closely as it can be."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from verify_checkpoints import SOURCES

from truecast.checkpoint.header import TensorInfo, read_header
from truecast.convert import Target, convert
from truecast.verify import verify
from truecast.verify.report import Failure

FLIPS_A_CASE = 120

CASES = [
    ("kimi_k3", ("nvfp4", "modelopt")),
    ("kimi_k3", ("nvfp4", "compressed-tensors")),
    ("gpt_oss", ("nvfp4", "modelopt")),
    ("gpt_oss", ("bf16", "bf16")),
    ("deepseek_v4", ("nvfp4", "modelopt")),
    ("deepseek_v4", ("mxfp4", "gpt-oss")),
]


@dataclass(frozen=True)
class Region:
    """A stretch of a file: a tensor, a header, or a whole small file."""

    path: Path
    start: int
    end: int
    tensor: TensorInfo | None


def regions(out: Path) -> list[Region]:
    found = []
    for path in sorted(p for p in out.rglob("*") if p.is_file() and ".truecast" not in p.parts):
        raw = path.read_bytes()
        if path.suffix != ".safetensors":
            found.append(Region(path, 0, len(raw), None))
            continue
        tensors, _ = read_header(lambda a, b, raw=raw: raw[a:b], path.name, len(raw))
        found.append(Region(path, 0, min(t.start for t in tensors.values()), None))
        found += [Region(path, t.start, t.end, t) for t in tensors.values()]
    return found


def flipped(src: Path, out: Path, region: Region, rng: random.Random) -> tuple[str, list[Failure]]:
    """Flip one bit of a region, verify, and put it back. Returns which bit, and the failures that name its file."""
    bit = rng.randrange(region.start * 8, region.end * 8)
    raw = region.path.read_bytes()
    damaged = bytearray(raw)
    damaged[bit // 8] ^= 1 << (bit % 8)
    region.path.write_bytes(damaged)
    report = verify(src, out)
    region.path.write_bytes(raw)
    place = f"bit {bit} of {region.path.name}"
    assert not report.ok, place
    named = [f for f in report.failures.kept if f.file == region.path.name]
    assert named, (place, report.failures.kept)
    return place, named


@pytest.mark.parametrize(("source", "target"), CASES, ids=[f"{s}-{'-'.join(t)}" for s, t in CASES])
def test_every_flipped_bit_is_found_and_named(source: str, target: tuple[str, str], tmp_path: Path) -> None:
    src, out = SOURCES[source](tmp_path / "src"), tmp_path / "out"
    convert(src, out, Target(*target), card=lambda m: "# card\n")
    rng = random.Random(f"{source}{target}")
    everywhere = regions(out)
    assert {r.path.name for r in everywhere} >= {"config.json", "truecast.json", "tokenizer.json", "README.md"}
    for number in range(FLIPS_A_CASE):
        region = everywhere[number % len(everywhere)]
        place, named = flipped(src, out, region, rng)
        if region.tensor is not None:
            assert any(f.tensor == region.tensor.name and f.row is not None for f in named), (place, named)
    assert verify(src, out).ok


def test_a_flipped_code_names_the_element(tmp_path: Path) -> None:
    src, out = SOURCES["gpt_oss"](tmp_path / "src"), tmp_path / "out"
    convert(src, out, Target("nvfp4", "modelopt"))
    (path,) = out.glob("*.safetensors")
    raw = path.read_bytes()
    tensors, _ = read_header(lambda a, b: raw[a:b], path.name, len(raw))
    stacked = tensors["model.layers.0.mlp.experts.gate_up_proj"]  # [E, H/2, 2I]: expert 2, inputs 10 and 11, output 7
    _, half_cols, rows = stacked.shape
    position = stacked.start + (2 * half_cols + 5) * rows + 7
    damaged = bytearray(raw)
    damaged[position] ^= 0x40
    path.write_bytes(damaged)
    report = verify(src, out)
    (value,) = (f for f in report.failures.kept if f.kind == "value")
    assert (value.tensor, value.row, value.column) == (stacked.name, 3, 11)  # row 3 of up_proj
