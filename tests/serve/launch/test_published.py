"""Both published deployments come out of a plan."""

from __future__ import annotations

import shlex

import pytest

from tests.serve.launch.conftest import DSPARK, Launch, Released
from truecast.serve.launch.plan import LaunchPlan, plan_launch
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import read_topology

NETWORK = {
    "NCCL_MIN_NCHANNELS": "24", "NCCL_MAX_NCHANNELS": "24", "NCCL_IB_ADAPTIVE_ROUTING": "0",
    "NCCL_IB_QPS_PER_CONNECTION": "2", "SGLANG_EXPERT_LOAD_FILTER": "896", "SGLANG_RAGGED_VERIFY_MODE": "static",
    "SGLANG_JIT_DEEPGEMM_FAST_WARMUP": "1",
}  # fmt: skip
COMMAND = """--served-model-name moonshotai/Kimi-K3 --trust-remote-code
  --tp-size 32 --ep-size 32 --nnodes 8 --node-rank $NODE_RANK --dist-init-addr $HEAD:20000
  --kv-cache-dtype fp8_e4m3 --mamba-ssm-dtype float32 --mem-fraction-static 0.82
  --prefill-attention-backend flashmla --decode-attention-backend flashmla
  --disable-radix-cache --max-running-requests 64 --cuda-graph-max-bs-decode 64 --max-mamba-cache-size 192
  --chunked-prefill-size 4096 --max-prefill-tokens 8192
  --speculative-algorithm DSPARK --speculative-draft-model-path RadixArk/Kimi-K3-DSpark
  --speculative-dspark-block-size 2 --speculative-draft-model-quantization unquant
  --speculative-draft-attention-backend flashinfer --speculative-draft-kv-cache-dtype bfloat16
  --enable-linear-replayssm-spec
  --reasoning-parser kimi_k3 --tool-call-parser kimi_k3 --host 0.0.0.0 --port 30000"""
ADDED = {"SGLANG_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}


def explained(plan: LaunchPlan) -> set[str]:
    """Names that the notes on differences begin with."""
    told = [note.partition(": ")[2] for note in plan.notes if note.startswith("other than in ")]
    return {text.split()[0] for text in told}


def test_w4a16_of_the_full_size_checkpoint(k3: StoredModel) -> None:
    topology = read_topology("gh200:8x4")
    plan = plan_launch(k3, topology, version="0.5.20", draft=DSPARK, trust_remote_code=True)
    own = ["--model-path", k3.location, "--moe-runner-backend", "marlin"]
    assert plan.command("$NODE_RANK", "$HEAD") == ["sglang", "serve", *own, *shlex.split(COMMAND)]
    environment = {setting.name: setting.value for setting in plan.environment}
    assert environment.keys() - ADDED == NETWORK.keys() | {"SGLANG_MARLIN_EP_BLOCK"}
    assert NETWORK.items() <= environment.items() and environment["SGLANG_MARLIN_EP_BLOCK"] == "1"
    assert explained(plan) == ADDED | {"--model-path"}


def test_w4a8(launch: Launch) -> None:
    plan = launch("w4afp8", "gh200:8x4", draft=DSPARK, trust_remote_code=True)
    own = ["--model-path", "/data/Kimi-K3-W4AFP8"]
    assert plan.command("$NODE_RANK", "$HEAD") == ["sglang", "serve", *own, *shlex.split(COMMAND)]
    environment = {setting.name: setting.value for setting in plan.environment}
    assert environment.keys() - ADDED == NETWORK.keys() | {"K3_W4_SRC2DST"}
    assert NETWORK.items() <= environment.items() and environment["K3_W4_SRC2DST"] == "count"
    assert explained(plan) == ADDED | {"--model-path"}


SPECULATION = {word for word in shlex.split(COMMAND) if word.startswith(("--speculative", "--enable-linear"))}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"--trust-remote-code", "SGLANG_RAGGED_VERIFY_MODE"} | SPECULATION),
        ({"draft": DSPARK, "version": "0.5.17"}, {"--trust-remote-code", "--speculative-draft-kv-cache-dtype"}),
        ({"draft": DSPARK, "version": "0.5.23"}, {"--trust-remote-code", "K3_W4_SRC2DST"}),
        (
            {"draft": DSPARK, "profile": "latency"},
            {"--trust-remote-code", "--speculative-dspark-block-size", "--max-running-requests",
             "--cuda-graph-max-bs-decode", "--max-mamba-cache-size"},
        ),
    ],
)  # fmt: skip
def test_every_difference_is_explained(launch: Launch, options: dict[str, object], names: set[str]) -> None:
    plan = launch("w4afp8", "gh200:8x4", **options)
    assert explained(plan) == ADDED | {"--model-path"} | names
    assert not [note for note in plan.notes if "does not want it" in note]


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.23"])
def test_the_nvfp4_card_on_two_nodes_of_b200(launch: Launch, version: str) -> None:
    plan = launch("nvfp4", "b200:2x8", version=version)
    arguments = {setting.name: setting.value for setting in plan.arguments}
    environment = {setting.name: setting for setting in plan.environment}
    assert (arguments["--tp-size"], arguments["--nnodes"]) == ("16", "2")
    assert arguments["--moe-runner-backend"] == "marlin"
    assert any("plug-in, required: situ-nvfp4" in note for note in plan.notes)
    assert float(environment["SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S"].value or 0) >= 1800
    assert arguments["--dist-timeout"] == "3600"
    assert "--dcp-size" not in arguments
    assert environment["SGLANG_HOST_IP"].shell
    first, second = (plan.command(rank, "10.0.0.1") for rank in "01")
    assert [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]] == [("0", "1")]
    assert first[first.index("0") - 1] == "--node-rank"
    told = [note for note in plan.notes if note.startswith("model card PatronusAI/kimi-k3-nvfp4")]
    assert [note.split(", ")[1][0] for note in told[:5]] == list("12345") and len(told) == 6


def test_the_fp4_fast_path_is_taken_only_with_input_scales_and_from_0_5_18_on(launch: Launch) -> None:
    def backend(form: str, version: str) -> str | None:
        plan = launch(form, "b200:2x8", version=version)
        assert any(note.startswith("FP4 fast path") for note in plan.notes)
        return {setting.name: setting.value for setting in plan.arguments}["--moe-runner-backend"]

    assert backend("nvfp4", "0.5.20") == backend("nvfp4_inputs", "0.5.17") == "marlin"
    assert backend("nvfp4_inputs", "0.5.18") == backend("nvfp4_inputs", "0.5.23") == "flashinfer_trtllm"


def test_four_layers_stand_for_all(released: Released, k3: StoredModel) -> None:
    assert released.mxfp4.weights == k3.weights
    assert released.mxfp4.parallel == k3.parallel
    assert released.mxfp4.request == k3.request
    assert released.mxfp4.config == k3.config
