"""The card of nano-K3 in the repository: made from the records beside it, byte for byte, and about this very checkpoint."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.deployment.table import RECORDS
from examples.nano_k3.card import CARD, HERE, gather, options
from truecast.convert import Target, convert

DOCUMENTED = {"version", "sha256"}
"""Keys of the manifest that a release changes; so is README.md's hash, with each word of the card."""


def test_it_regenerates_from_its_records(cli: Callable[..., Any], tmp_path: Path) -> None:
    card = (CARD / "README.md").read_bytes()
    folder = tmp_path / "card"
    shutil.copytree(CARD, folder)
    (folder / "README.md").unlink()
    command = card.decode().partition("\ntruecast card . ")[2].partition("\n")[0]
    words = shlex.split(command.replace("records/", f"{folder}/records/"))
    outcome = cli("card", folder, *words)
    assert outcome.code == 0, outcome.err
    assert (folder / "README.md").read_bytes() == card
    names = {path.relative_to(CARD): path.read_bytes() for path in CARD.rglob("*") if path.is_file()}
    assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == names


def test_its_manifest_is_what_converting_gives(tmp_path: Path) -> None:
    made = convert(HERE / "checkpoint", tmp_path / "out", Target("w4afp8"), jobs=2)
    stored = json.loads((CARD / "truecast.json").read_text())
    del stored["files"]["README.md"]
    for document in (made, stored):
        for key in DOCUMENTED:
            del document[key]
    assert made == stored


def test_it_has_all_parts_and_the_script_knows_its_records() -> None:
    kinds = {word for word in options(CARD / "records") if word.startswith("--")}
    assert kinds == {"--bench", "--eval", "--audit"}
    text = (CARD / "README.md").read_text()
    for words in (
        "Proved by `truecast verify`",
        "| native |",
        "KL to the source",
        "sglang serve",
        "would have been found",
    ):
        assert words in text
    assert "No task was run" not in text and "Speed was not measured" not in text


def test_records_of_the_benchmark_are_found(tmp_path: Path) -> None:
    for folder in ("mxfp4", "nvfp4", "w4afp8"):
        for path in RECORDS.values():
            file = tmp_path / "records" / folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("{}")
    given = gather(tmp_path / "records", tmp_path / "given")
    names = {p.name for p in given.iterdir()}
    assert {"bench.native.json", "eval.NVFP4.json", "audit.json", "audit.2.json", "audit.NVFP4.2.json"} <= names
    assert len(names) == 3 * len(RECORDS)
    words = list(options(given))
    assert words[:2] == ["--audit", f"native={given}/audit.native.json"] and f"NVFP4={given}/bench.NVFP4.json" in words
