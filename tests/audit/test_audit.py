"""The audit against a plain computation of the whole model, in parts, stopped, and where nothing differs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.audit.toy import LAYERS, ToyModel, toy_documents, write_corpus, write_toy
from truecast.audit import audit as audits
from truecast.audit.audit import audit_models
from truecast.audit.memory import Fit
from truecast.audit.options import Options
from truecast.audit.positions import load_positions
from truecast.errors import InputError, RefusedError

LENGTHS = [9, 30, 2, 17, 30, 5]
CHANGED = {"model.layers.2.experts.0.w1.weight": 0.05, "lm_head.weight": 0.01}
OPTIONS = Options(device="cpu", dtype=torch.float64, seeds=(0, 1, 2))


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Reference, candidate and corpus."""
    ref = write_toy(tmp_path / "ref")
    return (
        ref,
        write_toy(tmp_path / "cand", changed=CHANGED),
        write_corpus(tmp_path / "docs.jsonl", ref, toy_documents(LENGTHS)),
    )


def run(sides: tuple[Path, Path, Path], out: Path | None, options: Options = OPTIONS, **more: Any) -> dict[str, Any]:
    dtype = options.dtype or torch.float32
    return audit_models(ToyModel(sides[0], dtype), ToyModel(sides[1], dtype), sides[2], out, options, **more)


def naive(sides: tuple[Path, Path, Path]) -> dict[str, np.ndarray]:
    ref, cand = ToyModel(sides[0]), ToyModel(sides[1])
    found: dict[str, list[float]] = {"kl": [], "reverse_kl": [], "nll_ref": [], "nll_cand": [], "ref_margin": []}
    found |= {"ref_top_prob": [], "same_top": [], "doc": [], "pos": []}
    for index, document in enumerate(toy_documents(LENGTHS)):
        tokens: Any = document["tokens"]
        p, q = ref.document(tokens), cand.document(tokens)
        for position in range(int(str(document["scored_from"])), len(tokens) - 1):
            a, b, label = p[position], q[position], tokens[position + 1]
            top = a.sort(descending=True).values
            values = {
                "kl": (a.exp() * (a - b)).sum(),
                "reverse_kl": (b.exp() * (b - a)).sum(),
                "nll_ref": -a[label],
                "nll_cand": -b[label],
                "ref_margin": top[0] - top[1],
                "ref_top_prob": top[0].exp(),
                "same_top": a.argmax() == b.argmax(),
                "doc": torch.tensor(index),
                "pos": torch.tensor(position),
            }
            for name, value in values.items():
                found[name].append(value.item())
    return {name: np.array(values) for name, values in found.items()}


