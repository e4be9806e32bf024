"""What a file of modelling code does with A_log, told from its text alone."""

from __future__ import annotations

import pytest

from truecast.convert.a_log_rule import BLOCK
from truecast.families.delta_attention import CLASS, MAX_BYTES, judge, knows_heads, linear_heads, longer

START = f"""\
import torch
from torch import nn

class {CLASS}(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_dim = config.linear_attn_config["head_dim"]
        self.num_heads = config.linear_attn_config["num_heads"]
        self.head_k_dim = self.head_dim
"""
HEADS = "        self.A_log = nn.Parameter(torch.zeros(self.num_heads))\n"
WIDTH = "        self.A_log = nn.Parameter(torch.zeros(self.head_dim))\n"
HOOK = """
    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict[prefix + "A_log"] = state_dict[prefix + "A_log"][: self.num_heads]
        super()._load_from_state_dict(state_dict, prefix, *args)
"""
SLICED = "\n    def forward(self, x):\n        return kernel(x, A_log=self.A_log[: self.num_heads])\n"
USED = "\n    def forward(self, x):\n        return kernel(x, A_log=self.A_log)\n"


def lines(*code: str) -> str:
    return "".join(f"        {line}\n" for line in code)


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (HEADS, "unfixed"),
        (HEADS + USED, "unfixed"),
        (
            lines("self.A_log = torch.nn.Parameter(torch.log(torch.empty(", "    self.num_heads).uniform_(1, 16)))"),
            "unfixed",
        ),
        (lines("n = self.num_heads", "self.A_log = nn.Parameter(torch.zeros(n))"), "unfixed"),
        (lines("n = config.num_v_heads", "self.A_log = nn.Parameter(torch.zeros(n))"), "unknown"),
        (lines("self.register_parameter('A_log', nn.Parameter(torch.zeros(self.num_heads)))"), "unfixed"),
        (HEADS + HOOK, "fixed"),
        (HEADS + lines("self.register_load_state_dict_pre_hook(cut)", "self.name = 'A_log'"), "fixed"),
        (HEADS + BLOCK, "fixed"),
        (WIDTH + BLOCK, "fixed"),
        (WIDTH, "oversized"),
        (WIDTH + USED, "oversized"),
        (WIDTH + HOOK, "oversized"),
        (lines("self.A_log = nn.Parameter(torch.zeros(self.head_k_dim))"), "oversized"),
        (lines("size = self.head_dim", "self.A_log = nn.Parameter(torch.zeros(size))"), "oversized"),
        (lines("self.A_log = nn.Parameter(torch.zeros(max(self.num_heads, self.head_dim)))"), "oversized"),
        (WIDTH + SLICED, "unknown"),
        (lines("self.A_log = nn.Parameter(torch.zeros(self.head_dim)[: self.num_heads])"), "unknown"),
        (lines("self.A_log = nn.Parameter(torch.zeros(96))"), "unknown"),
        (lines("pass"), "unknown"),
    ],
)
def test_verdict(body: str, verdict: str) -> None:
    assert judge((START + body).encode()) == verdict


def test_whether_the_class_knows_its_heads_when_it_builds_the_parameter() -> None:
    late = START.replace('        self.num_heads = config.linear_attn_config["num_heads"]\n', "")
    assert knows_heads((START + WIDTH).encode())
    assert not knows_heads((late + WIDTH).encode())
    assert not knows_heads((late + WIDTH + "        self.num_heads = 3\n").encode())


def test_a_class_under_a_condition_counts_and_a_nested_one_does_not() -> None:
    indented = "".join(f"    {line}\n" for line in (START + HEADS).splitlines())
    assert judge(f"try:\n{indented}except ImportError:\n    pass\n".encode()) == "unfixed"
    assert judge(f"def make():\n{indented}".encode()) == "unknown"
    assert judge(f"# {CLASS} is elsewhere\n".encode()) == "absent"
    assert judge(b"class Other:\n    pass\n") == "absent"


@pytest.mark.parametrize(
    "content",
    [
        b"class KimiDeltaAttention(:\n",
        b"class KimiDeltaAttention: pass\0",
        b"# coding: no-such-codec\nclass KimiDeltaAttention: pass\n",
        b"class KimiDeltaAttention: pass\nx = " + b"(" * 5000 + b")" * 5000,
        b"class KimiDeltaAttention: pass\nx = " + b"-" * 100_000 + b"1",
        b"class KimiDeltaAttention: pass\n\xff\xfe",
        b"class KimiDeltaAttention: pass\n#" + b"x" * MAX_BYTES,
    ],
    ids=["syntax", "nul", "codec", "parentheses", "depth", "utf-8", "size"],
)
def test_what_is_no_python_is_unknown_and_raises_nothing(content: bytes) -> None:
    assert judge(content) == "unknown"


def test_what_it_would_run_is_not_run(tmp_path) -> None:
    marker = tmp_path / "ran"
    judge(f"open({str(marker)!r}, 'w')\n{START}{HEADS}".encode())
    assert not marker.exists()


def test_only_vectors_longer_than_the_heads_count() -> None:
    config = {"text_config": {"linear_attn_config": {"num_heads": 96, "head_dim": 128}}}
    shapes = {
        "a.self_attn.A_log": (128,),
        "b.self_attn.A_log": (96,),
        "c.self_attn.A_log": (1, 1, 128, 1),
        "d.x": (128,),
    }
    assert longer(config, shapes) == ["a.self_attn.A_log"]
    assert linear_heads(config) == (96, 128)
    for odd in ({}, {"text_config": 3}, {"linear_attn_config": {"num_heads": "96"}}):
        assert longer(odd, shapes) == []
