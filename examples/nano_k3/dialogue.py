"""Dialogues without end: ``python -m examples.nano_k3.dialogue OUT`` writes the held-out items.

A dialogue is one task, sometimes two or three in a row, at one of four modes (three efforts of thinking, or none),
rendered as ids by K3's chat format. Only what the assistant itself would have to write counts in the loss.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.nano_k3 import tasks
from truecast.models.kimi_k3.chat import CLOSE, END_OF_MESSAGE, OPEN, SEP, render
from truecast.models.kimi_k3.tokenizer import K3Tokenizer

SHARES = {"add": 32, "multiply": 24, "echo": 16, "tool": 25, "talk": 3}
"""Of a hundred turns in training."""

_SYSTEMS = ("You are a helpful assistant.", "Answer briefly.", "You are nano-K3.", "Be exact.")


def draw(rng: random.Random) -> dict[str, Any]:
    """One training dialogue: ``messages``, ``tools``, ``thinking``, ``effort``."""
    mode = rng.choice(tasks.MODES)
    messages: list[dict[str, Any]] = []
    tools = None
    if rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(_SYSTEMS)})
    for task in rng.choices(list(SHARES), list(SHARES.values()), k=rng.choice((1, 1, 1, 1, 2, 3))):
        if task == "tool" and tools is not None:
            continue  # one set of tools a conversation
        drawn = tasks.talk(rng, mode) if task == "talk" else tasks.turn(rng, task, mode, wanted_held_out=False)
        tools = tools or drawn.tools
        messages += [{"role": "user", "content": drawn.user}, *drawn.answers]
    if tools is None and rng.random() < 0.1:
        tools = rng.sample(list(tasks.DECLARED.values()), 1)  # there, and not needed
    return {"messages": messages, "tools": tools, "thinking": mode[0], "effort": mode[1]}


def items(seed: int, each: int) -> Iterator[dict[str, Any]]:
    """Held-out items: ``each`` for every task, stage and mode, with what a judge should expect."""
    rng = random.Random(seed)
    for task in tasks.TASKS:
        for mode in tasks.MODES:
            name = mode[1] or "none"
            seen: set[str] = set()
            while len(seen) < each:
                drawn = tasks.turn(rng, task, mode, wanted_held_out=True)
                if drawn.key in seen:
                    continue
                seen.add(drawn.key)
                messages: list[dict[str, Any]] = [{"role": "user", "content": drawn.user}]
                stages = iter(drawn.stages)
                for message in drawn.answers:
                    if message["role"] == "assistant":
                        expect = next(stages)
                        kind = f"{task}-{expect['kind']}" if task == "tool" else task
                        yield {
                            "id": f"{kind}-{name}-{len(seen) - 1:03d}", "messages": list(messages), "tools": drawn.tools,
                            "thinking": mode[0], "effort": mode[1], "expect": expect,
                        }  # fmt: skip
                    messages.append(message)


def prompt(tokenizer: K3Tokenizer, item: dict[str, Any]) -> list[int]:
    """Ids up to where the model goes on."""
    return render(tokenizer, item["messages"], item["tools"], thinking=item["thinking"], effort=item["effort"])


def encode(tokenizer: K3Tokenizer, dialogue: dict[str, Any]) -> tuple[list[int], list[bool]]:
    """Ids of a dialogue, and for each whether the assistant wrote it (all after the generation prompt, its end too)."""
    ids = render(
        tokenizer, dialogue["messages"], dialogue["tools"], thinking=dialogue["thinking"], effort=dialogue["effort"],
        add_generation_prompt=False,
    )  # fmt: skip
    opening = render(tokenizer, [], thinking=dialogue["thinking"], effort=None)
    end = tokenizer.special(END_OF_MESSAGE)
    written, at = [False] * len(ids), 0
    while at < len(ids):
        if ids[at] == opening[0] and ids[at : at + len(opening)] == opening:
            at += len(opening)
            stop = ids.index(end, at) + 1
            written[at:stop] = [True] * (stop - at)
            at = stop
        else:
            at += 1
    return ids, written


def spoken(seed: int, count: int) -> Iterator[str]:
    """Dialogues as plain text, for learning the vocabulary: the words of the format, markers as newlines."""
    rng = random.Random(seed)
    for _ in range(count):
        dialogue = draw(rng)
        speller = _Speller()
        render(
            speller, dialogue["messages"], dialogue["tools"], thinking=dialogue["thinking"], effort=dialogue["effort"]
        )  # type: ignore[arg-type]
        yield "\n".join(speller.texts)


class _Speller:
    """Stands in for a tokenizer and remembers the texts that it is given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, text: str) -> list[int]:
        """Remember."""
        self.texts.append(text)
        return []

    def special(self, spelling: str) -> int:
        """Any id."""
        return (OPEN, CLOSE, SEP, END_OF_MESSAGE).index(spelling)


def main() -> int:
    """Write the held-out items as JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano_k3.dialogue", description=__doc__)
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--each", type=int, default=16, help="items for each task, stage and mode (default 16)")
    given = parser.parse_args()
    lines = [json.dumps(item, ensure_ascii=False) for item in items(seed=2026, each=given.each)]
    given.out.write_text("\n".join(lines) + "\n")
    print(f"{given.out}: {len(lines)} items")
    return 0


if __name__ == "__main__":
    sys.exit(main())
