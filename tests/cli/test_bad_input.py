"""Bad input through the command line: exit code, a message with place and remedy, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
SHARD = "model-00002-of-00003.safetensors"
MATRIX = "model.layers.1.mlp.experts.0.w1"
CODES, SCALES = f"{MATRIX}.weight_packed", f"{MATRIX}.weight_scale"
HEADERS_TELL = ("inspect", "plan", "convert")
CONTENTS_TELL = ("plan --scan", "convert")


class Refused:
    """Run verbs on a source and hold what they say against what they should."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli, self.out = cli, folder / "never"

    def __call__(self, source: object, *message: str, verbs: tuple[str, ...] = HEADERS_TELL, code: int = 2) -> None:
        for verb in verbs:
            for mode in ((), ("--json",)):
                outcome = self.cli(*self._arguments(verb, source), *mode)
                name = verb.split()[0]
                assert outcome.code == code, (verb, outcome)
                assert outcome.err.count("\n") == 1 and outcome.err.startswith(f"truecast {name}: ")
                for part in message:
                    assert part in outcome.err, verb
                if mode:
                    text = outcome.err.removeprefix(f"truecast {name}: ").rstrip("\n")
                    assert outcome.json == {"schema": f"truecast.{name}/1", "error": text, "exit_code": code}
                else:
                    assert outcome.out == ""
                assert not self.out.exists()

    def _arguments(self, verb: str, source: object) -> list[object]:
        if verb == "inspect":
            return ["inspect", source]
        if verb == "convert":
            return ["convert", source, self.out, "--to", "nvfp4", "--jobs", 1]
        return [*verb.split(), source, "--to", "nvfp4", "--jobs", 1]


@pytest.fixture
def refused(cli: Cli, tmp_path: Path) -> Refused:
    return Refused(cli, tmp_path)


@pytest.fixture
def make(tmp_path: Path, write_checkpoint: Callable[..., Path], tiny_shards: Callable[[], Any]) -> Callable[..., Path]:
    """The tiny checkpoint with tensors of its second shard replaced (None: left out)."""

    def build(config: Any = None, **replaced: Any) -> Path:
        shards = tiny_shards()
        for name, tensor in replaced.items():
            shards[SHARD][name] = tensor
            if tensor is None:
                del shards[SHARD][name]
        return write_checkpoint(tmp_path / "bad", shards, config)

    return build


@pytest.mark.parametrize("zero_codes", [False, True])
def test_nan_scale(make: Any, refused: Refused, zero_codes: bool) -> None:
    scales = bytes([120] * 5 + [255] + [120] * 2)
    changed = {SCALES: ("U8", (4, 2), scales)}
    if zero_codes:
        changed[CODES] = ("U8", (4, 32), bytes(128))
    refused(
        make(**changed),
        f"{SCALES} in {SHARD}: {MATRIX}: block scale is NaN (byte 255) at row 2, block 1",
        "; download the shard again, or ask whoever made it",
        verbs=CONTENTS_TELL,
    )


def test_two_nan_scales_are_counted(make: Any, refused: Refused) -> None:
    changed = {SCALES: ("U8", (4, 2), bytes([120, 255] * 4))}
    refused(make(**changed), "at row 0, block 1, and in 3 more blocks", verbs=CONTENTS_TELL)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {CODES: ("U8", (4, 8), bytes(32)), SCALES: ("U8", (4, 1), bytes(4))},
            f"{CODES} in {SHARD}: its last dimension holds 16 elements, which is no multiple of 32",
        ),
        ({SCALES: None}, f"{CODES} in {SHARD}: U8 [4, 32] looks packed, but its scales are missing"),
        ({CODES: None}, f"{SCALES} in {SHARD}: U8 [4, 2] is a scale, but the tensor that it scales is missing"),
        ({SCALES: ("F32", (4, 2), bytes(32))}, "with w1.weight_scale F32 [4, 2] fits no layout; MXFP4 wants scales U8 ["),
        ({SCALES: ("U8", (2, 4), bytes(8))}, "with w1.weight_scale U8 [2, 4] fits no layout; MXFP4 wants scales U8 [4, 2]"),
        ({CODES: ("I32", (4, 8), bytes(128))}, "I32 [4, 8] with w1.weight_scale U8 [4, 2] is packed in words"),
        (
            {CODES: ("U8", (0, 32), b""), SCALES: ("U8", (0, 2), b"")},
            f"{CODES} in {SHARD}: U8 [0, 32] holds no element",
        ),
        (
            {"model.mlp.experts.gate_up_proj_blocks": ("U8", (1, 2, 1, 16), bytes(32))},
            "U8 [1, 2, 1, 16] looks packed, but its scales are missing",
        ),
        ({"odd\x1b[31mname": ("BF16", (1,), bytes(2))}, "the tensor name 'odd\\x1b[31mname' holds control characters"),
    ],
)  # fmt: skip
def test_no_layout_fits(make: Any, refused: Refused, changed: dict[str, Any], message: str) -> None:
    refused(make(**changed), message, SHARD)


