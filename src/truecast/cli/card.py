"""``truecast card OUT``: the model card of a converted checkpoint, from its manifest and what was recorded of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from truecast.checkpoint.card_seal import MAX_BYTES, seal, sealed_files
from truecast.checkpoint.journal import MANIFEST
from truecast.checkpoint.writer import write_file
from truecast.cli.card_folder import CardFolder
from truecast.cli.card_records import identity_of, local_places, read_manifest, read_records
from truecast.cli.output import print_result, say
from truecast.errors import RefusedError
from truecast.report.card import Card, make_card
from truecast.report.card.html import render_card_page
from truecast.report.words import counted

LABELLED = (("audit", "KL to the source"), ("bench", "speed"), ("eval", "a task's score"))
"""Options that take LABEL=FILE, and what their records hold."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("out", metavar="OUT", type=Path, help="folder of the converted checkpoint")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help=f"its manifest (default: OUT/{MANIFEST})")
    parser.add_argument("--verify", type=Path, metavar="FILE", help="what `truecast verify SRC OUT --json` printed")
    for name, what in LABELLED:
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="[LABEL=]FILE",
            help=f"{what}: {name}.json or its folder; with LABEL of another checkpoint, in a column of its own",
        )
    parser.add_argument(
        "--compare", action="append", default=[], metavar="FILE", help="what `truecast compare A B --json` printed"
    )
    parser.add_argument("--launch", type=Path, metavar="FILE", help="what `truecast launch OUT --json` printed")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the same as one page with plots")


def run(args: argparse.Namespace) -> int:
    """Read and check everything, then write."""
    manifest = read_manifest(args.manifest or args.out / MANIFEST)
    given = [manifest, *read_records(args)]
    with CardFolder(args.out, manifest, given[1:]) as folder:
        card = make_card([item.record for item in given], identity_of(args.out))
        pages = []
        if args.html is not None:
            _check_page(args.html, args.out)
            write_file(args.html, seal(render_card_page(card)))
            pages.append(str(args.html))
        written = [*folder.write(card.markdown), *pages]
    places = [{"file": r.record.file, "pointer": p} for r in given[1:] for p in local_places(r.record.document)]
    document = {"out": str(args.out), "written": written, **_document(card), "local_places": places}
    if places and not args.quiet:
        files = ", ".join(dict.fromkeys(place["file"] for place in places))
        say(f"note: {files} hold paths or addresses of your machines, as recorded; look before you publish them")
    print_result(args, document, lambda console: _render(console, document))
    return 0


def _check_page(page: Path, out: Path) -> None:
    """Raises: RefusedError where the page would be somebody's file, or one that the manifest does not list."""
    if out.resolve() in page.resolve().parents:
        raise RefusedError(
            "would be a file in the checkpoint that its manifest does not list",
            where=str(page),
            fix="write it elsewhere",
        )
    if page.is_symlink() or (page.exists() and not _is_ours(page)):
        raise RefusedError(
            "is there already, and no page as truecast wrote it", where=str(page), fix="name another file"
        )


def _is_ours(page: Path) -> bool:
    return page.is_file() and page.stat().st_size <= MAX_BYTES and sealed_files(page.read_bytes()) is not None


def _document(card: Card) -> dict[str, Any]:
    hashes = {record.file: record.sha256 for record in card.records}
    return {
        "records": [
            {"file": r.file, "kind": r.kind, "label": r.label, "schema": r.get("schema"), "sha256": r.sha256}
            for r in card.records
        ],
        "figures": [{**asdict(f), "sha256": hashes[f.file]} for f in card.figures],
    }


def _render(console: Console, document: Mapping[str, Any]) -> None:
    for path in document["written"]:
        console.print(f"wrote {path}")
    records = counted(len(document["records"]), "record")
    console.print(f"{counted(len(document['figures']), 'figure')} from {records}; --json says where each stands")
