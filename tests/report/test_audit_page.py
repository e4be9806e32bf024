"""The audit's page: whole, self-contained, and safe whatever the names in it."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.report.audit_example import example
from truecast.report.audit_page import render_audit_page, verdict

EXAMPLE = example(documents=36)
VOID = {"meta"}


class Nesting(HTMLParser):
    """Reads a page; fails on a tag that closes another."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def changed(**values: Any) -> dict[str, Any]:
    return copy.deepcopy(EXAMPLE) | values


def test_nothing_is_fetched_and_nothing_runs() -> None:
    page = Nesting(render_audit_page(EXAMPLE))
    assert not {"script", "link", "img", "iframe", "object", "a", "form"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {n for n in names if n.startswith("on") or n in {"src", "href", "srcset", "action", "style"}}
    assert not re.search(r"url\(|@import|https?:", render_audit_page(EXAMPLE))
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_the_headline_says_mean_interval_floor_and_excess() -> None:
    text = " ".join(Nesting(render_audit_page(EXAMPLE)).text)
    assert "nano-k3-w4afp8 against nano-k3" in text
    for figure in ("mean KL", "noise floor", "excess over the floor", "same first choice", "perplexity ratio"):
        assert figure in text
    low, high = EXAMPLE["kl"]["interval"]
    assert f"95% interval {low:.5f} to {high:.4f}" in text


def test_six_charts_each_with_title_words_and_table() -> None:
    page = render_audit_page(EXAMPLE)
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert len(figures) == 6
    for figure in figures:
        image = ElementTree.fromstring(re.search(r"<svg.*?</svg>", figure, re.DOTALL)[0])  # type: ignore[index]
        assert image.get("role") == "img"
        assert len(image.get("aria-label", "")) > 20
        assert image[0].tag == "title"
        assert figure.count("<tr>") > 4
        assert "<thead>" in figure


def test_every_mark_lies_inside_its_chart() -> None:
    for drawing in re.findall(r"<svg.*?</svg>", render_audit_page(EXAMPLE), re.DOTALL):
        image = ElementTree.fromstring(drawing)
        _, _, width, height = map(float, image.get("viewBox", "").split())
        marks = 0
        for mark in image.iter():
            for name, most in (
                ("x", width),
                ("cx", width),
                ("x1", width),
                ("y", height),
                ("cy", height),
                ("y2", height),
            ):
                if mark.get(name) is not None:
                    assert 0 <= float(mark.get(name, "")) <= most
                    marks += 1
        assert marks > 20


HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=y>\x00\x1b[2J\u202e\ud800"


def test_names_of_strangers_are_only_text() -> None:
    document = changed(
        reference={"location": HOSTILE}, candidate={"location": "x/" + HOSTILE}, device=HOSTILE, kv=HOSTILE
    )
    document["corpus"] |= {"location": HOSTILE, "sha256": HOSTILE}
    document["kl"]["warning"] = HOSTILE
    for row in document["per_document"]:
        row["id"] = HOSTILE
    clean, hostile = Nesting(render_audit_page(changed())), Nesting(render_audit_page(document))
    assert [t for t in hostile.tags if t != "p"] == [t for t in clean.tags if t != "p"]
    page = render_audit_page(document)
    assert page.encode()
    assert all(c.isprintable() or c == "\n" for c in page)


def test_identical_weights() -> None:
    document = {
        key: EXAMPLE[key]
        for key in ("schema", "reference", "candidate", "corpus", "device", "dtype", "activations", "kv")
    }
    zero = {"mean": 0.0, "se": 0.0, "interval": [0.0, 0.0], "documents": 36, "tokens": 900}
    document |= {"identical": True, "kl": zero, "reverse_kl": {"mean": 0.0}, "top1": {"agreement": 1.0}, "layers": []}
    page = render_audit_page(document)
    Nesting(page)
    assert "The decoded weights are identical." in page
    assert "<svg" not in page


@pytest.mark.parametrize(
    ("excess", "words"),
    [
        (None, "No noise floor was run"),
        (
            {"mean": 0.01, "interval": [0.005, 0.02], "above_floor": True},
            "0.0100 nats per token more than rounding noise",
        ),
        ({"mean": 0.0, "interval": [-0.005, 0.02], "above_floor": False}, "cannot be told from rounding noise"),
        ({"mean": -0.01, "interval": [-0.02, -0.005], "above_floor": False}, "costs less than rounding noise"),
        ({"mean": 0.01, "interval": None, "above_floor": None}, "There is no interval."),
    ],
)
def test_the_verdict(excess: dict[str, Any] | None, words: str) -> None:
    assert words in verdict(changed(excess=excess))


@pytest.mark.parametrize(("documents", "floor"), [(1, True), (2, False), (12, True), (90, False)])
def test_few_documents_many_and_no_floor(documents: int, floor: bool) -> None:
    document = example(documents, floor=floor)
    page = render_audit_page(json.loads(json.dumps(document)))
    text = " ".join(Nesting(page).text)
    assert ("one document: no interval" in text.lower()) == (documents == 1)
    assert ("use at least 30" in text) == (1 < documents < 30)
    assert ("noise floor" in text and "excess over" in text) == floor
    assert ("the 60 costliest of 90" in text) == (documents == 90)


def test_figures_without_any_spread() -> None:
    document = changed()
    for row in document["layers"]:
        row |= {"relative_error": 0.0, "max_error": 0.0, "floor_error": None}
    for row in document["top1"]["flips_by_margin"]:
        row |= {"flips": 0, "rate": 0.0}
    Nesting(render_audit_page(document))
