"""Small files that stand beside the weights of every made-up checkpoint."""

from __future__ import annotations

import base64
import json
from typing import Any

LICENSE = """\
Made-up example contents, in the public domain. No part of a released model is in this folder.
"""

CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def readme(model: str, program: str) -> bytes:
    """A README that says what the folder is."""
    return f"""\
# Shaped like {model}

Made by `python -m examples.shaped.{program}` to exercise truecast: names, dtypes, shapes and order in the files are
those of {model}, the contents are made up. It answers nothing sensible.
""".encode()


def byte_ranks() -> bytes:
    """A tokenizer stand-in in tiktoken's form: the 256 bytes, one a token."""
    return b"".join(base64.b64encode(bytes([b])) + f" {b}\n".encode() for b in range(256))


def to_json(document: dict[str, Any]) -> bytes:
    """Indented JSON with a final newline."""
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
