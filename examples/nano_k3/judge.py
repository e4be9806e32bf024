"""Does nano-K3 do what it was trained for, on contents that it never saw?

``python -m examples.nano_k3.judge ITEMS --server URL`` asks a server (OpenAI's chat completions);
``python -m examples.nano_k3.judge ITEMS --checkpoint DIR`` asks the reference model in this process.
Prints the share of right answers for each task and mode, and each wrong answer; exits 1 below ``--least``.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from truecast.evals.tasks.dialogue_rules import Answer, wrong

LIMIT = 200
"""Tokens of an answer at most; the longest right one has about 120."""


def score(items: Iterable[dict[str, Any]], answers: Iterable[Answer]) -> dict[str, Any]:
    """Shares of right answers by task and mode, and what was wrong."""
    right: dict[str, list[bool]] = defaultdict(list)
    faults: list[dict[str, str]] = []
    for item, answer in zip(items, answers, strict=True):
        fault = wrong(item, answer)
        task, _, mode = item["id"].rpartition("-")[0].rpartition("-")
        for group in ("all", task, f"{task} {mode}"):
            right[group].append(not fault)
        if fault:
            faults.append({"id": item["id"], "fault": fault})
    shares = {group: round(sum(marks) / len(marks), 4) for group, marks in sorted(right.items())}
    return {"items": len(right["all"]), "right": shares, "faults": faults}


def from_message(message: dict[str, Any], finished: bool) -> Answer:
    """An answer from an OpenAI message."""
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return Answer(message.get("content") or "", reasoning, calls, finished)


def ask_server(url: str) -> Callable[[dict[str, Any]], Answer]:
    """A function that posts one item to ``url``/chat/completions, greedy; the model is the first that the server lists."""
    with urllib.request.urlopen(f"{url.rstrip('/')}/models", timeout=60) as reply:
        model = json.load(reply)["data"][0]["id"]

    def ask(item: dict[str, Any]) -> Answer:
        body = {
            "model": model,
            "messages": item["messages"],
            "temperature": 0,
            "max_tokens": LIMIT,
            "chat_template_kwargs": {"thinking": item["thinking"]},
        }
        if item["tools"]:
            body["tools"] = item["tools"]
        if item["effort"]:
            body["reasoning_effort"] = item["effort"]
        request = urllib.request.Request(
            f"{url.rstrip('/')}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            choice = json.load(reply)["choices"][0]
        return from_message(choice["message"], choice["finish_reason"] in ("stop", "tool_calls"))

    return ask


def ask_checkpoint(folder: Path) -> Callable[[dict[str, Any]], Answer]:
    """A function that runs one item through the reference model, greedy."""
    from examples.nano_k3.dialogue import prompt
    from truecast.models.generate import Resident, generate
    from truecast.models.kimi_k3.tokenizer import open_tokenizer
    from truecast.models.open import open_model

    tokenizer, resident = open_tokenizer(folder), Resident(open_model(folder))
    stop = tokenizer.special("<|end_of_msg|>")

    def ask(item: dict[str, Any]) -> Answer:
        ids = list(generate(resident.session(), prompt(tokenizer, item), LIMIT, (stop,)))
        return parse(tokenizer, ids, item["thinking"])

    return ask


def parse(tokenizer: Any, ids: list[int], thinking: bool) -> Answer:
    """An answer from ids."""
    from truecast.models.kimi_k3.reply import Content, Reasoning, ReplyParser

    parser = ReplyParser(tokenizer, thinking=thinking)
    events = [event for token in ids for event in parser.feed(token)]
    finished = parser.ended
    events += parser.finish()
    content = "".join(e.text for e in events if isinstance(e, Content))
    reasoning = "".join(e.text for e in events if isinstance(e, Reasoning))
    calls = [(e.name, e.arguments) for e in events if not isinstance(e, Content | Reasoning)]
    return Answer(content, reasoning, calls, finished)


def main() -> int:
    """Ask every item and print the shares."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano_k3.judge", description=__doc__)
    parser.add_argument("items", type=Path, help="JSON lines of held-out items")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--server", help="base URL, such as http://127.0.0.1:8000/v1")
    where.add_argument("--checkpoint", type=Path)
    parser.add_argument("--every", type=int, default=1, help="ask only every N-th item")
    parser.add_argument("--least", type=float, default=0.0, help="share of right answers below which to exit 1")
    given = parser.parse_args()
    items = [json.loads(line) for line in given.items.read_text().splitlines()][:: given.every]
    ask = ask_server(given.server) if given.server else ask_checkpoint(given.checkpoint)
    result = score(items, map(ask, items))
    print(json.dumps(result, indent=1, ensure_ascii=False))
    return 0 if result["right"]["all"] >= given.least else 1


if __name__ == "__main__":
    sys.exit(main())