def test_every_figure_is_that_of_the_whole_model(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    document = run(sides, tmp_path / "out")
    expected = naive(sides)
    positions = load_positions(tmp_path / "out" / "positions")
    for name, values in expected.items():
        tolerance = 1e-6 if name in ("ref_margin", "ref_top_prob") else 1e-9  # the two are kept as float32
        np.testing.assert_allclose(getattr(positions, name), values, atol=tolerance, rtol=tolerance, err_msg=name)
    assert document["kl"]["mean"] == pytest.approx(expected["kl"].mean(), rel=1e-9)
    assert expected["kl"].mean() > 1e-5
    assert not expected["same_top"].all()  # or the flags would show nothing
    assert document["identical"] is False
    assert json.loads((tmp_path / "out" / "audit.json").read_text()) == document


def test_each_layer_says_where_the_error_begins(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    document = run(sides, tmp_path / "out")
    layers = document["layers"]
    assert [entry["layer"] for entry in layers] == list(range(LAYERS))
    assert [entry["equal"] for entry in layers] == [True, True, False, False, False]
    assert layers[1]["relative_error"] == 0 < layers[2]["relative_error"]
    assert layers[2]["max_error"] >= layers[2]["relative_error"]
    assert json.loads((tmp_path / "out" / "layers.json").read_text()) == layers
    # one multiplicative noise of 2^-9 is what the first layer has seen
    assert layers[0]["floor_error"] == pytest.approx(2**-9, rel=0.2)


def test_each_byte_is_read_once(sides: tuple[Path, Path, Path]) -> None:
    ref, cand = ToyModel(sides[0], torch.float64), ToyModel(sides[1], torch.float64)
    document = audit_models(ref, cand, sides[2], None, replace(OPTIONS, force=True))
    assert ref.loaded == cand.loaded == list(range(LAYERS))
    total = sum(model.checkpoint.total_bytes for model in (ref, cand))
    assert document["read"] == {"bytes": total, "checkpoint_bytes": total, "compared_bytes": 0}


def test_the_floor_is_the_same_however_it_is_tiled_and_seeds_differ(sides: tuple[Path, Path, Path]) -> None:
    document = run(sides, None)
    means = [seed["mean"] for seed in document["floor"]["seeds"]]
    assert len(set(means)) == 3
    assert all(1e-8 < mean < 1e-3 for mean in means)


@pytest.mark.parametrize("tile", [1, 40, 10_000])
def test_tiles_change_nothing_but_roundings(
    sides: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tile: int
) -> None:
    run(sides, tmp_path / "whole")
    monkeypatch.setattr(audits, "fit", lambda *_: Fit(tile, False, 0, 3, 5))
    run(sides, tmp_path / "tiles")
    whole, tiles = (load_positions(tmp_path / name / "positions") for name in ("whole", "tiles"))
    np.testing.assert_allclose(tiles.kl, whole.kl, rtol=1e-9, atol=1e-13)
    np.testing.assert_array_equal(tiles.doc, whole.doc)
    np.testing.assert_allclose(
        *(np.load(tmp_path / n / "positions" / "floor-1.npy") for n in ("whole", "tiles")), atol=1e-12
    )


def test_states_on_disk_give_the_same_bits_as_states_in_memory(
    sides: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kept in (("memory", 1 << 30), ("disk", 0), ("both", 9000)):
        monkeypatch.setattr(audits, "fit", lambda *_, kept=kept: Fit(40, True, kept, 7, 16))
        run(sides, tmp_path / name)
    arrays = {
        n: {p.name: p.read_bytes() for p in (tmp_path / n / "positions").iterdir()} for n in ("memory", "disk", "both")
    }
    assert arrays["memory"] == arrays["disk"] == arrays["both"]
    assert len(arrays["disk"]) == 12


def test_too_little_memory_is_refused_with_a_number_that_works(sides: tuple[Path, Path, Path]) -> None:
    with pytest.raises(RefusedError, match="smallest that works is") as caught:
        run(sides, None, replace(OPTIONS, memory=1_000_000))
    least = int(caught.value.fix.split()[-1].removesuffix("MB")) * 10**6
    assert run(sides, None, replace(OPTIONS, memory=least + (32 << 20)))["kl"]["mean"] > 0


def test_a_killed_audit_goes_on_and_ends_the_same(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    run(sides, tmp_path / "whole")
    script = (
        "import os, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from tests.audit.test_audit import OPTIONS, run\n"
        "calls = []\n"
        "def kill(stage, done, total):\n"
        "    calls.append(stage)\n"
        "    if calls.count('layers') == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run(tuple(map(Path, sys.argv[1:4])), Path(sys.argv[4]), progress=kill)\n"
    )
    root = Path(__file__).parents[2]
    arguments = [*map(str, sides), str(tmp_path / "killed")]
    environment = {**os.environ, "PYTHONPATH": f"{root}/src:{root}"}
    done = subprocess.run([sys.executable, "-c", script, *arguments], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "killed" / ".audit").glob("step-*.json"))) == 4
    stages: list[int] = []
    resumed = run(sides, tmp_path / "killed", progress=lambda stage, done, total: stages.append(stage == "layers"))
    assert sum(stages) == 1 + LAYERS - 3  # three of five layers stood
    for path in (tmp_path / "whole" / "positions").iterdir():
        assert path.read_bytes() == (tmp_path / "killed" / "positions" / path.name).read_bytes()
    whole = json.loads((tmp_path / "whole" / "audit.json").read_text())
    assert whole["read"]["compared_bytes"] > 0
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}


@pytest.mark.parametrize("step", [1, 3, 99])
@pytest.mark.parametrize("side", [0, 1])
def test_a_side_that_changes_while_it_is_read_is_told(
    sides: tuple[Path, Path, Path], tmp_path: Path, side: int, step: int
) -> None:
    """Neither the run nor one that goes on from it may mix two sets of weights."""
    shard, calls = sides[side] / "model.safetensors", []

    def change(stage: str, done: int, total: int) -> None:
        calls.append(stage)
        if calls.count("layers") == step or (step == 99 and stage == "logits"):
            os.utime(shard, ns=(1, 1))

    with pytest.raises(RefusedError, match=r"model\.safetensors: changed while it was read"):
        run(sides, tmp_path / "out", progress=change)
    with pytest.raises(RefusedError, match=r"different (candidate|reference)"):
        run(sides, tmp_path / "out")


def test_a_side_that_changes_while_weights_are_compared(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    def change(stage: str, done: int, total: int) -> None:
        os.utime(sides[0] / "model.safetensors", ns=(1, 1))

    with pytest.raises(RefusedError, match="changed while it was read"):
        run((sides[0], sides[0], sides[2]), tmp_path / "out", progress=change)


@pytest.mark.parametrize("finished", [True, False])
def test_records_of_nobody_knows_which_audit(sides: tuple[Path, Path, Path], tmp_path: Path, finished: bool) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    if finished:
        run(sides, tmp_path / "out")
    else:
        with pytest.raises(KeyboardInterrupt):
            run(sides, tmp_path / "out", progress=stop)
    (tmp_path / "out" / ".audit" / "journal.json").unlink()
    with pytest.raises(RefusedError, match=r"journal\.json: is damaged"):
        run((sides[1], sides[0], sides[2]), tmp_path / "out")


def test_a_finished_audit_is_not_run_again(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    first = run(sides, tmp_path / "out")
    model = ToyModel(sides[0], torch.float64)
    assert audit_models(model, ToyModel(sides[1], torch.float64), sides[2], tmp_path / "out", OPTIONS) == first
    assert model.loaded == []
    assert not list((tmp_path / "out" / ".audit").glob("*.rows"))


def test_a_run_that_goes_on_keeps_its_tiles(
    sides: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        raise Stop

    monkeypatch.setattr(audits, "fit", lambda *_: Fit(40, True, 0, 7, 16))
    run(sides, tmp_path / "whole")
    for name in ("more", "less"):
        with pytest.raises(Stop):
            run(sides, tmp_path / name, progress=stop)
    monkeypatch.setattr(audits, "fit", lambda *_: Fit(1000, True, 0, 7, 16))
    run(sides, tmp_path / "more")
    kl = [(tmp_path / name / "positions" / "kl.npy").read_bytes() for name in ("whole", "more")]
    assert kl[0] == kl[1]
    monkeypatch.setattr(audits, "fit", lambda *_: Fit(31, True, 0, 7, 16))
    with pytest.raises(RefusedError, match="begun with tiles of 40 tokens"):
        run(sides, tmp_path / "less")


def test_an_edited_record_is_not_believed(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(sides, tmp_path / "out", progress=stop)
    record = tmp_path / "out" / ".audit" / "step-00000.json"
    record.write_text(record.read_text().replace("reference.layer0", "reference.layer9"))
    with pytest.raises(RefusedError, match=r"step-00000\.json: is damaged"):
        run(sides, tmp_path / "out")
    (tmp_path / "out" / ".audit" / "journal.json").write_text("{}")
    with pytest.raises(RefusedError, match=r"journal\.json: is damaged"):
        run(sides, tmp_path / "out")


@pytest.mark.parametrize("harm", ["other bytes", "longer", "gone", "link"])
def test_states_that_are_not_as_they_were_left(sides: tuple[Path, Path, Path], tmp_path: Path, harm: str) -> None:
    """A copy of a folder at work, an edit, a disk that lost a file."""
    calls = []

    def stop(stage: str, done: int, total: int) -> None:
        calls.append(stage)
        if calls.count("layers") == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(sides, tmp_path / "out", progress=stop)
    state = sorted((tmp_path / "out" / ".audit" / "states").glob("reference.block*"))[0]
    whole = state.read_bytes()
    match harm:
        case "other bytes":
            state.write_bytes(whole[::-1])
        case "longer":
            state.write_bytes(whole + whole)
        case "gone":
            state.unlink()
        case "link":
            state.rename(tmp_path / "elsewhere")
            state.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedError, match="is not as the audit left it"):
        run(sides, tmp_path / "out")


def test_another_audit_or_another_ones_folder_is_not_touched(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    run(sides, tmp_path / "out")
    with pytest.raises(RefusedError, match="different activations") as caught:
        run(sides, tmp_path / "out", replace(OPTIONS, activations="fp8-token"))
    assert caught.value.exit_code == 3
    with pytest.raises(RefusedError, match="different candidate"):
        run((sides[0], sides[0], sides[2]), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="no audit wrote it") as caught_too:
        run(sides, tmp_path / "mine")
    assert caught_too.value.exit_code == 2


def test_equal_weights_take_the_short_way(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    copy = write_toy(tmp_path / "copy")
    document = run((sides[0], copy, sides[2]), tmp_path / "out")
    assert document["identical"] is True
    assert document["kl"]["mean"] == 0
    assert not (tmp_path / "out" / "positions").exists()


def test_equal_weights_computed_on_both_sides_differ_by_nothing(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    options = replace(OPTIONS, force=True, dtype=torch.float32)
    document = run((sides[0], write_toy(tmp_path / "copy"), sides[2]), tmp_path / "out", options)
    positions = load_positions(tmp_path / "out" / "positions")
    assert not positions.kl.any()
    assert not positions.reverse_kl.any()
    assert positions.same_top.all()
    assert document["identical"] is False
    assert not any(layer["equal"] for layer in document["layers"])  # none was taken over from the other side


def test_emulated_activations_change_the_candidate_alone(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    same = (sides[0], write_toy(tmp_path / "copy"), sides[2])
    plain = run(same, tmp_path / "plain", replace(OPTIONS, force=True))
    for kind in ("fp8-token", "mxfp8", "nvfp4"):
        rounded = run(same, tmp_path / kind, replace(OPTIONS, activations=kind))
        assert rounded["perplexity"]["reference"] == plain["perplexity"]["reference"]
        assert rounded["kl"]["mean"] > 1e-6
    assert run(same, None, replace(OPTIONS, kv="fp8"))["kl"]["mean"] > 1e-6


def test_one_document_has_no_interval_and_says_so(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "one.jsonl", sides[0], toy_documents([20]))
    document = run((sides[0], sides[1], corpus), None)
    assert document["kl"]["mean"] > 0
    assert document["kl"]["interval"] is None
    assert document["kl"]["warning"]


def test_weights_that_are_no_numbers_are_told_by_layer(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    broken = write_toy(tmp_path / "broken", changed={"model.layers.3.attention.weight": float("nan")})
    with pytest.raises(InputError, match="layer 3 gives what is no finite number") as caught:
        run((sides[0], broken, sides[2]), tmp_path / "out")
    assert str(broken) in str(caught.value)


def test_sides_that_are_not_one_model_are_told_apart(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    for key, value in (("hidden_size", 32), ("attn_res_block_size", 3)):
        other = write_toy(tmp_path / key)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(InputError, match=f"{key} is {value}"):
            run((sides[0], other, sides[2]), None)
    with pytest.raises(InputError, match=r"tokenizer is not the reference's: tokenizer\.json differs"):
        run((sides[0], write_toy(tmp_path / "tokenizer", tokenizer="[]"), sides[2]), None)
    corpus = write_corpus(tmp_path / "other.jsonl", tmp_path / "tokenizer", toy_documents(LENGTHS))
    with pytest.raises(InputError, match="made with another tokenizer"):
        run((sides[0], sides[1], corpus), None)
