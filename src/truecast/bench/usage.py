"""Token counts as servers give them (``usage``), and which of them are believed: a server may send anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_TOKENS = 10**9
"""A count above is no count."""


def count_in(usage: object, key: str) -> int | None:
    """A token count of a ``usage`` block; ``None`` where it is none, whatever the block may be."""
    value = usage.get(key) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def cached_in(usage: Mapping[str, Any]) -> int | None:
    """Prompt tokens from the cache; ``None`` where it cannot be, being more than the prompt."""
    prompt = count_in(usage, "prompt_tokens")
    cached = count_in(usage.get("prompt_tokens_details"), "cached_tokens")
    return None if cached is None or prompt is None or cached > prompt else cached


def reasoning_in(usage: Mapping[str, Any], output: int | None) -> int | None:
    """Reasoning tokens by SGLang's count, or OpenAI's; ``None`` where it cannot be, being more than the output."""
    count = count_in(usage, "reasoning_tokens")
    if count is None:
        count = count_in(usage.get("completion_tokens_details"), "reasoning_tokens")
    return None if count is None or output is None or count > output else count


def adds_up(running: list[int], output: int | None) -> bool:
    """Do the counts only grow, and to no more than the final one, which is what is gone by?

    A server may give the same count on every chunk: that of the prompt alone, or its final one.
    """
    grows = len(running) < 2 or running[-1] > running[0]
    return grows and running == sorted(running) and (output is None or running[-1] <= output)


def unlikely(output: int | None, chunks: int, context: int | None) -> str | None:
    """Why the server's token count is not believed."""
    if chunks and not output:
        return "the server counts no token in an answer that has some"
    if output is not None and context is not None and output > context:
        return f"the server counts {output} tokens in an answer, more than the model's context of {context}"
    return None
