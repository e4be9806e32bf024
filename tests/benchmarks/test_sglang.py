"""The harness of the H200 runs, against a stub in the place of SGLang."""

from __future__ import annotations

import importlib.util
import json
import math
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sglang import __main__ as harness
from benchmarks.sglang import draft, loading, reference, subnormal
from benchmarks.sglang.client import Prompts, Scores
from benchmarks.sglang.compare import Outcome, distance, divergence, fix_states, reason, row, table
from benchmarks.sglang.runs import GAMMA, GROUPS, RUNS, Run, chosen
from truecast.audit.activations import Emulation
from truecast.engines.sglang.expert_shards import Reading
from truecast.engines.sglang.fixes import FIXES
from truecast.engines.sglang.fixes.expert_load_filter import report
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.start import Outcome as Decided
from truecast.engines.sglang.start import State
from truecast.engines.sglang.start import table as start_table

STUB = """
import json, math, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
print("  situ-nvfp4  applied  because", flush=True)
print("ValueError: what went wrong", flush=True)
if "--die" in sys.argv:
    sys.exit(1)
V, calls = 2048, 0
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self): self.answer({})
    def do_POST(self):
        global calls
        calls += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids, new = body["input_ids"], body["sampling_params"]["max_new_tokens"]
        noise = calls if "--noisy" in sys.argv else 0
        meta = {"completion_tokens": new, "spec_verify_ct": new // 2}
        meta["input_token_logprobs"] = [[None, ids[0], None]] + [[-math.log(V) + noise / 8, t, None] for t in ids[1:]]
        if "top_logprobs_num" in body:
            meta["input_top_logprobs"] = [None] + [[[-math.log(V), t, None] for t in range(V)] for _ in ids[1:]]
        self.answer({"output_ids": [ids[0] + i for i in range(new)], "meta_info": meta})
    def answer(self, what):
        data = json.dumps(what).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers(); self.wfile.write(data)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""

ASKED = Prompts([[1, 2, 3], [4, 5]], [[6, 7, 8]], [[9], [10]], 4)


def serve(tmp_path: Path, run: Run, *more: str) -> Outcome:
    stub = tmp_path / "stub.py"
    stub.write_text(STUB)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, str(stub), "--port", str(port), *more]
    server = harness.Server(run, ASKED, line, {"PATH": ""}, tmp_path / f"server-{run.name}.log", 30)
    server.run()
    return server.outcome


PLAIN = Run("mxfp4", "mxfp4", "mxfp4")


def test_a_server_is_scored_twice_and_ended(tmp_path: Path) -> None:
    outcome = serve(tmp_path, PLAIN)
    assert outcome.error == "" and outcome.fixes == {"situ-nvfp4": "applied"}
    assert outcome.scores is not None and outcome.again is not None
    assert outcome.scores.scored == [[-math.log(2048)] * 2, [-math.log(2048)]]
    assert outcome.scores.answers == [[9, 10, 11, 12], [10, 11, 12, 13]]
    assert outcome.scores.same_bits(outcome.again)
    reference = Scores([[-7.0, -8.0], [-7.5]], [[9, 10, 11, 12], [0]], [[[-math.log(2048)] * 2048] * 2])
    told = row(outcome, reference, {"mxfp4": reference}, outcome.scores)
    assert told["repeats"] == "all" and told["kl"] == pytest.approx(0, abs=1e-12) and told["answers_as_mxfp4"] == "1/2"
    assert told["vs_reference"]["max"] == pytest.approx(math.log(2048) - 7)
    assert "| mxfp4 |" in table([told]) and "situ-nvfp4" in table([told])


def test_what_does_not_repeat_is_seen(tmp_path: Path) -> None:
    outcome = serve(tmp_path, PLAIN, "--noisy")
    assert row(outcome, None, {}, None)["repeats"].startswith("0/2 documents; answers 2/2; no. 0 from token 1 of 3")


def test_a_dead_server_is_an_outcome(tmp_path: Path) -> None:
    must = Run("off", "mxfp4", "mxfp4", must_fail="what went")
    outcome = serve(tmp_path, must, "--die")
    assert outcome.scores is None and "what went wrong" in outcome.error
    assert row(outcome, None, {}, None)["failed_as_it_must"]
    other = Outcome(Run("off", "mxfp4", "mxfp4", must_fail="another"), error="x", log=outcome.log)
    assert not row(other, None, {}, None)["failed_as_it_must"]
    assert "FAILED OTHERWISE" in table([row(other, None, {}, None)])


def test_a_draft_is_asked_for_answers_alone(tmp_path: Path) -> None:
    outcome = serve(tmp_path, Run("dspark", "mxfp4", "mxfp4", draft=True))
    assert outcome.scores is not None and outcome.scores.scored == [] and outcome.scores.accepted == 2


def test_states_are_read_from_the_plug_ins_own_table() -> None:
    states = list(State)
    decided = [Decided(fix, states[i % len(states)], "why") for i, fix in enumerate(FIXES)]
    log = f"noise\n{start_table(Situation('0.5.17', 'm'), decided)}\nnoise\n"
    assert fix_states(log) == {o.fix.name: o.state.value for o in decided}


def test_what_each_rank_read(tmp_path: Path) -> None:
    """The filter's own line behind SGLang's prefix; and the kernel's count, of this session's schedulers alone."""
    mine = Reading(lambda number: True)
    mine.count(1_234_500_000, 20_000_000, 40_000_000)
    log = f"noise\n[2026-11-30 03:49:07 TP1 EP1] {report(mine)}\n[2026-11-30 03:49:07 TP0 EP0] Load weight begin."
    told = loading.filtered(log)
    assert told == {"TP1": {"read": 1234.5, "skipped": 20.0, "percent": 50.0, "experts": 40.0}}
    for number, (title, session) in enumerate(
        [("sglang::scheduler_TP0_EP0", 7), ("sglang::scheduler_TP1_EP1", 7), ("sglang::detokenizer", 7),
         ("sglang::scheduler_TP0_EP0", 8)], 100
    ):  # fmt: skip
        (folder := tmp_path / str(number)).mkdir()
        (folder / "cmdline").write_bytes(title.encode() + b"\0\0")
        (folder / "stat").write_text(f"{number} (a ) b) S 1 {number} {session} 0")
        (folder / "io").write_text(f"rchar: {number * 10**6}\nwchar: 5\n")
    (tmp_path / "200").mkdir()  # ended meanwhile
    calls = loading.read_calls(7, tmp_path)
    assert calls == {"TP0": 100 * 10**6, "TP1": 101 * 10**6}
    shown = loading.table(
        [{"run": "ep", "read_calls": calls, "load_filter": told}, {"run": "one", "read_calls": {"TP0": 1}}]
    )
    assert "| ep | TP1 | 1,234.5 | 20.0 | 50.00 % | 101.0 |" in shown and "| ep | TP0 | - | - | - | 100.0 |" in shown
    assert "one" not in shown and loading.table([{"run": "one"}]) == ""


def test_servers_over_two_gpus_keep_multicast_off(tmp_path: Path) -> None:
    for run in chosen("ep"):
        env = harness.environment(run, Path("/site"), tmp_path, None)
        off = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
        assert off.items() <= env.items() and env["SGLANG_K3_AR_FUSION"] == "0"
        line = harness.command(run, {"mxfp4": tmp_path, "draft": tmp_path, run.checkpoint: tmp_path}, 1000)
        assert "--disable-custom-all-reduce" in line and ("--ep-size" in line) == ("ep2" in run.name)


def test_reason() -> None:
    assert reason("a\nAssertionError: b\nc") == "AssertionError: b"
    assert reason("[2026-11-30 04:13:17] x.Y.CudaError: d") == "[2026-11-30 04:13:17] x.Y.CudaError: d"
    assert reason("c\nlast\n") == "last"


def test_runs_name_each_other_and_the_plug_ins_fixes() -> None:
    names = [run.name for run in RUNS]
    assert len(set(names)) == len(names) and {n for group in GROUPS.values() for n in group} == set(names)
    assert [r.name for r in chosen("cache,nvfp4,mxfp4")][-1] == "nvfp4"
    fixes = {fix.name for fix in FIXES} | {"off"}
    for run in RUNS:
        assert run.same_as in ("", *names)
        assert set((run.plugin or "off").split(",")) <= fixes
    with pytest.raises(ValueError, match="no run nonsense"):
        chosen("nonsense")


def test_the_plug_in_is_an_installed_package(tmp_path: Path) -> None:
    from importlib import metadata

    harness.plug(tmp_path / "plug")
    (found,) = metadata.distributions(path=[str(tmp_path / "plug")])
    (point,) = [p for p in found.entry_points if p.group == "sglang.srt.plugins"]
    assert (point.name, point.value) == ("truecast", "truecast.engines.sglang.plugin:register")
    assert (tmp_path / "plug" / "truecast" / "engines" / "sglang" / "plugin.py").exists()


def test_a_server_sees_the_plug_in_and_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUECAST_SGLANG", "off")
    known = {run.name: run for run in RUNS}
    env = harness.environment(known["mxfp4"], Path("/site"), tmp_path, None)
    assert "TRUECAST_SGLANG" not in env and env["PYTHONPATH"] == f"{tmp_path}/plug:/site"
    assert harness.environment(known["w4afp8-off"], Path("/site"), tmp_path, None)["TRUECAST_SGLANG"] == "off"
    paths = {"mxfp4": Path("/m"), "draft": Path("/d")}
    line = harness.command(known["dspark"], paths, 1000)
    assert line[line.index("--speculative-draft-model-path") + 1] == "/d"
    assert line[line.index("--speculative-num-draft-tokens") + 1] == str(GAMMA + 1)


def test_prompts(tmp_path: Path) -> None:
    lines: list[Any] = [{"schema": "x"}, *({"tokens": list(range(i, i + 400))} for i in range(30))]
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text("\n".join(map(json.dumps, lines)))
    asked = harness.prompts(corpus, 10, 384, 5)
    assert [len(d) for d in asked.scored] == [1000] + [384] * 9
    assert [len(d) for d in asked.full] == [64] * 4 and {d[0] for d in asked.full}.isdisjoint(
        {d[0] for d in asked.scored}
    )
    assert min(d[0] for d in asked.scored) >= 8  # the first eight calibrate
    with pytest.raises(SystemExit, match="too few"):
        harness.prompts(corpus, 30, 384, 5)


@given(
    st.lists(st.sampled_from([64.0, 128.0, 256.0]), min_size=4, max_size=4),
    st.integers(0, 9),
    st.integers(0, 40),
    st.sampled_from([subnormal.SMALLEST, subnormal.SMALLEST_NORMAL, subnormal.FEW]),
)
def test_moved_scales_leave_the_weights(scales: list[float], layer: int, expert: int, down_to: float) -> None:
    tensors = {}
    for projection in ("w1", "w2", "w3"):
        stem = f"model.layers.{layer}.mlp.experts.{expert}.{projection}"
        tensors[f"{stem}.weight_scale"] = torch.tensor([scales]).to(torch.float8_e4m3fn)
        tensors[f"{stem}.weight_scale_2"] = torch.tensor(2.0**-12)
    out, total, low = subnormal.shift(tensors, down_to)
    assert total == 12 and (0 < low <= 12 if down_to == subnormal.SMALLEST else low == 0)
    for name, scale in tensors.items():
        if name.endswith("weight_scale"):
            assert torch.equal(scale.float() * tensors[name + "_2"], out[name].float() * out[name + "_2"])
    stem = f"model.layers.{layer}.mlp.experts.{expert}"
    one, before = out[f"{stem}.w1.weight_scale_2"], tensors[f"{stem}.w1.weight_scale_2"]
    assert one == out[f"{stem}.w3.weight_scale_2"] >= before
    assert one / before == 2.0 ** ((layer + expert) % 3) if down_to == subnormal.FEW else one > before


def test_fp8_blocks_are_fed_in_groups_and_experts_under_their_scale() -> None:
    blocks = reference.Blocks(Emulation("fp8-tensor", "none", {"expert": 1.0}))
    x = torch.cat([torch.full((1, 128), 448.0), torch.full((1, 128), 0.0009), torch.zeros(1, 128)], 1)
    assert torch.allclose(blocks.input("o_proj", x, None), x, rtol=1e-6, atol=0)  # one scale a token gives 0 for 0.0009
    assert blocks.input("expert", x, None)[0, 128] == 0  # half of E4M3's smallest


FORMS = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__mp_main__")
import triton
@triton.autotune(configs=[triton.Config({"B": b}, num_warps=w) for b in (32, 64) for w in (2, 4)], key=["n"])
@triton.jit
def kernel(x, n, B: triton.language.constexpr):
    pass
assert [(c.kwargs["B"], c.num_warps) for c in kernel.configs] == [(32, 2)], kernel.configs
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_servers_processes_run_one_form_of_an_autotuned_kernel(tmp_path: Path) -> None:
    script = tmp_path / "forms.py"
    script.write_text(FORMS)
    done = subprocess.run([sys.executable, script, harness.LAUNCH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_divergence_and_distance_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.5]).log().tolist(), torch.tensor([0.25, 0.75]).log().tolist()
    assert divergence([[p]], [[q]]) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-6)
    assert divergence([], []) is None
    told = distance([[-1.0, -2.0]], [[-1.0, -1.5]])
    assert told == {"mean": 0.25, "max": 0.5, "nll": 0.25, "equal": 1, "of": 2}


def test_the_draft_is_of_the_targets_shape() -> None:
    tensors, config = draft.tensors(), draft.config()
    assert tensors["fc.weight"].shape == (1024, len(config["dflash_config"]["target_layer_ids"]) * 1024)
    assert config["block_size"] == GAMMA and config["dflash_config"]["mask_token_id"] < config["vocab_size"]
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
