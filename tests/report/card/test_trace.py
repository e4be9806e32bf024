"""Every number on the card comes from a record: each word of the card, and each number in its text, is looked at."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.card_example import Document, records
from truecast.report.card import Card, make_card, render_card
from truecast.report.card.content import Code, Label, all_words

ALLOWED = re.compile(
    r"FP8|INT4|BF16|E4M3|NVFP4|W4AFP8|MXFP4"
    r"|95% interval|80% power|90% interval"
    r"|groups of 128|128 x 128 blocks|half blocks of 16|scales of 1\.0|largest value (?:becomes|to) -8"
    r"|largest magnitude (?:becomes|to) 7|over 448|1\.0 where there is neither|from 0 to |address of node 0|sha256"
)
"""Numbers that are words: names of formats and rules, and the level of an interval."""
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


@pytest.fixture(params=["all", "this alone", "manifest alone"])
def card(request: pytest.FixtureRequest, out: Path, made: dict[str, Document]) -> Card:
    given = records(out, made)
    if request.param == "this alone":
        given = [r for r in given if not r.label and r.kind != "compare"]
    return make_card(given[:1] if request.param == "manifest alone" else given)


def test_no_word_of_ours_holds_a_number(card: Card) -> None:
    ours = [p for words in all_words(card.blocks) for p in words if isinstance(p, str | Code)]
    assert len(ours) > 50
    left = [p for p in ours if re.search(r"\d", ALLOWED.sub("", p if isinstance(p, str) else p.text))]
    assert left == []


def test_every_number_in_the_text_is_a_figures(card: Card) -> None:
    text = card.markdown
    known = {n for f in card.figures for n in NUMBER.findall(f.text)}
    labels = [p.text for words in all_words(card.blocks) for p in words if isinstance(p, Label)]
    for words in sorted(labels, key=len, reverse=True):
        text = text.replace(words, "")
    text = re.sub(r"&#\d+;", " ", ALLOWED.sub("", text))
    front = text.split("---\n")[1]
    assert set(NUMBER.findall(front)) <= known | {"4", "8", "3"}, "tags: int4, fp8, kimi_k3"
    body = text.split("---\n", 2)[2]
    files = re.compile("|".join(re.escape(r.file) for r in card.records))
    found = NUMBER.findall(files.sub("", body))
    assert len(found) > 150 and [n for n in found if n not in known] == []


def test_a_number_of_nobodys_would_be_found(card: Card) -> None:
    known = {n for f in card.figures for n in NUMBER.findall(f.text)}
    assert not {"0.0153", "17.3", "98,305"} & known


def resolve(document: Any, pointer: str) -> Any:
    for key in pointer.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


def test_every_figure_stands_where_it_says(card: Card) -> None:
    by_file = {record.file: record for record in card.records}
    plain = 0
    for f in card.figures:
        value = resolve(by_file[f.file].document, f.pointer)
        if not f.how:
            plain += 1
            assert (value, type(value)) == (f.value, type(f.value)), f
            if isinstance(value, str) and len(value) < 600:
                assert f.text == value
    assert plain > 100 or len(card.records) == 1


def test_sums_are_those_of_the_manifest(out: Path, made: dict[str, Document]) -> None:
    card = make_card(records(out, made))
    matrices = card.records[0].document["int4"]["matrices"].values()
    sums = {f.how: f.value for f in card.figures if f.pointer == "/int4/matrices"}
    assert sums["sum of groups"] == sum(m["groups"] for m in matrices) == 768
    error, energy = (sum(m[key] for m in matrices) for key in ("squared_error", "squared_sum"))
    assert sums["squared_error / squared_sum, from the sums over all matrices"] == pytest.approx(error / energy)


def test_the_same_records_give_the_same_card(out: Path, made: dict[str, Document]) -> None:
    given = records(out, made)
    text = make_card(given).markdown
    assert make_card(records(out, made)).markdown == text
    later = {n: {**d, "date": "2031-01-01T00:00:00+00:00", "seconds": 9.9} for n, d in made.items()}
    assert make_card(records(out, later)).markdown == text
    assert not re.search(r"20\d\d-\d\d|/work|/models|/data|/runs|10\.1\.2\.3|" + re.escape(str(out.parent)), text)


def test_convert_writes_the_same_card_but_for_its_last_section(out: Path) -> None:
    manifest = records(out, {})
    alone, later = render_card(manifest[0].document), make_card(manifest).markdown
    head = "## Where the figures come from"
    assert alone.partition(head)[0] == later.partition(head)[0]
    assert (out / "README.md").read_text().startswith(alone.rstrip())