def test_exactness_would_be_lost(make: Any, cli: Cli, refused: Refused, tmp_path: Path) -> None:
    codes = bytes([0x71] * 128)  # 0.5 and 6 in every half block: no room to shift them
    scales = bytes([100, 160] * 4)
    source = make(**{CODES: ("U8", (4, 32), codes), SCALES: ("U8", (4, 2), scales)})
    refused(
        source,
        f"{CODES} in {SHARD}: ",
        "half blocks cannot be exact in nvfp4-modelopt",
        "; add --inexact allow to take the nearest values, which are then listed",
        verbs=("convert",),
        code=3,
    )
    scanned = cli("plan", source, "--to", "nvfp4", "--scan", "--jobs", 1)
    assert scanned.code == 3
    assert f"in {MATRIX}" in scanned.out
    assert "exact?    NO: " in scanned.out
    document = cli("plan", source, "--to", "nvfp4", "--scan", "--jobs", 1, "--json")
    assert document.code == 3
    assert document.json["scan"]["exact"] is False
    assert set(document.json["scan"]["inexact_matrices"]) == {MATRIX, MATRIX.replace("w1", "w3")}
    assert cli("plan", source, "--to", "nvfp4", "--scan", "--jobs", 1, "--inexact", "allow").code == 0
    allowed = cli("convert", source, tmp_path / "allowed", "--to", "nvfp4", "--inexact", "allow", "--jobs", 1, "--json")
    assert allowed.code == 0
    assert len(allowed.json["manifest"]["inexact"]) == document.json["scan"]["inexact_half_blocks"]


def test_elements_that_cannot_be_exact_are_counted(make: Any, cli: Cli) -> None:
    scales = bytes([10, 160] * 4)
    source = make(**{CODES: ("U8", (4, 32), bytes([0x71] * 128)), SCALES: ("U8", (4, 2), scales)})
    document = cli("plan", source, "--to", "fp8", "--scan", "--jobs", 1, "--json").json
    (count,) = document["scan"]["inexact_matrices"].values()
    scanned = cli("plan", source, "--to", "fp8", "--scan", "--jobs", 1)
    assert scanned.code == 3 and count > 0
    assert scanned.out.splitlines()[-2:] == [
        f"exact?    NO: {count} elements in 1 matrix:",
        f"          {count} in {MATRIX}",
    ]
    exact = cli("plan", source, "--to", "bf16", "--scan", "--jobs", 1)
    assert exact.out.splitlines()[-1] == "exact?    yes, all 5,120 elements"


def test_truncated_shard(tiny: Path, refused: Refused) -> None:
    path = tiny / SHARD
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    refused(tiny, f"{tiny}/{SHARD}", f"but the file has {len(data) - 1}: truncated; download the file again")
    (length,) = struct.unpack("<Q", data[:8])
    path.write_bytes(data[: 8 + length - 1])
    refused(tiny, f"{tiny}/{SHARD}: header length {length} lies beyond the file's {7 + length} bytes")
    path.write_bytes(b"")
    refused(tiny, f"{tiny}/{SHARD}: 0 bytes are too few for a safetensors file; download it again")
    path.write_bytes(data + b"\0")
    refused(tiny, f"{tiny}/{SHARD}: 1 bytes after the last tensor belong to none")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[1]     ", "the header does not start with '{'"),
        (b"{\"a\":   ", "the header is not valid: "),
        (b'{"a":1}', "a in {}: header entry lacks dtype, shape or data_offsets"),
        (b'{"a":{"dtype":"Q9","shape":[],"data_offsets":[0,0]}}', "a in {}: unknown dtype 'Q9'"),
        (b'{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,-1]}}', "are no lists of natural numbers"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}}', "need 1 bytes, offsets give 2"),
        (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}', "duplicate name 'a'"),
        (b'{"__metadata__":{"format":1}}', "__metadata__ is not a map from string to string"),
        (b"{" + b'"a":{' * 9000 + b"}" * 9001, "the header is not valid: "),
        (b'{"\xff":1}', "the header is not valid: "),
        (b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', "the header is not valid: "),
    ],
)  # fmt: skip
def test_lying_header(tiny: Path, refused: Refused, header: bytes, message: str) -> None:
    (tiny / SHARD).write_bytes(struct.pack("<Q", len(header)) + header)
    refused(tiny, f"{tiny}/{SHARD}", message.replace("{}", f"{tiny}/{SHARD}"))


