"""What each rank of a server read while it loaded: by the load filter's own word, and by the kernel's count."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LINE = re.compile(
    r"\[[^\]]*?TP(\d+)[^\]]*\].*Expert load filter: read ([\d,.]+) MB, skipped ([\d,.]+) MB .*; ([\d.]+) % of ([\d,.]+) MB"
)


def filtered(log: str) -> dict[str, dict[str, float]]:
    """By rank (``TP0``): ``read``, ``skipped`` and ``experts`` in MB, and ``percent`` of the experts that was read."""
    out = {}
    for rank, read, skipped, percent, experts in _LINE.findall(log):
        numbers = (float(n.replace(",", "")) for n in (read, skipped, percent, experts))
        out[f"TP{rank}"] = dict(zip(("read", "skipped", "percent", "experts"), numbers, strict=True))
    return out


def read_calls(session: int, proc: Path = Path("/proc")) -> dict[str, int]:
    """Bytes that each scheduler process of a session took by read calls so far (``rchar``): all it read, modules too.

    What is read through a memory map is not in it.
    """
    out = {}
    for folder in proc.glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
            of = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            if of == session and (rank := re.match(r"sglang::scheduler(?:\w*_(TP\d+))?", title)):
                counted = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
                out[rank[1] or "TP0"] = int(counted["rchar"])
        except (OSError, LookupError, ValueError):
            continue  # gone meanwhile, or not ours
    return out


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown; empty where no run had several ranks."""
    lines = [
        "| run | rank | read MB | skipped MB | share of the experts | all read calls MB |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        calls, told = row.get("read_calls", {}), row.get("load_filter", {})
        for rank in sorted(calls.keys() | told.keys()) if len(calls.keys() | told.keys()) > 1 else ():
            mine = told.get(rank)
            cells = (
                [f"{mine['read']:,.1f}", f"{mine['skipped']:,.1f}", f"{mine['percent']:.2f} %"] if mine else ["-"] * 3
            )
            total = f"{calls[rank] / 1e6:,.1f}" if rank in calls else "-"
            lines.append(f"| {row['run']} | {rank} | {' | '.join(cells)} | {total} |")
    return "\n".join(lines) if len(lines) > 2 else ""
