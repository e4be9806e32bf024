"""The front matter: what a hub reads of a card. Keys and their meaning: "Model Cards" in the Hugging Face Hub documentation.

Every text is written as a JSON string, which is a YAML one too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from truecast.report.card.cast import name_of
from truecast.report.card.content import Figure
from truecast.report.card.markdown import plain
from truecast.report.card.record import Record

_KEYS = ("base_model", "license", "license_name", "license_link", "pipeline_tag")
_LONGEST = 200
_TAGS = {"w4afp8": ("int4", "fp8"), "nvfp4": ("fp4",), "mxfp4": ("fp4",)}
_SLUG = re.compile(r"[a-z0-9][a-z0-9_.-]{0,40}")
_PLAIN = re.compile(r"(?!(?:true|false|yes|no|on|off|y|n|null)$)[a-z][a-z0-9_.-]*")
"""A word that YAML takes for a text without quotes."""
_TEXT_GENERATION = "text-generation"


def front_matter(manifest: Record, evals: Sequence[Record]) -> tuple[list[str], list[Figure]]:
    """Lines between the two ``---``, these included, and the figures in them. ``evals``: of this checkpoint."""
    figures: list[Figure] = []
    target = manifest.string("target", "format")
    tags = ["truecast", target, *_TAGS.get(target, ()), *_slugs(manifest)]
    sglang = manifest.get("target", "dialect") == "sglang"
    lines = [
        "---",
        f"library_name: {'sglang' if sglang else 'transformers'}",
        *_carried(manifest),
        "base_model_relation: quantized",
        f"tags: [{', '.join(dict.fromkeys(tags))}]",
    ]
    if results := [line for record in evals for line in _result(record, figures)]:
        lines += ["model-index:", f"- name: {_quoted(plain(name_of(manifest)))}", "  results:", *results]
    return [*lines, "---"], figures


def _carried(manifest: Record) -> Iterator[str]:
    for key in _KEYS:
        if manifest.get("source", "card", key) is None:
            continue
        value = manifest.string("source", "card", key)
        if not value.isprintable() or len(value) > _LONGEST:
            raise manifest.bad("is no short text on one line", "source", "card", key)
        yield f"{key}: {_quoted(value)}"


def _slugs(manifest: Record) -> list[str]:
    family = manifest.get("family")
    if not isinstance(family, str) or not _SLUG.fullmatch(family):
        return []
    return [family if _PLAIN.fullmatch(family) else _quoted(family)]


def _result(record: Record, figures: list[Figure]) -> Iterator[str]:
    """One entry of ``model-index``: the score as a share, unrounded. A task without a name has none."""
    name = record.get("task", "name")
    if not isinstance(name, str) or not _SLUG.fullmatch(name):
        return
    score = record.figure("scores", "score", words=lambda share: f"{share:.6f}")
    figures.append(score)
    yield f"  - task: {{type: {_TEXT_GENERATION}}}"
    yield f"    dataset: {{type: {_quoted(name)}, name: {_quoted(name)}}}"
    yield f"    metrics: [{{type: accuracy, name: mean score, value: {score.text}}}]"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
