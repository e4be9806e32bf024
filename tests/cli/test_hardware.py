"""``plan --hardware``: the table that a user reads, and the same as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.shaped import kimi_k3
from truecast.cli import hardware_table
from truecast.cli.hardware import FORMS
from truecast.convert import Target, convert
from truecast.serve import GPUS

Cli = Callable[..., Any]

SHAPE = kimi_k3.K3Shape(layers=4, experts=8, latent=512, expert_width=512, hidden=256, heads=8, head_dim=128)


@pytest.fixture(scope="module")
def k3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hardware") / "k3"
    kimi_k3.make(out, shape=SHAPE)
    return out


def block(text: str, form: str) -> str:
    """The lines of one form, up to the next empty line."""
    return next(part for part in text.split("\n\n") if part.startswith(form))


def forms(document: Any) -> dict[tuple[str, str], Any]:
    return {(form["format"], form["dialect"]): form for form in document["forms"]}


@pytest.mark.parametrize("gpu", GPUS)
def test_all_targets_in_120_columns(gpu: str, k3: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(k3.parent)
    outcome = cli("plan", "k3", "--hardware", gpu)
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= hardware_table.WIDTH
    named = re.findall(r"^(mxfp4|nvfp4|w4afp8|fp8|bf16)(?!')\b ?([a-z-]*)", outcome.out, re.MULTILINE)
    assert named == [(f, "" if f == "bf16" else d) for f, d in FORMS]
    body, _, notes = outcome.out.partition("\nnotes\n")
    used = sorted(set(re.findall(r"\[(\d+)\]", body)), key=int)
    assert used == re.findall(r"^ +\[(\d+)\]", notes, re.MULTILINE), "each is explained"
    assert used == [str(i + 1) for i in range(len(used))]


def test_what_hopper_is_told(k3: Path, cli: Cli) -> None:
    text = cli("plan", k3, "--hardware", "gh200").out
    joined = " ".join(text.split())
    assert "experts compute situ" in text
    assert "GH200 96 GB HBM3, aarch64 host; weights may take 85%: 81.60 GB" in text
    assert "NVFP4 and MXFP4 on Marlin are W4A16: 4-bit in memory, BF16 arithmetic, no FP4 throughput" in joined
    assert (
        "On Hopper the original MXFP4 with FP8 activations has no weight error where each expert's scales fit" in joined
    )
    assert "computes SiLU where the model wants situ, silently" in text
    assert "have no sm_90a code" in text
    assert re.search(r"^mxfp4 compressed-tensors, as it is +0 ", text, re.MULTILINE)
    assert re.search(r"^    SGLang 0.5.20 +Marlin +BF16 +no fault known +\[1\]", block(text, "mxfp4"), re.MULTILINE)
    assert "with truecast's plug-in: stops (situ-w4afp8, w4afp8-config)" in block(text, "w4afp8 sglang")
    x86 = cli("plan", k3, "--hardware", "h200").out
    assert "sm_90a" not in x86
    mended = "      with truecast's plug-in: no fault known "
    assert f"{mended}(situ-nvfp4)\n" in block(x86, "nvfp4") and f"{mended}(situ-w4afp8, w4afp8-config)" in x86
    assert "refuses situ at the first forward pass; truecast's plug-in mends it (situ-nvfp4)" in x86
    assert "truecast's plug-in mends some of these faults (docs/sglang.md); with it" in " ".join(x86.split())
    (route, *_) = forms(cli("plan", k3, "--hardware", "h200", "--json").json)["nvfp4", "modelopt"]["routes"]
    assert (route["verdict"], route["verdict_with_plugin"]) == ("stops", "no fault known")
    assert route["faults"][0]["mended_by"] == "situ-nvfp4"


def test_what_blackwell_is_told(k3: Path, cli: Cli) -> None:
    text = cli("plan", k3, "--hardware", "b200").out
    assert "Marlin" not in text and "Hopper" not in text and "plug-in" not in text
    assert re.search(r"^    no kernel \[\d+\]$", block(text, "w4afp8 sglang"), re.MULTILINE)
    assert "no engine that was looked at has a kernel for this format on this GPU" in text
    assert re.search(r"SGLang 0.5.20 +FlashInfer TRT-LLM +MXFP8", block(text, "mxfp4"))


def test_bytes_are_those_that_convert_writes(k3: Path, tmp_path: Path, cli: Cli) -> None:
    found = forms(cli("plan", k3, "--hardware", "h200", "--json").json)
    for i, (target, dialect) in enumerate(FORMS):
        written = k3
        if target != "mxfp4":
            written = tmp_path / str(i)
            convert(k3, written, Target(target, dialect))
        index = json.loads((written / "model.safetensors.index.json").read_text())
        assert found[target, dialect]["bytes"] == index["metadata"]["total_size"], (target, dialect)
        assert found[target, dialect]["bytes_per_gpu"] == found[target, dialect]["bytes"], "one GPU holds all of it"


def test_legal_splits_by_hand(k3: Path, cli: Cli) -> None:
    """Experts 512 wide: 32 and 128, 16 and 64, 128 and 512, 256, 128, 1; 8 experts; attention of 8 heads of 128."""
    found = forms(cli("plan", k3, "--hardware", "h200", "--json").json)
    legal = {key: form["legal"] for key, form in found.items()}
    assert {key: (sizes["tp"], sizes["tp"] and sizes["unpadded"]) for key, sizes in legal.items()} == {
        ("mxfp4", "compressed-tensors"): ([1, 2, 4, 8, 16], [1, 2, 4]),
        ("nvfp4", "modelopt"): ([1, 2, 4, 8, 16, 32], [1, 2, 4, 8]),
        ("w4afp8", "sglang"): ([1, 2, 4], [1]),
        ("w4afp8", "compressed-tensors"): ([1, 2], [1, 2]),
        ("fp8", "deepseek"): ([1, 2, 4], [1, 2, 4]),
        ("bf16", "bf16"): ([2**i for i in range(8)], [2**i for i in range(8)]),
    }
    assert all(sizes["ep"] == sizes["dense"] == [1, 2, 4, 8] for sizes in legal.values())
    text = cli("plan", k3, "--hardware", "h200").out
    assert "    TP 1, at a cost 2 4; EP 1 2 4 8\n" in block(text, "w4afp8 sglang")
    assert "\nattention may be split over 1 2 4 8 GPUs\n" in text


def test_attention_is_told_by_form_where_forms_differ(tmp_path: Path, cli: Cli) -> None:
    """Eight heads of 64 are 512 rows: eight heads in BF16, four whole tiles in FP8."""
    kimi_k3.make(tmp_path / "k3", shape=replace(SHAPE, heads=8, head_dim=64))
    text = cli("plan", tmp_path / "k3", "--hardware", "h200").out
    assert "attention may be split" not in text
    assert "; attention over 1 2 4 8\n" in block(text, "mxfp4")
    assert "; attention over 1 2 4\n" in block(text, "w4afp8 sglang"), "512 rows are four tiles"


def test_the_sample_is_told(k3: Path, cli: Cli) -> None:
    document = cli("plan", k3, "--hardware", "h200", "--json").json
    error = forms(document)["w4afp8", "sglang"]["weight_error"]
    experts, attention = error["experts"], error["attention"]
    assert (experts["matrices"], experts["population"], experts["classes"]) == (32, 72, 3)
    assert 0.08 < experts["relative"] < 0.14 and 0 < experts["standard_error"] < 0.01
    assert 0.02 < attention["relative"] < 0.03 and attention["population"] == 3 * 5 + 2
    other = forms(document)["w4afp8", "compressed-tensors"]["weight_error"]
    assert other == {"kind": "sampled", "experts": experts, "attention": None}
    text = cli("plan", k3, "--hardware", "h200").out
    told = f"{experts['relative']:.2%} ±{100 * experts['standard_error']:.1g}% ({experts['sqnr_db']:.2f} dB)"
    assert told in block(text, "w4afp8 sglang") and told in block(text, "w4afp8 compressed-tensors")
    joined = " ".join(text.split())
    assert "w4afp8's error is measured: 32 of 72 matrices, 4.19 MB, drawn evenly over 3 classes" in joined
    assert "Attention in FP8 blocks beside it: 2.6" in joined


def test_scan_says_whether_the_others_are_exact(k3: Path, tmp_path: Path, cli: Cli) -> None:
    before = cli("plan", k3, "--hardware", "h200").out
    for form in ("nvfp4", "fp8", "bf16"):
        assert "  0 if exact (--scan)  " in block(before, form)
    scanned = cli("plan", k3, "--hardware", "h200", "--scan", "--jobs", 1)
    assert scanned.code == 0
    for form in ("nvfp4", "fp8", "bf16"):
        assert "  0, all scanned  " in block(scanned.out, form)

    wide = tmp_path / "k3"
    kimi_k3.make(wide, shape=SHAPE)
    name, shard = "language_model.model.layers.1.block_sparse_moe.experts.3.w2.weight_scale", None
    for path in wide.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        if name in header:
            shard, at = path, 8 + int.from_bytes(data[:8], "little") + header[name]["data_offsets"][0]
            data[at] = 1
            path.write_bytes(data)
    assert shard is not None
    found = cli("plan", wide, "--hardware", "h200", "--scan", "--jobs", 1)
    assert found.code == 0, "a comparison refuses nothing"
    assert "  NOT 0 in 1 of 72  " in block(found.out, "nvfp4")
    assert "  NOT 0 in 1 of 72  " in block(found.out, "fp8")
    assert "  0, all scanned  " in block(found.out, "bf16")


def test_one_target_alone(k3: Path, cli: Cli) -> None:
    def named(*options: str) -> list[tuple[str, str, bool]]:
        document = cli("plan", k3, "--hardware", "h200", "--json", *options).json
        return [(form["format"], form["dialect"], form["as_it_is"]) for form in document["forms"]]

    assert named("--to", "nvfp4") == [("nvfp4", "modelopt", False)]
    assert named("--to", "nvfp4", "--dialect", "compressed-tensors") == [("nvfp4", "compressed-tensors", False)]
    assert named("--to", "w4afp8") == [("w4afp8", "sglang", False), ("w4afp8", "compressed-tensors", False)]
    assert named("--to", "mxfp4") == [("mxfp4", "compressed-tensors", True)]
    assert named("--to", "mxfp4", "--dialect", "deepseek") == [("mxfp4", "deepseek", False)]
    amax = cli("plan", k3, "--hardware", "h200", "--to", "w4afp8", "--method", "amax", "--json").json
    best = cli("plan", k3, "--hardware", "h200", "--to", "w4afp8", "--json").json
    assert (
        amax["forms"][0]["weight_error"]["experts"]["relative"]
        > 1.2 * (best["forms"][0]["weight_error"]["experts"]["relative"])
    )


def test_what_the_source_does_not_allow_is_told_in_its_place(tiny: Path, cli: Cli) -> None:
    """Experts of 64 and 32 input channels: no groups of 128."""
    outcome = cli("plan", tiny, "--hardware", "h200")
    assert outcome.code == 0
    refused = " ".join(block(outcome.out, "w4afp8 sglang").split())
    assert "not possible: model.layers.0.mlp.experts.0.w1.weight_packed in model-00001-of-00003" in refused
    assert "which is no multiple of 128; convert to nvfp4 (blocks of 16), or fp8, which takes any width" in refused
    assert "  0 if exact (--scan)  " in block(outcome.out, "fp8")
    assert "experts compute an unnamed activation" in outcome.out
    document = cli("plan", tiny, "--hardware", "h200", "--json").json
    assert (document["family"], document["activation"]) == ("generic", None)
    assert "no multiple of 128" in forms(document)["w4afp8", "sglang"]["not_possible"]


def test_other_sources(k3: Path, tmp_path: Path, cli: Cli) -> None:
    convert(k3, tmp_path / "nvfp4", Target("nvfp4"))
    found = cli("plan", tmp_path / "nvfp4", "--hardware", "b200", "--json").json
    assert [(f["format"], f["as_it_is"], bool(f["not_possible"])) for f in found["forms"]] == [
        ("nvfp4", True, False), ("mxfp4", False, True), ("w4afp8", False, True), ("w4afp8", False, True),
        ("fp8", False, True), ("bf16", False, False),
    ]  # fmt: skip
    convert(k3, tmp_path / "w4afp8", Target("w4afp8"))
    found = cli("plan", tmp_path / "w4afp8", "--hardware", "h200", "--json").json
    own, other = (f for f in found["forms"] if f["format"] == "w4afp8")
    assert own["as_it_is"] and own["weight_error"] == {"kind": "none"}
    assert other["dialect"] == "compressed-tensors" and "FP8 modules" in other["not_possible"]
    convert(k3, tmp_path / "bf16-attention", Target("w4afp8", attention="bf16"))
    found = cli("plan", tmp_path / "bf16-attention", "--hardware", "h200", "--json").json
    own, other = (f for f in found["forms"] if f["format"] == "w4afp8")
    assert [f["format"] for f in found["forms"] if f["as_it_is"]] == ["w4afp8"]
    assert other["dialect"] == "compressed-tensors" and other["weight_error"] == {"kind": "if-exact"}


def test_fp8_attention_is_not_the_form_of_a_model(tmp_path: Path, cli: Cli) -> None:
    kimi_k3.make(tmp_path / "k3", shape=kimi_k3.K3Shape(experts=2, expert_width=128, heads=4))
    convert(tmp_path / "k3", tmp_path / "w4afp8", Target("w4afp8"))  # more elements are FP8 than INT4
    found = cli("plan", tmp_path / "w4afp8", "--hardware", "h200", "--json").json
    assert [(f["format"], f["dialect"]) for f in found["forms"] if f["as_it_is"]] == [("w4afp8", "sglang")]


def test_a_source_without_quantized_matrices(tmp_path: Path, write_checkpoint: Callable[..., Path], cli: Cli) -> None:
    folder = write_checkpoint(tmp_path / "plain", {"model.safetensors": {"x.weight": ("BF16", (2, 2), bytes(8))}})
    outcome = cli("plan", folder, "--hardware", "h200")
    assert outcome.code == 2 and "holds no quantized matrix: nothing to compare" in outcome.err


def test_json_is_what_the_table_shows(k3: Path, cli: Cli) -> None:
    outcome = cli("plan", k3, "--hardware", "H200", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    document = outcome.json
    assert document["schema"] == "truecast.plan/1"
    assert document["gpu"]["name"] == "h200" and document["gpu"]["memory"] == 141 * 10**9
    marlin = forms(document)["mxfp4", "compressed-tensors"]["routes"][0]
    assert (marlin["engine"], marlin["kernel"], marlin["activations"]) == ("SGLang 0.5.20", "Marlin", "BF16")
    assert marlin["faults"][0]["text"].startswith("4-bit in memory only (W4A16)")
    assert marlin["verdict"] == "no fault known"
    text = " ".join(cli("plan", k3, "--hardware", "h200").out.split())
    for form in document["forms"]:
        assert form["gpus"] == 1 and form["split"] == {"tp": 1, "ep": 1}
        for route in form["routes"]:
            assert all(fault["text"] in text for fault in route["faults"])