def test_header_larger_than_the_format_allows(tiny: Path, refused: Refused) -> None:
    (tiny / SHARD).write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    refused(tiny, f"{tiny}/{SHARD}: header length {1 << 60} exceeds the format's limit of 100000000")


def _edit_index(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))


def test_index_names_a_missing_file(tiny: Path, refused: Refused) -> None:
    (tiny / SHARD).unlink()
    refused(
        tiny,
        f"{tiny}/{SHARD}: model.safetensors.index.json names this shard, but it is missing; finish the download",
    )


def test_index_and_headers_disagree(tiny: Path, refused: Refused) -> None:
    _edit_index(tiny, lambda index: index["weight_map"].update({"ghost": SHARD}))
    refused(tiny, f"names ghost in {SHARD}, whose header does not have it; download both again")
    _edit_index(tiny, lambda index: index["weight_map"].pop("ghost"))
    _edit_index(tiny, lambda index: index["weight_map"].pop(CODES))
    refused(tiny, f"{CODES} in {tiny}/{SHARD}: its shard has it, the index does not; download ")
    _edit_index(tiny, lambda index: index["weight_map"].update({CODES: "model-00001-of-00003.safetensors"}))
    refused(tiny, f"names {CODES} in model-00001-of-00003.safetensors, but it lies in {SHARD}")


@pytest.mark.parametrize("target", ["../x.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "config.json", 7])
def test_index_leaves_the_folder(tiny: Path, refused: Refused, target: object) -> None:
    _edit_index(tiny, lambda index: index["weight_map"].update({CODES: target}))
    refused(tiny, f"weight_map sends {CODES} to {target!r}, which is no shard of this folder; do not trust this")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 3}', "\ud800"])
def test_broken_index(tiny: Path, refused: Refused, text: str) -> None:
    (tiny / "model.safetensors.index.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(tiny, f"{tiny}/model.safetensors.index.json: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no valid JSON: "),
        ("[]", "is no JSON object"),
        ('{"quantization_config": "mxfp4"}', "quantization_config is no JSON object; "),
        ('{"text_config": {"quantization_config": [1]}}', "quantization_config is no JSON object; "),
        ('{"model_type": ["toy"]}', "model_type is no JSON string; "),
        ('{"text_config": {"model_type": {}}}', "model_type is no JSON string; "),
    ],
)
def test_broken_config(tiny: Path, refused: Refused, text: str, message: str) -> None:
    (tiny / "config.json").write_text(text)
    refused(tiny, f"{tiny}/config.json: {message}")


def test_folders_that_are_no_checkpoint(tiny: Path, tmp_path: Path, refused: Refused) -> None:
    refused(tmp_path / "absent", f"{tmp_path}/absent: no such file or folder")
    refused(tmp_path / ("n" * 300), ": cannot open: File name too long")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", f"{tmp_path}/empty: holds no .safetensors file")
    refused(tiny / "config.json", f"{tiny}/config.json: is neither a folder nor a .safetensors file")
    (tiny / "extra.safetensors").write_bytes(b"")
    refused(tiny, "lies in the folder, but model.safetensors.index.json does not name it; move it away")
    (tiny / "model.safetensors.index.json").unlink()
    refused(tiny, f"{tiny}: 4 shards but no index; download model.safetensors.index.json too")
    refused("nonsense://host/model", "nonsense://host/model: cannot open this URL: ")


