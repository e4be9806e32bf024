"""What the source's model card says of descent and licence, to be said again by the new one.

Only lines ``key: scalar`` of the front matter are understood, and only the few keys below: no YAML is parsed, for the
card is as untrusted as the rest of a download. Values leave here as plain printable text, for the reader to quote.

Source: "Model Cards" in the Hugging Face Hub documentation, metadata keys.
"""

from __future__ import annotations

import json
import re

from truecast.checkpoint.source import Checkpoint

CARD = "README.md"
MAX_BYTES = 8192
"""Front matter that does not end within this is not read."""
MAX_VALUE = 200
KEYS = ("base_model", "model_name", "license", "license_name", "license_link", "pipeline_tag")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
"""``organisation/name``, as models are called on the Hub."""


def read_source_card(source: Checkpoint) -> dict[str, str]:
    """The ``KEYS`` that the front matter of the source's README.md has, with their values.

    ``base_model`` is an ``organisation/name``; where the card has none it is the config's ``_name_or_path``, should that
    look like one.
    """
    found: dict[str, str] = {}
    if CARD in source.auxiliary:
        file = source.opener(CARD)
        try:
            found = front_matter(bytes(file.read(0, min(file.size, MAX_BYTES))))
        finally:
            file.close()
    name = source.config.get("_name_or_path")
    if "base_model" not in found and isinstance(name, str) and REPOSITORY.fullmatch(name):
        found["base_model"] = name
    return {key: found[key] for key in KEYS if key in found}


def front_matter(raw: bytes) -> dict[str, str]:
    """The ``KEYS`` among the scalars of a card's first bytes; whatever is not plain is left out."""
    lines = raw.decode("utf-8", "replace").splitlines()
    if not lines or lines[0].rstrip() != "---" or "---" not in (line.rstrip() for line in lines[1:]):
        return {}
    found: dict[str, str] = {}
    for line in lines[1:]:
        if line.rstrip() == "---":
            break
        key, colon, rest = line.partition(":")
        value = _scalar(rest) if colon and key in KEYS else None
        if value is not None and (key != "base_model" or REPOSITORY.fullmatch(value)):
            found[key] = value
    return found


def _scalar(text: str) -> str | None:
    """A plain or quoted scalar on one line; None for anything else."""
    text = text.strip()
    if quoted := re.fullmatch(r'("(?:[^"\\]|\\.)*")(?:\s+#.*)?', text):
        try:
            value = json.loads(quoted.group(1))
        except ValueError:
            return None
    elif quoted := re.fullmatch(r"'((?:[^']|'')*)'(?:\s+#.*)?", text):
        value = quoted.group(1).replace("''", "'")
    else:
        value = re.split(r"\s#", text, maxsplit=1)[0].rstrip()
        if value[:1] in set("[]{}&*!|>%@`#,?\"'-") or ": " in value:
            return None
    fine = isinstance(value, str) and 0 < len(value) <= MAX_VALUE and value.isprintable() and "\ufffd" not in value
    return value if fine else None
