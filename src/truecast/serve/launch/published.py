"""Deployments of Kimi-K3 that were published with their commands, and every difference of a plan from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from truecast.serve.launch.case import CARD_000, CARD_003, Case
from truecast.serve.launch.setting import Setting


@dataclass(frozen=True, slots=True)
class Published:
    """One command. ``format`` of the checkpoint, ``topology`` as the command line writes it."""

    source: str
    topology: str
    format: str
    environment: Mapping[str, str]
    arguments: Mapping[str, str | None]


_NETWORK = {
    "NCCL_MIN_NCHANNELS": "24",
    "NCCL_MAX_NCHANNELS": "24",
    "NCCL_IB_ADAPTIVE_ROUTING": "0",
    "NCCL_IB_QPS_PER_CONNECTION": "2",
    "SGLANG_EXPERT_LOAD_FILTER": "896",
    "SGLANG_RAGGED_VERIFY_MODE": "static",
    "SGLANG_JIT_DEEPGEMM_FAST_WARMUP": "1",
}
_COMMON: dict[str, str | None] = {
    "--served-model-name": "moonshotai/Kimi-K3",
    "--trust-remote-code": None,
    "--tp-size": "32",
    "--ep-size": "32",
    "--nnodes": "8",
    "--node-rank": "$NODE_RANK",
    "--dist-init-addr": "$HEAD:20000",
    "--kv-cache-dtype": "fp8_e4m3",
    "--mamba-ssm-dtype": "float32",
    "--mem-fraction-static": "0.82",
    "--prefill-attention-backend": "flashmla",
    "--decode-attention-backend": "flashmla",
    "--disable-radix-cache": None,
    "--max-running-requests": "64",
    "--cuda-graph-max-bs-decode": "64",
    "--max-mamba-cache-size": "192",
    "--chunked-prefill-size": "4096",
    "--max-prefill-tokens": "8192",
    "--speculative-algorithm": "DSPARK",
    "--speculative-draft-model-path": "RadixArk/Kimi-K3-DSpark",
    "--speculative-dspark-block-size": "2",
    "--speculative-draft-model-quantization": "unquant",
    "--speculative-draft-attention-backend": "flashinfer",
    "--speculative-draft-kv-cache-dtype": "bfloat16",
    "--enable-linear-replayssm-spec": None,
    "--reasoning-parser": "kimi_k3",
    "--tool-call-parser": "kimi_k3",
    "--host": "0.0.0.0",
    "--port": "30000",
}
W4A8 = Published(
    f"{CARD_003}, W4A8", "gh200:8x4", "w4afp8",
    {**_NETWORK, "K3_W4_SRC2DST": "count"},
    {"--model-path": "Radioheading/Kimi-K3-W4AFP8", **_COMMON},
)  # fmt: skip
W4A16 = Published(
    f"{CARD_003}, W4A16", "gh200:8x4", "mxfp4",
    {**_NETWORK, "SGLANG_MARLIN_EP_BLOCK": "1"},
    {"--model-path": "moonshotai/Kimi-K3", "--moe-runner-backend": "marlin", **_COMMON},
)  # fmt: skip
PUBLISHED = (W4A8, W4A16)

_LEFT_OUT = {
    "--trust-remote-code": "whether to run the checkpoint's own Python is your choice: --trust-remote-code of launch",
    "--speculative-draft-kv-cache-dtype": "SGLang has it from 0.5.18 on",
    "K3_W4_SRC2DST": "SGLang counts by itself from 0.5.23 on",
}
_NO_DRAFT = "no --draft was given"


def published_for(case: Case, topology: str) -> Published | None:
    """The command that was published for this family, format and topology."""
    found = (p for p in PUBLISHED if case.is_k3 and (p.format, p.topology) == (case.model.format, topology))
    return next(found, None)


def differences(case: Case, topology: str, environment: Sequence[Setting], arguments: Sequence[Setting]) -> list[str]:
    """One line for each flag or variable that is new, gone or has another value, with the reason."""
    card = published_for(case, topology)
    if card is None:
        return list(_requirements(case, topology, environment, arguments))
    lines = [
        *_compare(case, card.environment, environment),
        *_compare(case, card.arguments, arguments),
    ]
    return [f"other than in {card.source}: {line}" for line in lines]


def _compare(case: Case, card: Mapping[str, str | None], plan: Sequence[Setting]) -> Iterator[str]:
    ours = {setting.name: setting for setting in plan}
    for name, value in card.items():
        if name not in ours:
            yield f"{name} is left out: {_absent(case, name)}"
        elif ours[name].value != value:
            yield f"{name} {ours[name].value} for {value}: {ours[name].why}"
    for setting in plan:
        if setting.name not in card:
            yield f"{setting.name} is added: {setting.why}"


def _absent(case: Case, name: str) -> str:
    if case.draft is None and ("speculat" in name or "replayssm" in name or name == "SGLANG_RAGGED_VERIFY_MODE"):
        return _NO_DRAFT
    return _LEFT_OUT.get(name, "this deployment does not want it")


def _requirements(
    case: Case, topology: str, environment: Sequence[Setting], arguments: Sequence[Setting]
) -> Iterator[str]:
    """The NVFP4 card prints no command but five requirements; how each is met."""
    if not case.is_k3 or (case.model.format, topology) != ("nvfp4", "b200:2x8"):
        return
    values = {setting.name: setting.value for setting in (*environment, *arguments)}
    wait = values.get("SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S")
    backend = values["--moe-runner-backend"]
    yield f"{CARD_000}, 1: --moe-runner-backend {backend}" + (
        "" if backend == "marlin" else ", since there are input scales"
    )
    mended = (
        "truecast's plug-in (situ-nvfp4) in place of the patch"
        if backend == "marlin"
        else "not needed with that backend"
    )
    yield f"{CARD_000}, 2: SiTU in modelopt_quant.py: {mended}"
    yield f"{CARD_000}, 3: the load barrier is {wait} s through truecast's plug-in in place of the patch"
    timeout = values.get("--dist-timeout")
    yield f"{CARD_000}, 4: " + (
        f"--dist-timeout {timeout}" if timeout else "no repack for Marlin, so no --dist-timeout"
    )
    yield f"{CARD_000}, 5: no --dcp-size"
    yield f"{CARD_000}: SGLANG_HOST_IP is worked out on each node; only $NODE_RANK differs between the nodes' commands"
