"""Every trap that is known is a check, or the docs say why not; the docs list every check.

The three lists are what was collected before the doctor was written: requirements of a preflight, failures of the two
published deployments, and reports of users. Each item names the checks that find it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from truecast.serve.doctor.catalogue import CHECKS

IDS = {check.id for check in CHECKS}
DOCS = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()

PREFLIGHT = {
    "sm_90a in sm90/common_ops": ("kernel.sm90a",),
    "torch and sglang-kernel are a pair": ("sglang.torch-pair", "sglang.torch", "sglang.kernel"),
    "FlashInfer has enable_dcp if dcp is above 1": ("dcp.flashinfer", "dcp.arguments"),
    "MoE backend explicit on SM90": ("moe.backend",),
    "SiTU accepted by quantization and backend": ("moe.activation", "fault.situ-nvfp4", "fault.situ-w4afp8"),
    "exclude list honoured": ("fault.w4afp8-config",),
    "all expert scales present": ("checkpoint.scales", "checkpoint.input-scales"),
    "SGLANG_HOST_IP set, on the head's subnet": ("network.host-ip",),
    "dist-timeout above the repack": ("time.dist-timeout",),
    "barrier above bytes over bandwidth": ("time.load-barrier", "fault.load-barrier"),
    "block and one more are the draft tokens": ("draft.block-size",),
    "max_tokens of 512 or more": ("reasoning.room",),
    "--max-total-tokens without the gather": ("fault.fp8-kv-gather",),
    "variables of patches without the plug-in": ("environment.patch-only",),
}
"""The preflight list derived from SGLang's sources and issues."""

FAILURES = {
    "SGLANG_HOST_IP missing: silent hang": ("network.host-ip",),
    "loader barrier of 480 s": ("time.load-barrier",),
    "NCCL's 600 s during the Marlin repack": ("time.dist-timeout",),
    "aarch64 wheels lack sm_90a": ("kernel.sm90a",),
    "SiTU on NVFP4 needs Marlin": ("fault.situ-nvfp4", "moe.activation"),
    "--dcp-size with FlashInfer 0.6.15": ("dcp.flashinfer",),
    "FP8-KV prefill without --max-total-tokens": ("fault.fp8-kv-gather",),
    "empty content, finish_reason length": ("reasoning.room", "reasoning.parsers"),
    "A_log of 96 in 128": ("checkpoint.a-log",),
    "Marlin's block size under EP": ("fault.marlin-ep-tile",),
}
"""The failure catalogue of the two published Kimi-K3 deployments."""

ISSUES: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("sglang#5457", ("time.load-barrier", "fault.load-barrier")),
    2: ("sglang#39629", ("time.load-barrier", "environment.patch-only")),
    3: ("sglang#39128", ("time.load-barrier",)),
    4: ("sglang#9305, #9998, #15637", ("fault.load-barrier",)),
    5: ("MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks#3", ("network.host-ip",)),
    6: ("sglang#12450, #4978, #958", ("network.gloo", "network.nccl", "network.ports")),
    7: ("sglang#2892", ("network.head",)),
    8: ("sglang#10216, #1693", ("time.dist-timeout",)),
    9: ("sglang#7905", ("time.load-barrier", "fault.expert-load-filter")),
    10: ("sglang#39568", ("sglang.known-faults",)),
    11: ("sglang#36018", ("sglang.known-faults",)),
    13: ("sglang#36859", ("sglang.known-faults",)),
    16: ("sglang#34920", ("sglang.known-faults",)),
    19: ("sglang#32541", ("sglang.known-faults",)),
    20: ("sglang#32422", ("sglang.known-faults",)),
    21: ("sglang#33995, #32567", ("reasoning.skipped-thinking",)),
    23: ("sglang#35291, #34638, #35322, #36087", ("fault.fp8-kv-gather",)),
    25: ("sglang#35389", ("fault.marlin-ep-tile",)),
    26: ("sglang#8493, #9918", ("moe.w4afp8-dtype",)),
    27: ("sglang#7762", ("parallel.split",)),
    28: ("sglang#9508", ("checkpoint.scales",)),
    29: ("sglang#39582", ("moe.w4afp8-all-to-all",)),
    30: ("sglang#35168", ("moe.activation", "nvfp4.fp4-path")),
    32: ("sglang#25792, #22929", ("checkpoint.scales",)),
    34: ("vllm#45212, #54189, #45320, #54444", ("checkpoint.scales", "checkpoint.input-scales")),
    36: ("recipes#698", ("memory.fit", "launch.plan")),
    39: ("sglang#38515", ("kernel.sm90a",)),
    40: ("cutlass#3174", ("kernel.sm90a",)),
    41: ("aiconfigurator#1435", ("moe.activation",)),
    42: ("Infera#71", ("sglang.model-file",)),
}
"""Reports of users, by their number in the list that was collected."""
UNCHECKED = {
    12: "sglang#34260",
    14: "sglang#32970",
    15: "sglang#32855",
    17: "sglang#32569",
    18: "sglang#34959",
    22: "sglang#23341",
    24: "sglang#30815",
    31: "sglang#19491",
    33: "sglang#14677",
    35: "vllm#49070",
    37: "vllm#52627",
    38: "vllm#48827",
    43: "tokenspeed#879",
    44: "sglang#33412",
}
"""Those that no check can find; docs/doctor.md says why."""


@pytest.mark.parametrize("found_by", [*PREFLIGHT.values(), *FAILURES.values(), *(ids for _, ids in ISSUES.values())])
def test_each_item_is_found_by_checks_that_exist(found_by: tuple[str, ...]) -> None:
    assert found_by and set(found_by) <= IDS


def test_no_report_is_left_out() -> None:
    assert set(ISSUES) | set(UNCHECKED) == set(range(1, 45)) and not set(ISSUES) & set(UNCHECKED)


def test_the_docs_say_what_is_not_checked_and_why() -> None:
    section = DOCS.partition("## What is not checked")[2]
    for name in UNCHECKED.values():
        row = next((line for line in section.splitlines() if name in line), "")
        assert row.startswith("|") and len(row.split("|")[2].strip()) > 20, name


def test_the_docs_list_every_check_with_title_and_source() -> None:
    rows = re.findall(r"^\| `([a-z0-9.-]+)` \| (.*) \| (.*) \|$", DOCS, re.M)
    assert [(i, t, s) for i, t, s in rows] == [
        (check.id, check.title.replace("|", "\\|"), "; ".join(check.sources)) for check in CHECKS
    ]


def test_the_doctor_needs_no_torch() -> None:
    code = "import sys, truecast.cli.doctor; print({'torch', 'triton', 'sglang', 'fastapi'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
