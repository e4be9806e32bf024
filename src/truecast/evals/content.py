"""What a reply says, apart from its reasoning."""

from __future__ import annotations

import re

from inspect_ai.model import ContentReasoning, ModelOutput

_THINKING = re.compile(r"\s*<think[^>]*>.*</think>\s*", re.DOTALL)


def content_of(output: ModelOutput) -> str:
    """The content. Where it is nothing but ``<think>...</think>``, which inspect takes for content, it is empty."""
    if not output.choices:
        return ""
    parts, text = output.message.content, output.completion
    thought = not isinstance(parts, str) and any(isinstance(part, ContentReasoning) for part in parts)
    return "" if thought and _THINKING.fullmatch(text) else text
