"""How the model's text is taken apart: thinking, answer, tool calls."""

from __future__ import annotations

from truecast.serve.launch.case import Case
from truecast.serve.launch.setting import Setting

PARSERS = {
    "kimi_k3": ("kimi_k3", "kimi_k3"),
    "gpt_oss": ("gpt-oss", "gpt-oss"),
    "deepseek_v4": ("deepseek-v4", "deepseekv4"),
}
"""Family -> parsers of reasoning and of tool calls, as SGLang 0.5.17 to 0.5.23 registers them."""


def parser_settings(case: Case) -> list[Setting]:
    """Both parsers of a family that is known."""
    if case.model.family not in PARSERS:
        return []
    reasoning, tools = PARSERS[case.model.family]
    return [
        Setting("--reasoning-parser", reasoning, "thinking goes to reasoning_content, the answer to content"),
        Setting("--tool-call-parser", tools, "tool calls come out as such"),
    ]
