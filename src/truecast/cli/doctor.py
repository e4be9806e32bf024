"""``truecast doctor``: would this deployment serve, and serve rightly? Each known trap with evidence and a remedy."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from truecast.checkpoint.source import open_checkpoint
from truecast.cli.options import add_key, key_of
from truecast.cli.output import print_result
from truecast.errors import TruecastError, UsageError
from truecast.report.words import counted
from truecast.serve.doctor.doctor import Report, doctor
from truecast.serve.doctor.finding import Finding, Status
from truecast.serve.doctor.ground import Ground
from truecast.serve.installed import Installation, find_installation, flags
from truecast.serve.launch.draft import read_draft
from truecast.serve.launch.plan import plan_launch
from truecast.serve.launch.versions import NEWEST
from truecast.serve.machine import ThisMachine
from truecast.serve.server_arguments import ServerArguments, read_arguments
from truecast.serve.server_info import ServerFacts, server_info
from truecast.serve.stored_model import StoredModel, stored_model
from truecast.serve.topology import read_topology

CLAIM_FAILS = 1
_DRAFT = "--speculative-draft-model-path"
_ORDER = (Status.FAIL, Status.WARN, Status.UNKNOWN, Status.PASS, Status.SKIP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("--for", dest="src", metavar="CKPT", help="checkpoint to be served: folder or fsspec URL")
    parser.add_argument("--draft", metavar="CKPT", help="draft model for speculative decoding: a folder or owner/name")
    parser.add_argument("--topology", metavar="T", help="GPU:NODESxGPUS such as gh200:8x4, or a JSON file that says so")
    parser.add_argument(
        "--site-packages", type=Path, metavar="DIR", help="folder with the SGLang that will serve (default: this one's)"
    )
    parser.add_argument("--server", metavar="URL", help="a running server, asked for its arguments")
    add_key(parser)
    parser.add_argument(
        "arguments", nargs="*", metavar="-- ARGUMENT", help="the server's arguments, as for sglang serve"
    )


def run(args: argparse.Namespace) -> int:
    """Look, and print the findings. Exit 1 if one of them is a FAIL."""
    report = doctor(_ground(args))
    print_result(args, report.document(), lambda console: _render(console, report))
    return 0 if report.ok else CLAIM_FAILS


def _ground(args: argparse.Namespace) -> Ground:
    """Arguments come from the command line, else from the server, else from a launch plan."""
    installation = find_installation(args.site_packages)
    if installation is None and args.site_packages is not None:
        raise UsageError("holds no SGLang", where=str(args.site_packages), fix="name the folder that holds sglang/")
    ground = Ground(
        installation=installation,
        model=None if args.src is None else stored_model(open_checkpoint(args.src)),
        draft=_stored_draft(args.draft),
        topology=None if args.topology is None else read_topology(args.topology),
        environment=dict(os.environ),
        machine=ThisMachine(),
    )
    if args.server is not None:
        ground = _asked(ground, server_info(args.server, key=key_of(args)), here=args.site_packages is None)
    if args.arguments:
        read = _read(args.arguments, ground.installation)
        ground = replace(ground, arguments=read.values, unknown_arguments=read.unknown)
    elif args.server is None and ground.model is not None and ground.topology is not None:
        ground = _planned(ground, args.draft)
    named = ground.argument(_DRAFT)
    if ground.draft is None and named is not None and Path(named).is_dir():
        ground = replace(ground, draft=_stored_draft(named))
    return ground


def _asked(ground: Ground, server: ServerFacts, *, here: bool) -> Ground:
    """With what a server says of itself. An SGLang that only happens to be ``here`` counts if it is the server's."""
    found = ground.installation
    if here and found is not None and (server.engine != "sglang" or server.version not in (None, found.version)):
        found = None
    return replace(
        ground,
        installation=found,
        server=server,
        arguments=server.arguments or None,
        environment=server.environment or {},
    )


def _stored_draft(text: str | None) -> StoredModel | None:
    """Its headers where it is a folder here; a repository's are not fetched. Raises: UsageError if it is neither."""
    if text is None:
        return None
    if Path(text).is_dir():
        return stored_model(open_checkpoint(text))
    read_draft(text)
    return None


def _read(words: list[str], installation: Installation | None) -> ServerArguments:
    try:
        known = None if installation is None else flags(installation)
    except LookupError:
        known = None  # the check of the arguments says so
    return read_arguments(words, known)


def _planned(ground: Ground, draft: str | None) -> Ground:
    assert ground.model is not None and ground.topology is not None
    try:
        plan = plan_launch(
            ground.model,
            ground.topology,
            version=NEWEST,
            installation=ground.installation,
            draft=None if draft is None else read_draft(draft),
        )
    except LookupError as error:  # sources that are broken
        return replace(ground, plan_error=TruecastError(str(error)))
    except TruecastError as error:
        return replace(ground, plan_error=error)
    return replace(
        ground,
        arguments={setting.name: setting.value or "" for setting in plan.arguments},
        environment={**ground.environment, **{s.name: s.value or "" for s in plan.environment}},
        planned=True,
    )


def _render(console: Console, report: Report) -> None:
    """The worst first; what was skipped for one reason in one line."""
    skipped: dict[str, list[str]] = {}
    for finding in sorted(report.findings, key=lambda found: _ORDER.index(found.status)):
        if finding.status is Status.SKIP:
            skipped.setdefault(finding.evidence, []).append(finding.id)
        else:
            _render_one(console, finding)
    for why, ids in skipped.items():
        console.print(f"{Status.SKIP:8}{why}: {', '.join(ids)}")
    counts = report.counts
    told = [counted(counts["FAIL"], "failure"), counted(counts["WARN"], "warning")]
    told += [f"{counts['UNKNOWN']} unknown", f"{counts['PASS']} passed", f"{counts['SKIP']} skipped"]
    console.print(f"{'PASS' if report.ok else 'FAIL'}  {', '.join(told)}")


def _render_one(console: Console, finding: Finding) -> None:
    console.print(f"{finding.status:8}{finding.id}  {finding.evidence}")
    if finding.remedy:
        first, *rest = finding.remedy.splitlines()
        console.print(f"        remedy: {first}")
        for line in rest:
            console.print(f"          {line}")
        console.print(f"        source: {finding.source}")
