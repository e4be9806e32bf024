"""Records that are broken, lie, or carry mark-up: an error that names file and key, or harmless text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.report.card_example import Document, records
from truecast.errors import InputError
from truecast.evals.compare import compare_evals
from truecast.evals.record import parse_record
from truecast.report.card import Record, make_card
from truecast.report.card.content import Figure, heading, paragraph, table
from truecast.report.card.html import render_card_page
from truecast.report.card.markdown import as_markdown

huggingface_hub = pytest.importorskip("huggingface_hub")

HOSTILE = (
    "a`b|c\n# head\r\n---\nlicense: mit\n<script>alert(1)</script> [x](javascript:1) ![i](http://e) \\(1\\) $$2$$"
    " \u202e\x1b[31m&lt;"
)
BAD: list[Any] = [None, "x", "", -1, 2**70, 10**400, float("inf"), float("nan"), True, [], {}, [1, 2, 3], HOSTILE]


def put(document: Any, pointer: str, value: Any) -> None:
    *path, last = [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]
    for key in path:
        document = document[int(key)] if isinstance(document, list) else document[key]
    document[int(last) if isinstance(document, list) else last] = value


def get(document: Any, pointer: str) -> Any:
    for key in pointer.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        document = document[int(key)] if isinstance(document, list) else document.get(key)
    return document


def places(given: list[Record]) -> list[tuple[int, str]]:
    """Every key that the card shows, and those above it; of entries of a list one."""
    found: dict[tuple[int, str], tuple[int, str]] = {}
    numbers = {record.file: i for i, record in enumerate(given)}
    for figure in make_card(given).figures:
        parts = figure.pointer.split("/")
        for end in range(2, len(parts) + 1):
            pointer = "/".join(parts[:end])
            shape = re.sub(r"/\d+", "/*", pointer) if "matrices" not in pointer else "/".join(parts[: min(end, 3)])
            found.setdefault((numbers[figure.file], shape), (numbers[figure.file], pointer))
    return [*found.values(), *((0, pointer) for pointer in UNSHOWN)]


UNSHOWN = (
    *("/int4", "/int4/matrices", "/int4/method", "/int4/rounding", "/int4/weights", "/int4/calibration", "/fp8"),
    *(
        "/blocks",
        "/classes",
        "/plain",
        "/fp8_classes",
        "/inexact_matrices",
        "/notes",
        "/source/card/pipeline_tag",
        "/family",
    ),
    *("/target/activations", "/target/activation_scales", "/blocks/inexact", "/classes/0/elements", "/source/name"),
)
"""Keys of the manifest that decide what is shown."""


def test_whatever_stands_in_a_record_is_an_error_or_harmless(out: Path, made: dict[str, Document]) -> None:
    given = [r for r in records(out, made) if r.label == "" or r.kind in ("bench", "eval")]
    given = [r for r in given if "audit" not in r.file or r.kind == "audit"]
    refused = rendered = 0
    for turn, (at, pointer) in enumerate(places(given)):
        before = get(given[at].document, pointer)
        values = [BAD[(turn + step) % len(BAD)] for step in (0, 4, 8)] + ([HOSTILE] if isinstance(before, str) else [])
        for value in values:
            put(given[at].document, pointer, value)
            try:
                card = make_card(given)
            except InputError as error:
                others = at == 0 or "compare" in error.where  # what the manifest says is what others are held against
                assert others or error.where == given[at].where, (pointer, str(error))
                assert (error.fix and re.search(r"\(/|\(the whole", error.problem)) or "label" in error.problem, str(
                    error
                )
                refused += 1
                continue
            assert not re.search(r"\b(nan|inf)\b", card.markdown), (pointer, value)
            if value == HOSTILE:
                harmless(card.markdown)
            rendered += 1
        put(given[at].document, pointer, before)
    assert refused > 200 and rendered >= 100


@pytest.mark.parametrize("name", ["bench", "eval", "audit", "verify", "launch", "compare.eval", "compare.bench"])
def test_a_key_that_is_missing(out: Path, made: dict[str, Document], name: str) -> None:
    given = records(out, made)
    at = next(i for i, record in enumerate(given) if record.where == f"{name}.json")
    keys = [key for key in given[at].document if key not in ("schema", "truecast", "command", "date", "definitions")]
    outcomes = set()
    for key in keys:
        without = [*given]
        less = {k: v for k, v in given[at].document.items() if k != key}
        without[at] = Record(given[at].kind, given[at].file, given[at].where, less, given[at].sha256, given[at].label)
        try:
            make_card(without)
            outcomes.add("needs no " + key)
        except InputError as error:
            assert error.where.endswith(".json") and error.fix
            outcomes.add("refused")
    assert "refused" in outcomes


def test_text_of_a_record_in_the_page(out: Path, made: dict[str, Document]) -> None:
    for document in made.values():
        for key in ("notes", "warnings"):
            if document.get(key):
                document[key][0] = HOSTILE
    made["bench"]["prompts"]["file"] = made["eval"]["server"]["version"] = HOSTILE
    del made["compare.bench"], made["compare.eval"]
    page = render_card_page(make_card(records(out, made)))
    assert page.count("alert(1)") >= 3
    harmless_page(page)


def harmless(text: str) -> None:
    """No mark-up of the record's own, in front matter or below."""
    front, body = text.split("\n---\n", 1)
    loaded = huggingface_hub.ModelCard(text)
    assert loaded.data.license == "other" and front.startswith("---\n") and "\n---" not in body
    assert "<script" not in text and "](javascript" not in text and "\x1b" not in text and "\u202e" not in text
    assert (
        "\n# head" not in text
        and "![" not in text
        and "$$" not in body
        and "\\(" not in re.sub(r"```.*?```", "", body, flags=re.S)
    )
    for line in body.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


