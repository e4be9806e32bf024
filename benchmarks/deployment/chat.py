"""nano-K3 as a chat model that SGLang can serve: its weights as links, a tokenizer of truecast's own, prompts."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOKENIZER = Path(__file__).with_name("tokenization_truecast.py")
START = 48
"""Tokens of a document that the model is given to go on with."""


def chat_folder(checkpoint: Path, out: Path) -> Path:
    """``out``: ``checkpoint`` with the tokenizer as remote code. Kimi-K3 ships such code, nano-K3 does not."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for file in sorted(checkpoint.iterdir()):
        if file.suffix == ".safetensors":
            (out / file.name).symlink_to(file.resolve())
        elif file.is_file():
            shutil.copy(file, out)
    shutil.copy(TOKENIZER, out)
    path = out / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["auto_map"] = {"AutoTokenizer": [f"{TOKENIZER.stem}.TruecastTokenizer", None]}
    config["tokenizer_class"] = "TruecastTokenizer"
    path.write_text(json.dumps(config, indent=1))
    return out


def bodies(dialogues: Path) -> Iterator[dict[str, Any]]:
    """Each dialogue as a request's body, for ``truecast bench``; in a fixed order that mixes the kinds, which the file
    has one after another: a run that met one kind alone would not be steady."""
    items = [json.loads(line) for line in dialogues.read_text().splitlines()]
    for item in sorted(items, key=lambda item: hashlib.sha256(item["id"].encode()).digest()):
        body = {"messages": item["messages"], "chat_template_kwargs": {"thinking": item["thinking"]}}
        given = {"tools": item["tools"], "reasoning_effort": item["effort"]}
        yield body | {name: value for name, value in given.items() if value}


def starts(dialogues: Path, documents: Path) -> Iterator[dict[str, Any]]:
    """What the native model goes on with, for ``truecast corpus``: each dialogue, and the start of each document."""
    for line in dialogues.read_text().splitlines():
        item = json.loads(line)
        wanted = ("id", "messages", "tools", "thinking", "effort")
        yield {name: item[name] for name in wanted if item[name] is not None}
    for number, line in enumerate(documents.read_text().splitlines()[1:]):
        yield {"id": f"document-{number:03}", "tokens": json.loads(line)["tokens"][:START]}


def write_lines(path: Path, lines: Iterator[dict[str, Any]]) -> Path:
    """JSON Lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