def test_links_that_lead_nowhere(tiny: Path, tmp_path: Path, refused: Refused) -> None:
    content = (tiny / SHARD).read_bytes()
    (tiny / SHARD).unlink()
    (tiny / SHARD).symlink_to(tmp_path / "nowhere")
    refused(tiny, f"{tiny}/{SHARD}: cannot open: No such file or directory")
    (tiny / SHARD).unlink()
    (tiny / SHARD).symlink_to(tiny / "chat")
    refused(tiny, f"{tiny}/{SHARD}: is no regular file; download it again")
    (tiny / SHARD).unlink()
    (tiny / SHARD).write_bytes(content)
    (tiny / "tokenizer.json").symlink_to(tmp_path / "nowhere")
    refused(tiny, f"{tiny}/tokenizer.json: dangling symlink; finish the download")


def test_same_tensor_in_two_shards(
    tmp_path: Path, write_checkpoint: Callable[..., Path], tiny_shards: Callable[[], Any], refused: Refused
) -> None:
    shards = tiny_shards()
    shards["model-00003-of-00003.safetensors"][CODES] = shards[SHARD][CODES]
    folder = write_checkpoint(tmp_path / "twice", shards)
    refused(folder, f"{CODES} in {folder}/model-00003-of-00003.safetensors: stands in {SHARD} too; remove the stale")


def test_a_matrix_larger_than_memory(tiny: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("truecast.cli.plan.scan", no_room)
    refused(tiny, "not enough memory for a matrix of this checkpoint; run with fewer", verbs=("plan --scan",), code=3)


def test_nothing_to_cast(tmp_path: Path, write_checkpoint: Callable[..., Path], refused: Refused) -> None:
    shards = {"model.safetensors": {"lm_head.weight": ("BF16", (8, 8), bytes(128))}}
    folder = write_checkpoint(tmp_path / "plain", shards, index=False)
    refused(folder, f"{folder}: holds no quantized matrix: nothing to cast", verbs=("plan", "convert"))


def test_already_there(tiny: Path, tmp_path: Path, cli: Cli, refused: Refused) -> None:
    done = tmp_path / "done"
    assert cli("convert", tiny, done, "--to", "nvfp4", "--jobs", 1).code == 0
    refused(done, f"{done}: is nvfp4-modelopt already: nothing to do", verbs=("plan", "convert"))


def test_name_with_bytes_that_are_no_utf8(tiny: Path, tmp_path: Path, cli: Cli) -> None:
    """Such names exist; they must neither stop a run nor break the JSON."""
    odd = os.fsdecode(bytes(tmp_path) + b"/odd\xff[bold]:smile:")
    tiny.rename(odd)
    inspected = cli("inspect", odd, "--json")
    assert inspected.code == 0
    assert inspected.json["source"] == odd
    out = odd + "-out"
    converted = cli("convert", odd, out, "--to", "nvfp4", "--jobs", 1)
    assert converted.code == 0
    assert "odd\\udcff[bold]:smile:-out: nvfp4-modelopt" in converted.out
    assert "odd\\udcff" in cli("inspect", odd + "-not").err


def test_name_that_looks_like_markup(
    tmp_path: Path, write_checkpoint: Callable[..., Path], tiny_shards: Callable[[], Any], cli: Cli
) -> None:
    shards = tiny_shards()
    shards[SHARD]["a[/b] :smile: [red]c"] = ("BF16", (1,), bytes(2))
    folder = write_checkpoint(tmp_path / "named", shards)
    for arguments in (("inspect", folder), ("plan", folder, "--to", "nvfp4")):
        outcome = cli(*arguments)
        assert outcome.code == 0
        assert "\na[/b] :smile: [red]c  " in outcome.out


def test_an_allocation_that_pytorch_is_refused(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from truecast.audit import calibrate

    monkeypatch.setattr(calibrate, "calibrate", lambda *_, **__: torch.empty(1 << 55, dtype=torch.uint8))
    outcome = cli("calibrate", tmp_path, "--corpus", tmp_path / "c", "--out", tmp_path / "o")
    assert (outcome.code, outcome.out) == (3, "")
    assert "not enough memory" in outcome.err


def test_another_runtime_error_is_not_taken_for_want_of_memory(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from truecast.audit import calibrate

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(calibrate, "calibrate", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        cli("calibrate", tmp_path, "--corpus", tmp_path / "c", "--out", tmp_path / "o")