class Tags(HTMLParser):
    """Which elements and attributes a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless_page(page: str) -> None:
    tags = Tags()
    tags.feed(page)
    assert not {"script", "img", "iframe", "object", "link"} & tags.tags
    assert not [name for name in tags.attributes if name.startswith("on") or name == "src"]


def test_the_page_says_what_the_card_says(out: Path, made: dict[str, Document]) -> None:
    card = make_card(records(out, made))
    page = render_card_page(card)
    tags = Tags()
    tags.feed(page)
    assert all(figure.text in tags.text for figure in card.figures if figure.pointer != "/scores/score")
    assert (
        page.count("<svg") == 3
        and "default-src 'none'" in page
        and "http" not in re.sub(r'"https://huggingface.co/[^"]*"', "", page).replace("http-equiv", "")
    )
    assert render_card_page(card) == page
    harmless_page(page)


@pytest.mark.parametrize(
    "text", ["- x", "1. x", "1) x", "+ x", "# x", "> x", "===", "---", "a_b _c_ d", "www.x.org http://x", "a@b"]
)
def test_text_out_of_a_record_is_only_text(text: str) -> None:
    markdown = pytest.importorskip("markdown_it")
    figure = Figure(text, text, "f", "/a")
    html = markdown.MarkdownIt("gfm-like", {"linkify": False}).render(
        as_markdown([paragraph(figure), heading(2, figure), table("l", ["x"], [[figure]])])
    )
    seen = text.replace(">", "&gt;")
    assert f"<p>{seen}</p>" in html and f"<h2>{seen}</h2>" in html and f"<td>{seen}</td>" in html


LIES: list[tuple[str, str, Any, str]] = [
    ("bench", "/levels/0/figures/stream/value", 99.0, "the rest of the record gives"),
    ("bench", "/levels/0/figures/stream/interval_over_runs", [40.0, 30.0], "no interval from low to high"),
    ("bench", "/server/arguments/quantization", "mxfp4", "this checkpoint is w4afp8"),
    ("eval", "/scores/score", 0.99, "the rest of the record gives"),
    ("eval", "/scores/truncated", 0.0, "the rest of the record gives"),
    ("eval", "/scores/answers", 80, "the rest of the record gives"),
    ("eval", "/problems/0/samples/0/correct", 7, "no number from 0 to 1"),
    ("audit", "/kl/mean", 0.5, "outside of its interval"),
    ("audit", "/floor/mean", -1.0, "no number from 0"),
    ("audit", "/top1/interval", [0.0, 0.01], "outside of its interval"),
    ("audit", "/corpus/documents", 0, "names no document"),
    ("bench", "/levels/0/figures/stream/interval_over_runs", [300.0, 400.0], "outside of its interval"),
    ("bench", "/levels/0/runs/0/figures/stream", 99.0, "are not the figures of its runs"),
    ("bench", "/levels/0/faults", ["the client was saturated"], "said to be sound"),
    ("bench", "/levels/0/acceptance_length", -3, "no number from 0"),
    ("eval", "/scores/interval", [0.1, 0.2], "outside of its interval"),
    ("eval", "/scores/interval", [0.1, 7], "no number from 0 to 1"),
    ("eval", "/scores/scored_problems", 10**9, "the rest of the record gives"),
    ("eval", "/scores/measures", 5, "is no object"),
    ("eval", "/scores/measures", {"strict": {"score": 9, "interval": None}}, "no number from 0 to 1"),
    ("verify", "/counts/elements", 0, "truecast.json records"),
    ("verify", "/counts/matrices", 10**9, "truecast.json records"),
    ("verify", "/counts/inexact_half_blocks", 7, "more than truecast.json declares"),
    ("verify", "/quality/int4/nearest", 10**9, "no number from"),
    ("verify", "/quality/int4/nearest", 5, "the rest of the record gives 98304"),
    ("verify", "/failures", [{"kind": "value"}], "the claim does not hold"),
    ("compare.eval", "/difference/mean", 0.5, "the rest of the record gives"),
    ("compare.eval", "/difference/interval", [0.5, 0.6], "outside of its interval"),
    ("compare.eval", "/power/detectable", -0.3, "no number from 0"),
    ("compare.eval", "/problems", 10**9, "is more than the 40"),
    ("compare.bench", "/levels/0/figures/stream/ratio", 5.0, "the rest of the record gives"),
    ("compare.bench", "/levels/0/figures/stream/interval", [5, 6], "outside of its interval"),
    ("compare.bench", "/levels/0/figures/stream/smallest_margin", -1, "no number from 0"),
    ("compare.audit", "/paired", {"difference": {"mean": 1.0, "interval": None}}, "the two KLs differ by 0"),
    ("audit", "/excess/mean", 0.0095, "is not the KL less the floor"),
    ("audit", "/identical", True, "weights are said to be identical"),
    ("audit", "/reference/fingerprint", "00" * 32, "is not the source that this checkpoint was made from"),
    ("audit", "/candidate/fingerprint", "00" * 32, "is not this checkpoint's"),
    ("audit", "/candidate/weights", "00" * 32, "is not this checkpoint's"),
    ("verify", "/ok", False, "the claim does not hold"),
    ("verify", "/declared", False, "did not use this checkpoint's truecast.json"),
    ("verify", "/manifest", "00" * 32, "is another checkpoint's"),
    ("verify", "/source", "00" * 32, "is another checkpoint's"),
    ("verify", "/out", "00" * 32, "is another checkpoint's"),
    ("verify", "/quality", None, "does not fit"),
    ("launch", "/model/format", "nvfp4", "this checkpoint is w4afp8"),
    ("launch", "/arguments/0/name", "--x; rm -rf /", "no name of a flag"),
    ("launch", "/arguments/0/value", "a\nb", "no text on one line"),
    ("launch", "/arguments/0", {"name": "--x", "value": "$(id)", "shell": True, "why": "x"}, "no shell expression"),
    ("launch", "/arguments/0", {"name": "--x", "value": '1"; id; "', "shell": True, "why": "x"}, "no shell expression"),
    ("compare.eval", "/a/score", 0.5, "is none of the records given"),
    ("compare.bench", "/levels/0/figures/stream/b", 1.0, "is none of the records given"),
    ("compare.audit", "/b/kl/mean", 0.5, "is none of the records given"),
    ("compare.eval", "/kind", "smoke", "is none of eval, bench, audit"),
]


@pytest.mark.parametrize(
    ("name", "pointer", "value", "problem"), LIES, ids=[f"{n}{p}-{i}" for i, (n, p, *_) in enumerate(LIES)]
)
def test_a_record_that_lies(
    out: Path, made: dict[str, Document], name: str, pointer: str, value: Any, problem: str
) -> None:
    known = {"fingerprint": made["verify"]["out"], "weights": "77" * 32}
    make_card(records(out, made), known)
    if name == "audit" and pointer.startswith("/candidate"):
        del made["compare.audit"]
    put(made[name], pointer, value)
    with pytest.raises(InputError, match=re.escape(problem)) as caught:
        make_card(records(out, made), known)
    assert caught.value.where == f"{name}.json" and caught.value.fix


def test_a_comparison_tells_its_records_apart(out: Path, made: dict[str, Document]) -> None:
    """Two evals of servers that say the same of themselves may have one score."""
    made["eval.native"] = {**made["eval"], "date": "2026-12-01"}
    made["compare.eval"] = {
        **compare_evals(*(parse_record(made["eval"], n) for n in "ab")),
        "schema": "truecast.compare/1",
    }
    with pytest.raises(InputError, match="does not tell apart"):
        make_card(records(out, made))
    given = records(out, made)
    for side, file in (("a", "records/eval.native.json"), ("b", "records/eval.json")):
        at = next(i for i, r in enumerate(given) if r.file == file)
        given[at] = replace(given[at], sha256=side * 64)
        made["compare.eval"][side]["sha256"] = side * 64
    assert "aime26: this checkpoint less native MXFP4: +0.0 points" in make_card(given).markdown


def test_a_comparison_is_given_once(out: Path, made: dict[str, Document]) -> None:
    with pytest.raises(InputError, match=r"compares what compare\.eval\.json compares"):
        make_card(records(out, {**made, "compare.again": made["compare.eval"]}))


def test_weights_that_changed_are_not_identical(out: Path, made: dict[str, Document]) -> None:
    made["audit"] |= {"identical": True, "floor": None, "excess": None}
    made["audit"]["kl"] = {"mean": 0.0, "interval": [0.0, 0.0]}
    del made["compare.audit"]
    with pytest.raises(InputError, match="records an error"):
        make_card(records(out, made))


def test_a_page_of_figures_near_zero(out: Path, made: dict[str, Document]) -> None:
    del made["compare.audit"]
    made["audit"] |= {"floor": None, "excess": None, "kl": {"mean": 5e-324, "interval": [0.0, 5e-324]}}
    made["audit.native"] |= {"floor": None, "excess": None, "kl": {"mean": 0.0, "interval": [0.0, 0.0]}}
    assert "4.94e-324" in render_card_page(make_card(records(out, made)))


def test_one_label_has_one_record_of_a_kind(out: Path, made: dict[str, Document]) -> None:
    with pytest.raises(InputError, match="of the same label"):
        make_card(records(out, {**made, "eval.again": made["eval"]}))


def test_what_was_measured_otherwise_has_rows_of_its_own(out: Path, made: dict[str, Document]) -> None:
    made["bench"]["duration"] = 300.0
    del made["compare.bench"]
    text = make_card(records(out, made)).markdown
    assert re.search(r"\| tok/s per stream, 20 concurrent \[A\] \| not measured \| 34", text)
    assert re.search(r"\| tok/s per stream, 20 concurrent \[B\] \| 29\.7 \(27\.9 to 31\.6\) \| not measured \|", text)


def test_json_that_is_no_json_number_never_comes_here() -> None:
    assert json.loads("1e400") == float("inf"), "so the card itself has to look"
