"""The comparison of ``plan --hardware`` as text, at most 120 columns wide; faults as numbered notes below it."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from truecast.cli.output import gigabytes

WIDTH = 120
"""Columns that the table and its notes stay within, long names and paths aside."""

HOPPER = 90


class _Notes:
    """Texts numbered in the order in which they first occur."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, texts: Iterable[str]) -> str:
        """References to these texts."""
        return " ".join(
            f"[{n}]" for n in sorted(self.numbers.setdefault(text, len(self.numbers) + 1) for text in texts)
        )


def render(console: Console, document: Mapping[str, Any]) -> None:
    """Print the document of :func:`truecast.cli.hardware.compare`."""
    forms, notes = document["forms"], _Notes()
    attention = {tuple(form["legal"]["dense"]) for form in forms if not form["not_possible"]}
    _print_model(console, document, attention)
    rows = [("form", "weight error", "bytes", "GPUs", "on each", "as TP x EP"), *(_head(form) for form in forms)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    routes = [route for form in forms for route in form.get("routes", ())]
    columns = [
        max((len(r.get(key) or "") for r in routes), default=0)
        for key in ("engine", "kernel", "activations", "verdict")
    ]
    console.print(_line(rows[0], widths))
    for form, row in zip(forms, rows[1:], strict=True):
        console.print("\n" + _line(row, widths))
        if form["not_possible"]:
            _print_wrapped(console, f"not possible: {form['not_possible']}", "    ")
            continue
        _print_wrapped(console, _sizes(form["legal"], with_attention=len(attention) > 1), "    ")
        if form["gpus"] is None:
            _print_wrapped(console, "fits on no power of two of these GPUs over which it may be split", "    ")
        for route in form["routes"]:
            console.print("    " + _route(route, columns, notes))
    console.print("")
    for line in _statements(document):
        _print_wrapped(console, line, "")
    if notes.numbers:
        console.print("\nnotes")
    for text, number in notes.numbers.items():
        _print_wrapped(console, text, f"{f'[{number}]':>5} ")


def _print_model(console: Console, document: Mapping[str, Any], attention: Collection[Sequence[int]]) -> None:
    """What all forms have in common."""
    gpu, share = document["gpu"], document["weight_share"]
    room = gigabytes(int(share * gpu["memory"]))
    function = document["activation"] or "an unnamed activation"
    console.print(f"source    {document['source']}")
    console.print(f"family    {document['family']}, experts compute {function}")
    console.print(f"gpu       {gpu['title']}, {gpu['host']} host; weights may take {share:.0%}: {room}")
    if len(attention) == 1:
        console.print(f"attention may be split over {' '.join(map(str, *attention))} GPUs")
    console.print("")


def _head(form: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"{form['format']} {form['dialect'] or ''}".rstrip() if form["format"] != "bf16" else "bf16"
    if form["not_possible"]:
        return name, "-", "-", "-", "-", "-"
    split, each = form["split"], form["bytes_per_gpu"]
    return (
        name + (", as it is" if form["as_it_is"] else ""),
        _error(form["weight_error"]),
        gigabytes(form["bytes"]),
        str(form["gpus"] or "none"),
        "-" if each is None else gigabytes(each),
        "-" if split is None else f"{split['tp']} x {split['ep']}",
    )


def _error(error: Mapping[str, Any]) -> str:
    match error["kind"]:
        case "none":
            return "0"
        case "if-exact":
            return "0 if exact (--scan)"
        case "scanned":
            lossy = error["inexact_matrices"]
            return f"NOT 0 in {lossy:,} of {error['matrices']:,}" if lossy else "0, all scanned"
    return _figure(error["experts"])


def _figure(found: Mapping[str, Any]) -> str:
    relative, spread, decibels = found["relative"], found["standard_error"], found["sqnr_db"]
    if relative is None:
        return "unknown: only zeros"
    if decibels is None:
        return "0 in the sample"
    error = "" if spread is None else f" ±{100 * spread:.1g}%"
    return f"{relative:.2%}{error} ({decibels:.2f} dB)"


def _sizes(legal: Mapping[str, Sequence[int]], *, with_attention: bool) -> str:
    free = legal["unpadded"]
    costly = [size for size in legal["tp"] if size not in free]
    tp = [" ".join(map(str, free))] if free else []
    tp += ["at a cost " + " ".join(map(str, costly))] if costly else []
    parts = [f"TP {', '.join(tp) or 'none'}", f"EP {' '.join(map(str, legal['ep']))}"]
    if with_attention:
        parts.append(f"attention over {' '.join(map(str, legal['dense']))}")
    return "; ".join(parts)


def _route(route: Mapping[str, Any], columns: Sequence[int], notes: _Notes) -> str:
    if route["engine"] is None:
        return f"no kernel {notes.mark(fault['text'] for fault in route['faults'])}"
    cells = [route["engine"], route["kernel"], route["activations"], route["verdict"]]
    texts = [fault["text"] for fault in route["faults"]]
    if route["weights"] != "as stored":
        texts.append(f"weights: {route['weights']}")
    if route["options"]:
        texts.append(f"started with {route['options']}")
    return f"{_line(cells, columns, left=True)}  {notes.mark(texts)}".rstrip()


def _line(cells: Sequence[str], widths: Sequence[int], left: bool = False) -> str:
    """Cells side by side: the first two, or all, to the left, numbers to the right."""
    padded = (
        cell.ljust(width) if left or i < 2 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def _statements(document: Mapping[str, Any]) -> list[str]:
    """What the table does not say by itself."""
    lines = [
        "GPUs: the least power of two on which the weights fit and may be split. TP splits every expert, EP divides the"
        " experts of a layer, attention is split over all GPUs. 'At a cost': kernels pad a rank's part, or read its scales"
        " in smaller tiles. Nodes, and the network between them, are not looked at.",
        "Each kernel: the activations that it multiplies the weights by, and what comes of it, as read in its source (nothing"
        " was run): no fault known; not established; stops; wrong result. The notes say why.",
    ]
    forms = [form for form in document["forms"] if not form["not_possible"]]
    if any("SGLang" in (r["engine"] or "") and r["faults"] for form in forms for r in form["routes"]):
        lines.append(
            "SGLang is looked at as it was released. truecast's plug-in mends some of these faults (docs/sglang.md); with"
            " it beside SGLang, `truecast launch` and `truecast doctor` say what is left on given nodes."
        )
    sampled = [form["weight_error"] for form in forms if form["weight_error"]["kind"] == "sampled"]
    if sampled:
        lines += _samples(sampled)
    if document["gpu"]["capability"] == HOPPER and {form["format"] for form in forms} & {"mxfp4", "nvfp4"}:
        lines.append(
            "NVFP4 and MXFP4 on Marlin are W4A16: 4-bit in memory, BF16 arithmetic, no FP4 throughput. On Hopper the"
            " original MXFP4 with FP8 activations has no weight error where each expert's scales fit the kernel's window."
        )
    return lines


def _samples(errors: Sequence[Mapping[str, Any]]) -> list[str]:
    experts = errors[0]["experts"]
    if experts["relative"] is None:
        return [f"w4afp8's error is not known: the sample, {_counted(experts)}, holds only zeros."]
    lines = [
        f"w4afp8's error is measured: {_counted(experts)}, drawn evenly over {experts['classes']} classes and their"
        " layers, whole or in strips of rows. Relative RMS error against the source, ± one standard error with the"
        " matrix as the unit."
    ]
    if attention := next((e["attention"] for e in errors if e["attention"]), None):
        lines.append(f"Attention in FP8 blocks beside it: {_figure(attention)} against BF16; {_counted(attention)}.")
    return lines


def _counted(found: Mapping[str, Any]) -> str:
    return f"{found['matrices']:,} of {found['population']:,} matrices, {gigabytes(found['data_bytes'])}"


def _print_wrapped(console: Console, text: str, first: str) -> None:
    for line in textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    ):
        console.print(line)
