"""Each way in which an output can be wrong, and what is said about it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verify_checkpoints import U8, Tensors, deepseek_v4, gpt_oss, kimi_k3, poke, rewrite

from truecast.convert import Target, convert
from truecast.convert.manifest import encode_manifest
from truecast.errors import InputError, UsageError
from truecast.verify import Failure, Report, verify

EXPERT = "language_model.model.layers.1.block_sparse_moe.experts.0"
NORM = "language_model.model.norm.weight"
NVFP4 = Target("nvfp4", "modelopt")


@pytest.fixture
def k3(tmp_path: Path) -> tuple[Path, Path]:
    src = kimi_k3(tmp_path / "src")
    convert(src, tmp_path / "out", NVFP4)
    return src, tmp_path / "out"


def only(report: Report, kind: str) -> Failure:
    """The one failure of this kind; the bytes' hash is wrong as well, if a manifest is there."""
    found = [f for f in report.failures.kept if f.kind != "hash"]
    assert [f.kind for f in found] == [kind], report.failures.kept
    return found[0]


def f32(value: float) -> bytes:
    return np.float32(value).tobytes()


def forge(out: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and make its own hash, and those of the files, right again."""
    document = json.loads((out / "truecast.json").read_bytes())
    edit(document)
    for name, facts in document["files"].items():
        if (out / name).is_file():
            data = (out / name).read_bytes()
            facts.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    (out / "truecast.json").write_bytes(encode_manifest(document))


class TestTensors:
    def test_missing_plain_tensor(self, k3: tuple[Path, Path]) -> None:
        rewrite(k3[1], lambda t: t.pop(NORM, None))
        assert only(verify(*k3), "missing").tensor == NORM

    def test_missing_matrix(self, k3: tuple[Path, Path]) -> None:
        def edit(tensors: Tensors) -> None:
            for suffix in ("weight", "weight_scale", "weight_scale_2"):
                tensors.pop(f"{EXPERT}.w2.{suffix}", None)

        rewrite(k3[1], edit)
        assert only(verify(*k3), "missing").tensor == f"{EXPERT}.w2.weight_packed"

    def test_extra_tensor(self, k3: tuple[Path, Path]) -> None:
        def edit(tensors: Tensors) -> None:
            if NORM in tensors:
                tensors["lm_head.bias"] = tensors[NORM]

        rewrite(k3[1], edit)
        assert only(verify(*k3), "extra").tensor == "lm_head.bias"

    def test_extra_matrix(self, k3: tuple[Path, Path]) -> None:
        def edit(tensors: Tensors) -> None:
            for name in [n for n in tensors if ".0.w2." in n]:
                tensors[name.replace(".0.w2.", ".7.w2.")] = tensors[name]

        rewrite(k3[1], edit)
        report = verify(*k3)
        assert {f.kind for f in report.failures.kept} == {"extra"}
        assert report.failures.total == 3

    @pytest.mark.parametrize("change", [("F16", (48, 64)), ("BF16", (64, 48))])
    def test_dtype_or_shape_of_a_plain_tensor(self, k3: tuple[Path, Path], change: tuple[str, tuple[int, ...]]) -> None:
        name = "language_model.lm_head.weight"

        def edit(tensors: Tensors) -> None:
            if name in tensors:
                tensors[name] = (*change, tensors[name][2])

        rewrite(k3[1], edit)
        assert only(verify(*k3), "shape").tensor == name

    def test_shape_of_a_matrix(self, k3: tuple[Path, Path]) -> None:
        def edit(tensors: Tensors) -> None:
            for name, (dtype, shape, data) in list(tensors.items()):
                if name.startswith(f"{EXPERT}.w2.") and len(shape) == 2:
                    tensors[name] = dtype, (shape[0] // 2, shape[1] * 2), data

        rewrite(k3[1], edit)
        assert only(verify(*k3), "shape").tensor == f"{EXPERT}.w2.weight"

    def test_byte_of_a_plain_tensor(self, k3: tuple[Path, Path]) -> None:
        poke(k3[1], "language_model.lm_head.weight", 2 * (3 * 64 + 5) + 1, b"\xff")
        failure = only(verify(*k3), "bytes")
        assert (failure.row, failure.column) == (3, 5)

    def test_bias(self, tmp_path: Path) -> None:
        src = gpt_oss(tmp_path / "src")
        convert(src, tmp_path / "out", NVFP4)
        poke(tmp_path / "out", "model.layers.0.mlp.experts.gate_up_proj_bias", 2 * (64 + 9), b"\xff\xff")
        failure = only(verify(src, tmp_path / "out"), "bias")
        assert (failure.row, failure.column) == (1, 9)
        assert "bias 4 of model.layers.0.mlp.experts.1.up_proj" in failure.message

    def test_lost_and_invented_bias(self, tmp_path: Path) -> None:
        src = gpt_oss(tmp_path / "src")
        convert(src, tmp_path / "out", Target("nvfp4", "compressed-tensors"))
        name = "model.layers.0.mlp.experts.0.down_proj.bias"
        kept: Tensors = {}

        def remove(tensors: Tensors) -> None:
            kept[name] = tensors.pop(name)

        rewrite(tmp_path / "out", remove)
        assert only(verify(src, tmp_path / "out"), "missing").tensor.endswith("down_proj_bias")
        src = kimi_k3(tmp_path / "k3")
        convert(src, tmp_path / "k3out", NVFP4)

        def invent(tensors: Tensors) -> None:
            if f"{EXPERT}.w1.weight" in tensors:
                tensors[f"{EXPERT}.w1.bias"] = "BF16", (32,), b"\0" * 64

        rewrite(tmp_path / "k3out", invent)
        assert only(verify(src, tmp_path / "k3out"), "extra").tensor == f"{EXPERT}.w1.bias"


class TestValues:
    def test_code(self, k3: tuple[Path, Path]) -> None:
        src, out = k3
        rewrite(out, lambda t: None)
        packed = (out / "model-00001-of-00003.safetensors").read_bytes()
        poke(out, f"{EXPERT}.w1.weight", 32 * 4 + 3, bytes([packed[0] ^ 0xFF]))
        failure = only(verify(src, out), "value")
        assert failure.tensor == f"{EXPERT}.w1.weight" and failure.row == 4 and failure.column in (6, 7)

    def test_minus_zero_is_not_zero(self, tmp_path: Path) -> None:
        def edit(codes: U8, scales: U8) -> None:
            codes[0, 0] = 0x08  # -0, then 0

        src = kimi_k3(tmp_path / "src", edit=edit)
        convert(src, tmp_path / "out", NVFP4)
        poke(tmp_path / "out", f"{EXPERT}.w1.weight", 0, b"\x00")
        failure = only(verify(src, tmp_path / "out"), "value")
        assert (failure.row, failure.column) == (0, 0)
        assert "value is 0.0" in failure.message and "-0.0" in failure.message

    @pytest.mark.parametrize(("byte", "says"), [(0x7F, "nan"), (0x00, "0.0"), (0xB8, "-1.0"), (0xFF, "nan")])
    @pytest.mark.parametrize("manifest", [True, False])
    def test_illegal_block_scale(self, k3: tuple[Path, Path], byte: int, says: str, manifest: bool) -> None:
        if not manifest:
            (k3[1] / "truecast.json").unlink()
        poke(k3[1], f"{EXPERT}.w1.weight_scale", 4 * 31 + 3, bytes([byte]))  # over zeros: no value changes
        report = verify(*k3)
        (failure,) = (f for f in report.failures.kept if f.kind == "scale")
        assert (failure.tensor, failure.row, failure.column) == (f"{EXPERT}.w1.weight_scale", 31, 48)
        assert f"block scale is {says}" in failure.message

    def test_other_scale_over_zeros_is_named_where_the_manifest_prescribes_one(self, k3: tuple[Path, Path]) -> None:
        poke(k3[1], f"{EXPERT}.w1.weight_scale", 4 * 31 + 3, b"\x38")
        failure = only(verify(*k3), "scale")
        assert (failure.row, failure.column) == (31, 48)
        (k3[1] / "truecast.json").unlink()
        assert verify(*k3).ok

    @pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
    def test_illegal_global_scale(self, k3: tuple[Path, Path], value: float) -> None:
        for leaf in ("w1", "w3"):
            poke(k3[1], f"{EXPERT}.{leaf}.weight_scale_2", 0, f32(value))
        report = verify(*k3)
        found = [f for f in report.failures.kept if f.kind == "global_scale"]
        assert [f.tensor for f in found] == [f"{EXPERT}.{leaf}.weight_scale_2" for leaf in ("w1", "w3")]

    @pytest.mark.parametrize("value", [2.0**-20, 0.3])
    def test_other_global_scale(self, k3: tuple[Path, Path], value: float) -> None:
        (k3[1] / "truecast.json").unlink()
        for leaf in ("w1", "w3"):
            poke(k3[1], f"{EXPERT}.{leaf}.weight_scale_2", 0, f32(value))
        report = verify(*k3)
        assert {(f.kind, f.tensor) for f in report.failures.kept} == {
            ("value", f"{EXPERT}.{leaf}.weight_scale_2") for leaf in ("w1", "w3")
        }

    def test_twins(self, tmp_path: Path) -> None:
        def edit(codes: U8, scales: U8) -> None:
            codes[:] = 0

        src = kimi_k3(tmp_path / "src", edit=edit)
        convert(src, tmp_path / "out", NVFP4)
        (tmp_path / "out" / "truecast.json").unlink()
        poke(tmp_path / "out", f"{EXPERT}.w1.weight_scale_2", 0, f32(2.0**-3))  # over zeros: no value changes
        failure = only(verify(src, tmp_path / "out"), "twins")
        assert EXPERT in failure.tensor

    def test_global_scale_of_an_all_zero_matrix(self, tmp_path: Path) -> None:
        src = kimi_k3(tmp_path / "src")

        def zero(tensors: Tensors) -> None:
            for name, (dtype, shape, data) in list(tensors.items()):
                if name == f"{EXPERT}.w2.weight_packed":
                    tensors[name] = dtype, shape, bytes(len(data))
                if name == f"{EXPERT}.w2.weight_scale":
                    tensors[name] = dtype, shape, b"\xc8" * len(data)

        rewrite(src, zero)
        convert(src, tmp_path / "out", NVFP4)
        assert verify(src, tmp_path / "out").ok
        poke(tmp_path / "out", f"{EXPERT}.w2.weight_scale_2", 0, f32(2.0))
        assert only(verify(src, tmp_path / "out"), "global_scale").tensor == f"{EXPERT}.w2.weight_scale_2"

    def test_input_scale(self, tmp_path: Path) -> None:
        src = kimi_k3(tmp_path / "src")
        convert(src, tmp_path / "out", Target("nvfp4", "modelopt", activations=True))
        assert verify(src, tmp_path / "out").ok
        poke(tmp_path / "out", f"{EXPERT}.w1.input_scale", 0, f32(1.0000001))
        assert only(verify(src, tmp_path / "out"), "input_scale").tensor == f"{EXPERT}.w1.input_scale"

    def test_bf16_bit(self, tmp_path: Path) -> None:
        src = gpt_oss(tmp_path / "src")
        convert(src, tmp_path / "out", Target("bf16"))
        name = "model.layers.0.mlp.experts.gate_up_proj"  # [3, 64, 64]: expert 1, input 5, output 8
        poke(tmp_path / "out", name, 2 * ((64 + 5) * 64 + 8), b"\x01\x02")
        failure = only(verify(src, tmp_path / "out"), "value")
        assert (failure.tensor, failure.row, failure.column) == (name, 4, 5)
        assert "experts.1.gate_proj" in failure.message and "0x0201" in failure.message

    def test_relayout_keeps_bytes(self, tmp_path: Path) -> None:
        src = deepseek_v4(tmp_path / "src")
        convert(src, tmp_path / "out", Target("mxfp4", "compressed-tensors"))
        (tmp_path / "out" / "truecast.json").unlink()
        poke(tmp_path / "out", "layers.0.ffn.experts.0.w1.weight_scale", 2 * 31 + 1, b"\x07")  # over zeros
        failure = only(verify(src, tmp_path / "out"), "scale")
        assert (failure.row, failure.column) == (31, 32)

    def test_nvfp4_relayout_over_zeros(self, tmp_path: Path) -> None:
        src = kimi_k3(tmp_path / "src")
        convert(src, tmp_path / "mid", NVFP4)
        convert(tmp_path / "mid", tmp_path / "out", Target("nvfp4", "compressed-tensors"))
        poke(tmp_path / "out", f"{EXPERT}.w1.weight_scale", 4 * 31 + 3, b"\x38")
        assert only(verify(tmp_path / "mid", tmp_path / "out"), "scale").row == 31


def wide(codes: U8, scales: U8) -> None:
    """One block 23 binades below the largest (which is in the twin), with codes that cannot be shifted; one that can."""
    scales[:] = 120
    scales[3, 1], scales[5, 0] = 100, 105
    codes[3, 16:] = 0x75  # 3 and 6: halving three times is out of reach
    codes[3, 20] = 0x80  # 0 and -0
    codes[5, :16] = 0x66  # 4: can be halved


class TestInexact:
    @pytest.fixture
    def lossy(self, tmp_path: Path) -> tuple[Path, Path]:
        src = kimi_k3(tmp_path / "src", edit=wide)
        convert(src, tmp_path / "out", Target("nvfp4", "modelopt", allow_inexact=True))
        return src, tmp_path / "out"

    def test_listed_half_blocks_are_allowed(self, lossy: tuple[Path, Path]) -> None:
        report = verify(*lossy)
        assert report.failures.kept == []
        assert [(b.matrix, b.row, b.column) for b in report.inexact] == [
            (f"{EXPERT}.w1", 3, 32),
            (f"{EXPERT}.w1", 3, 48),
        ]
        assert report.counts.inexact_half_blocks == 2
        assert report.counts.renormalised_half_blocks == 2
        assert all(b.squared_error > 0 for b in report.inexact)

    def test_not_without_the_manifest(self, lossy: tuple[Path, Path]) -> None:
        (lossy[1] / "truecast.json").unlink()
        failure = only(verify(*lossy), "value")
        assert (failure.row, failure.column) == (3, 32) and "2 half blocks" in failure.message

    def test_not_if_unlisted(self, lossy: tuple[Path, Path]) -> None:
        forge(lossy[1], lambda m: m["inexact"].pop(1))
        failure = only(verify(*lossy), "value")
        assert (failure.row, failure.column) == (3, 48)

    def test_not_with_another_error(self, lossy: tuple[Path, Path]) -> None:
        forge(lossy[1], lambda m: m["inexact"][0].update(squared_error=m["inexact"][0]["squared_error"] * (1 + 1e-8)))
        failure = only(verify(*lossy), "inexact")
        assert (failure.row, failure.column) == (3, 32) and "squared error" in failure.message

    def test_not_if_the_target_forbids_it(self, lossy: tuple[Path, Path]) -> None:
        forge(lossy[1], lambda m: m["target"].update(inexact="error"))
        assert "manifest" in {f.kind for f in verify(*lossy).failures.kept}

    def test_not_if_it_is_exact(self, lossy: tuple[Path, Path]) -> None:
        forge(lossy[1], lambda m: m["inexact"].append({**m["inexact"][0], "row": 0, "column": 0}))
        failure = only(verify(*lossy), "inexact")
        assert (failure.row, failure.column) == (0, 0) and "but it is exact" in failure.message

    def test_exact_block_listed_where_nothing_else_is_suspect(self, k3: tuple[Path, Path]) -> None:
        entry = {"matrix": f"{EXPERT}.w3", "row": 2, "column": 16, "squared_error": 0.0}

        def edit(manifest: dict[str, Any]) -> None:
            manifest["target"]["inexact"] = "allow"
            manifest["inexact"].append(entry)

        forge(k3[1], edit)
        assert only(verify(*k3), "inexact").row == 2

    def test_not_of_an_unknown_matrix(self, lossy: tuple[Path, Path]) -> None:
        forge(lossy[1], lambda m: m["inexact"].append({**m["inexact"][0], "matrix": "nothing"}))
        assert "nothing" in only(verify(*lossy), "manifest").message

    def test_sign_of_zero_inside(self, lossy: tuple[Path, Path]) -> None:
        poke(lossy[1], f"{EXPERT}.w1.weight", 32 * 3 + 20, b"\x00")  # 0 and -0 become 0 and 0: the same error
        failure = only(verify(*lossy), "inexact")
        assert (failure.row, failure.column) == (3, 41)

    def test_rounded_bf16(self, tmp_path: Path) -> None:
        def edit(codes: U8, scales: U8) -> None:
            scales[0, 0], codes[0, 0] = 254, 0x76  # 4 and 6 times 2^127

        src = kimi_k3(tmp_path / "src", edit=edit)
        convert(src, tmp_path / "out", Target("bf16", allow_inexact=True))
        report = verify(src, tmp_path / "out")
        assert report.failures.kept == [] and report.counts.inexact_elements >= 2
        (tmp_path / "out" / "truecast.json").unlink()
        assert "rounded" in only(verify(src, tmp_path / "out"), "inexact").message

    def test_reciprocal_that_float32_cannot_hold(self, tmp_path: Path) -> None:
        src = kimi_k3(tmp_path / "src")
        convert(src, tmp_path / "mid", NVFP4)

        def edit(tensors: Tensors) -> None:
            for name in tensors:
                if name.endswith(".w2.weight_scale_2"):
                    tensors[name] = "F32", (), f32(0.3)

        rewrite(tmp_path / "mid", edit)
        convert(tmp_path / "mid", tmp_path / "out", Target("nvfp4", "compressed-tensors", allow_inexact=True))
        report = verify(tmp_path / "mid", tmp_path / "out")
        assert report.failures.kept == []
        assert report.counts.inexact_half_blocks == 2 * 32 * 64 // 16
        poke(tmp_path / "out", f"{EXPERT}.w2.weight_global_scale", 0, f32(3.3333335))
        assert {f.kind for f in verify(tmp_path / "mid", tmp_path / "out").failures.kept} >= {"value"}


class TestFiles:
    def test_extra_file(self, k3: tuple[Path, Path]) -> None:
        (k3[1] / "sub").mkdir()
        (k3[1] / "sub" / "evil.py").write_text("")
        (k3[1] / ".truecast" / "run2.json").write_text("")
        assert only(verify(*k3), "extra").file == "sub/evil.py"

    def test_missing_file(self, k3: tuple[Path, Path]) -> None:
        (k3[1] / "tokenizer.json").unlink()
        assert only(verify(*k3), "missing").file == "tokenizer.json"

    def test_size_of_a_file(self, k3: tuple[Path, Path]) -> None:
        with (k3[1] / "tokenizer.json").open("a") as file:
            file.write("\n")
        assert only(verify(*k3), "file").file == "tokenizer.json"

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
    def test_broken_small_file(self, k3: tuple[Path, Path], name: str) -> None:
        (k3[1] / name).write_text("{")
        report = verify(*k3)
        assert not report.ok and {f.file for f in report.failures.kept} == {name}
        assert report.counts.matrices == 6

    def test_broken_header(self, k3: tuple[Path, Path]) -> None:
        name = "model-00002-of-00003.safetensors"
        raw = bytearray((k3[1] / name).read_bytes())
        raw[8] = ord("[")
        (k3[1] / name).write_bytes(raw)
        report = verify(*k3)
        assert [f.kind for f in report.failures.kept if f.file == name] == ["header", "hash"]
        assert sum(f.kind == "missing" for f in report.failures.kept) == 1

    def test_truncated_shard(self, k3: tuple[Path, Path]) -> None:
        name = "model-00003-of-00003.safetensors"
        (k3[1] / name).write_bytes((k3[1] / name).read_bytes()[:-1])
        report = verify(*k3)
        assert any(f.kind == "header" and f.file == name and f.tensor for f in report.failures.kept)

    def test_missing_shard(self, k3: tuple[Path, Path]) -> None:
        (k3[1] / "model-00003-of-00003.safetensors").unlink()
        assert not verify(*k3).ok

    def test_metadata_of_a_header(self, k3: tuple[Path, Path]) -> None:
        path = k3[1] / "model-00001-of-00003.safetensors"
        path.write_bytes(path.read_bytes().replace(b'"format":"pt"', b'"format":"pu"'))
        (failure,) = verify(*k3).failures.kept
        assert failure.kind == "hash" and failure.file == path.name and "header" in failure.message

    def test_total_size(self, k3: tuple[Path, Path]) -> None:
        (k3[1] / "truecast.json").unlink()
        path = k3[1] / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["metadata"]["total_size"] += 1
        path.write_text(json.dumps(index))
        assert only(verify(*k3), "index").file == path.name

    def test_another_source_with_the_same_values(self, k3: tuple[Path, Path], tmp_path: Path) -> None:
        """That OUT holds what SRC holds stays true, whatever SRC the manifest names; it is noted."""
        shutil.copytree(k3[0], tmp_path / "other")
        (tmp_path / "other" / "config.json").write_text('{"model_type": "kimi_k3"}')
        result = verify(tmp_path / "other", k3[1])
        assert result.ok
        assert "another source" in result.notes[0]

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "truecast.manifest/1"}', "\ud800"])
    def test_no_manifest_at_all(self, k3: tuple[Path, Path], text: str) -> None:
        (k3[1] / "truecast.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        assert only(verify(*k3), "manifest").file == "truecast.json"

    def test_manifest_with_spaces(self, k3: tuple[Path, Path]) -> None:
        path = k3[1] / "truecast.json"
        path.write_bytes(path.read_bytes() + b"\n")
        assert "bytes are not" in only(verify(*k3), "manifest").message

    @pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../b", "a//b"])
    def test_manifest_that_leaves_the_folder(self, k3: tuple[Path, Path], name: str) -> None:
        forge(k3[1], lambda m: m["files"].update({name: {"bytes": 0, "sha256": ""}}))
        assert "no path inside" in only(verify(*k3), "manifest").message

    def test_manifest_that_counts_wrong(self, k3: tuple[Path, Path]) -> None:
        forge(k3[1], lambda m: m["blocks"].update(renormalised=1))
        assert "re-expressed" in only(verify(*k3), "manifest").message


class TestBadInput:
    def test_nan_scale_in_the_source(self, k3: tuple[Path, Path]) -> None:
        poke(k3[0], f"{EXPERT}.w1.weight_scale", 2 * 7 + 1, b"\xff")
        with pytest.raises(InputError, match="row 7, block 1"):
            verify(*k3)

    @pytest.mark.parametrize(("part", "data"), [("weight_scale", b"\x7f"), ("weight_scale_2", f32(0.0))])
    def test_faulty_nvfp4_source(self, k3: tuple[Path, Path], part: str, data: bytes) -> None:
        poke(k3[1], f"{EXPERT}.w1.{part}", 0, data)
        with pytest.raises(InputError, match=f"w1.{part} in model-00001"):
            verify(k3[1], k3[1])

    def test_nothing_there(self, k3: tuple[Path, Path], tmp_path: Path) -> None:
        with pytest.raises(InputError):
            verify(k3[0], tmp_path / "nothing")
        with pytest.raises(InputError):
            verify(tmp_path / "nothing", k3[1])

    def test_empty_output(self, k3: tuple[Path, Path], tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        assert not verify(k3[0], tmp_path / "empty").ok

    def test_certificate_inside_the_output(self, k3: tuple[Path, Path]) -> None:
        with pytest.raises(UsageError):
            verify(*k3, certificate=k3[1] / "mine.json")


def test_many_failures_are_counted_and_bounded(tmp_path: Path) -> None:
    src = kimi_k3(tmp_path / "src")
    convert(src, tmp_path / "out", NVFP4)

    def edit(tensors: Tensors) -> None:
        tensors |= {f"x{len(tensors)}.{i}": ("U8", (1,), b"\0") for i in range(600)}

    rewrite(tmp_path / "out", edit)
    report = verify(src, tmp_path / "out")
    assert report.failures.total == 1800 and len(report.failures.kept) == 1000
    assert len(json.loads(json.dumps(report.document()))["failures"]) == 1000
