"""Findings about files, headers, the index, and parts that do not fit together."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from checkmaking import Made, edit_index, moe

import truecast
from examples.shaped import kimi_k3
from truecast.checkpoint.header import encode_header
from truecast.convert import Target, convert
from truecast.errors import InputError
from truecast.verify.check import check
from truecast.verify.check.files import header_finding
from truecast.verify.check.findings import Collector
from truecast.verify.check.rules import RULES

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
MODULE = "model.layers.1.mlp.experts.2.down_proj"


@pytest.fixture
def made(tmp_path):
    return moe(tmp_path / "m")


def found(report, rule):
    return [f for f in report.findings if f.id == rule]


def test_missing_shard(made):
    (made.write() / SECOND).unlink()
    report = check(made.folder)
    (finding,) = found(report, "shard-missing")
    assert finding.place.file == SECOND and not report.ok


def test_stray_shard(made):
    folder = made.write()
    (folder / "stray.safetensors").write_bytes(encode_header([], {"format": "pt"}))
    report = check(folder)
    assert report.totals == {"shard-stray": 1}
    assert report.findings[0].place.file == "stray.safetensors" and report.ok


@pytest.mark.parametrize("keep", [5, 40, 5000])
def test_truncated_shard(made, keep):
    path = made.write() / SECOND
    path.write_bytes(path.read_bytes()[:keep])
    (finding,) = found(check(made.folder), "shard-truncated")
    assert finding.place.file == SECOND


def test_patterns_for_a_shard_that_cannot_be_read_are_not_called_dead(tmp_path):
    kimi_k3.make(tmp_path / "src")
    convert(tmp_path / "src", tmp_path / "out", Target("nvfp4"))
    for path in sorted((tmp_path / "out").glob("*.safetensors"))[:-1]:
        path.write_bytes(path.read_bytes()[:5000])
    report = check(tmp_path / "out")
    assert "shard-truncated" in report.totals and "exclude-matches-nothing" not in report.totals


def test_invalid_header(made):
    path = made.write() / SECOND
    path.write_bytes(struct.pack("<Q", 8) + b"not json")
    (finding,) = found(check(made.folder), "header-invalid")
    assert finding.place.file == SECOND and finding.place.tensor is None


def test_invalid_header_entry_names_the_tensor(made):
    header = json.dumps({"t": {"dtype": "F5", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (made.write() / SECOND).write_bytes(struct.pack("<Q", len(header)) + header + b"\0")
    (finding,) = found(check(made.folder), "header-invalid")
    assert (finding.place.file, finding.place.tensor) == (SECOND, "t")


def test_duplicate_tensor(made):
    name = "model.layers.0.self_attn.q_proj.weight"
    made.shards[1][name] = made.shards[0][name]
    report = made.check()
    (finding,) = found(report, "tensor-duplicate")
    assert finding.place.tensor == name


def test_index_names_absent_tensor(made):
    edit_index(made.write(), lambda index: index["weight_map"].update(ghost=FIRST))
    report = check(made.folder)
    assert report.totals == {"index-names-absent-tensor": 1}
    assert report.findings[0].place.tensor == "ghost"


def test_index_lacks_tensor(made):
    edit_index(made.write(), lambda index: index["weight_map"].pop("lm_head.weight"))
    report = check(made.folder)
    assert report.totals == {"index-lacks-tensor": 1}
    assert (report.findings[0].place.tensor, report.findings[0].place.file) == ("lm_head.weight", SECOND)


def test_index_names_wrong_shard(made):
    edit_index(made.write(), lambda index: index["weight_map"].update({"lm_head.weight": FIRST}))
    report = check(made.folder)
    assert report.totals == {"index-wrong-shard": 1}
    assert report.findings[0].place.tensor == "lm_head.weight"


@pytest.mark.parametrize("metadata", [{"total_size": 0}, {}])
def test_wrong_total_size(made, metadata):
    edit_index(made.write(), lambda index: index.update(metadata=metadata))
    report = check(made.folder)
    assert report.totals == {"index-total-size": 1} and report.ok


def test_missing_format_metadata(made):
    made.metadata = {}
    report = made.check()
    assert report.totals == {"format-metadata": 2} and report.ok


def test_unaligned_offset(tmp_path):
    made = Made(tmp_path / "m", shards=[{}])
    path = made.folder / "model.safetensors"
    made.folder.mkdir()
    header = encode_header([("odd", "U8", (3,)), ("wide", "F32", (1,))], {"format": "pt"})
    path.write_bytes(header + bytes(7))
    report = check(path)
    assert report.totals == {"offset-unaligned": 1} and report.ok
    assert report.findings[0].place.tensor == "wide"


def test_pickle_beside_the_weights_is_not_opened(made):
    folder = made.write()
    (folder / "training_args.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    report = check(folder)
    assert report.totals == {"pickle-file": 1} and report.ok


def test_remote_code(made):
    made.config["auto_map"] = {"AutoModel": "modeling_tiny.TinyModel"}
    folder = made.write()
    (folder / "modeling_tiny.py").write_text("raise SystemExit\n")
    report = check(folder)
    assert report.totals == {"remote-code": 1} and report.ok
    assert "modeling_tiny.py" in report.findings[0].message


def test_columns_no_multiple_of_32(made):
    made.add("model.layers.0.mlp.extra.weight", "U8", np.ones((8, 24), np.uint8))
    assert found(made.check(), "columns-not-multiple")


def test_missing_scale(made):
    made.drop(r"layers\.1\.mlp\.experts\.2\.down_proj\.weight_scale$")
    made.drop(r"layers\.1\.mlp\.experts\.2\.down_proj\.weight_scale_2$")
    (finding,) = found(made.check(), "scale-missing")
    assert finding.place.tensor == MODULE + ".weight"


def test_orphan_scale(made):
    made.drop(r"layers\.1\.mlp\.experts\.2\.down_proj\.weight$")
    report = made.check()
    assert {f.place.tensor for f in found(report, "scale-orphan")} == {
        MODULE + ".weight_scale",
        MODULE + ".weight_scale_2",
    }


def test_scale_of_wrong_shape(made):
    made.add(MODULE + ".weight_scale", "F8_E4M3", np.full((8, 2), 0x40, np.uint8), 1)
    (finding,) = found(made.check(), "scale-shape")
    assert "[8, 2]" in finding.message and "[8, 4]" in finding.message


def test_global_scale_of_wrong_shape(made):
    made.add(MODULE + ".weight_scale_2", "F32", np.ones((8,), np.float32), 1)
    assert found(made.check(), "scale-shape")


def test_missing_global_scale(made):
    made.drop(r"layers\.1\.mlp\.experts\.2\.down_proj\.weight_scale_2$")
    (finding,) = found(made.check(), "global-scale-missing")
    assert finding.place.tensor == MODULE + ".weight"


def test_unknown_packing(made):
    made.add("model.layers.0.mlp.extra.qweight", "I32", np.ones((8, 24), np.int32))
    assert found(made.check(), "packed-unknown")


def test_matrix_stored_twice(made):
    made.packed(MODULE, "nvfp4-compressed-tensors", 1)
    assert found(made.check(), "matrix-duplicate")


def test_expert_missing(made):
    made.drop(r"layers\.1\.mlp\.experts\.1\.")
    report = made.check()
    assert report.totals == {"bank-incomplete": 1}
    assert "3 matrices" in report.findings[0].message and "1.down_proj" in report.findings[0].message


@pytest.mark.parametrize(
    ("number", "absent"), [("300000000", 3 * 300_000_001 - 10), ("3000000000", 0), ("9" * 5000, 0)]
)
def test_expert_numbers_without_end(made, number, absent):
    made.packed(f"model.layers.1.mlp.experts.{number}.down_proj", "nvfp4-modelopt", 1)
    messages = [f.message for f in made.check().findings if f.id == "bank-incomplete"]
    assert [m.split()[0] for m in messages] == ([str(absent)] if absent else [])
    assert not absent or (messages[0].count(",") == 19 and messages[0].endswith(f"and {absent - 20} more"))


def test_expert_left_plain(made):
    made.drop(r"layers\.1\.mlp\.experts\.1\.up_proj")
    made.plain("model.layers.1.mlp.experts.1.up_proj", shard=1)
    assert found(made.check(), "bank-incomplete")


def test_no_checkpoint_at_all_raises(tmp_path):
    with pytest.raises(InputError):
        check(tmp_path / "absent")
    with pytest.raises(InputError):
        check(tmp_path)


def test_folder_name_with_spaces(made, tmp_path):
    odd = tmp_path / "kept in here"
    shutil.move(made.write(), odd)
    edit_index(odd, lambda index: index["weight_map"].pop("lm_head.weight"))
    assert check(odd).findings[0].place.file == SECOND


def test_every_code_of_a_fault_is_a_rule():
    package = Path(truecast.__file__).parent
    files = [*(package / "checkpoint").glob("*.py"), *(package / "layouts").glob("*.py")]
    codes = {code for path in files for code in re.findall(r'(?:code=|_RAGGED = )"([a-z-]+)"', path.read_text())}
    assert {"shard-truncated", "columns-not-multiple"} < codes and codes <= RULES.keys()


@pytest.mark.parametrize(("code", "rule"), [("index-wrong-shard", "index-wrong-shard"), ("", "header-invalid")])
def test_the_code_of_a_fault_decides_not_its_words(code, rule):
    collector = Collector()
    header_finding(collector, "m", InputError("stands in b too", where="m/index.json", code=code, tensor="w"))
    (finding,) = collector.findings()
    assert (finding.id, finding.place.file, finding.place.tensor) == (rule, "index.json", "w")
