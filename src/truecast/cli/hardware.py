"""``plan --hardware``: every form that the model could take, and what serving it on one kind of GPU would mean."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from truecast.checkpoint.source import Checkpoint
from truecast.cli.output import Report
from truecast.cli.target import target_of
from truecast.convert import Target, plan, scan
from truecast.convert.int4_plan import quantized_anew
from truecast.convert.sample import Estimate, fp8_error, int4_error
from truecast.convert.scan import scan_bytes
from truecast.convert.select import Selection, select, target_layout
from truecast.errors import InputError, UsageError
from truecast.families import find_family
from truecast.layouts import LAYOUTS, Layout, format_of
from truecast.layouts.recognise import Contents, recognise
from truecast.serve import Candidate, Choice, Gpu, Module, choices, legal_parallel, weights_of
from truecast.serve.choice import WEIGHT_SHARE

FORMS = (
    ("mxfp4", "compressed-tensors"),
    ("nvfp4", "modelopt"),
    ("w4afp8", "sglang"),
    ("w4afp8", "compressed-tensors"),
    ("fp8", "deepseek"),
    ("bf16", "bf16"),
)
"""Format and dialect of every target, each in dialects that engines read; what the source is stays in its own."""


def compare(source: Checkpoint, gpu: Gpu, args: argparse.Namespace, report: Report | None = None) -> dict[str, Any]:
    """The comparison as a JSON-ready document; what cannot be made from this source is told in its place.

    Reads headers, for W4AFP8 a sample, and with ``--scan`` what decides whether the other targets are exact.
    Raises: UsageError for a target that does not exist; InputError for a source that is faulty or holds no quantized
    matrix.
    """
    contents = recognise(source.tensors)
    if not contents.matrices:
        raise InputError("holds no quantized matrix: nothing to compare", where=source.location)
    comparison = _Comparison(source, contents, gpu, args, report)
    return {
        "source": source.location,
        "family": comparison.family,
        "activation": comparison.function,
        "gpu": asdict(gpu),
        "weight_share": WEIGHT_SHARE,
        "forms": [comparison.as_it_is() if t is None else comparison.made(t) for t in comparison.targets()],
    }


class _Comparison:
    """What all forms of one model share."""

    def __init__(
        self, source: Checkpoint, contents: Contents, gpu: Gpu, args: argparse.Namespace, report: Report | None
    ) -> None:
        self.source, self.contents, self.gpu, self.args, self.report = source, contents, gpu, args, report
        self.family = find_family(source.config, source.tensors).name
        function, heads = (_stated(source, key) for key in ("hidden_act", "num_attention_heads"))
        self.function = function if isinstance(function, str) else None
        self.heads = heads if isinstance(heads, int) and heads > 0 else None
        elements = Counter[str]()  # FP8 modules beside packed ones are not the form of the model, however many
        packed = [m for m in contents.matrices.values() if format_of(m) != "fp8"]
        for matrix in packed or contents.matrices.values():
            elements[matrix.layout] += matrix.rows * matrix.cols
        self.stored: Layout = LAYOUTS[elements.most_common(1)[0][0]]
        self.int4: Estimate | None = None

    def targets(self) -> Iterator[Target | None]:
        """What to look at; None: the source as it is."""
        args, stored = self.args, self.stored
        if args.to is None:
            _refuse_options(args)
        given = target_of(args) if args.to else Target("")
        if args.to and (args.dialect or args.to != stored.FORMAT):
            target_layout(self.contents, given)
        if args.to in (None, stored.FORMAT) and args.dialect in (None, stored.DIALECT):
            yield None
        if args.dialect and (args.to, args.dialect) != (stored.FORMAT, stored.DIALECT):
            yield given
        elif not args.dialect:
            for form, dialect in FORMS:
                own = form == stored.FORMAT and (form == "mxfp4" or dialect == stored.DIALECT)
                if args.to in (None, form) and not own:
                    yield replace(given, format=form, dialect=dialect)

    def as_it_is(self) -> dict[str, Any]:
        """The source's own form."""
        modules = (Module(m.name, m.rows, m.cols, format_of(m)) for m in self.contents.matrices.values())
        tensors = ((t.name, t.shape, t.nbytes) for t in self.source.tensors.values())
        return self._form(self.stored, modules, tensors, {"kind": "none"}, as_it_is=True)

    def made(self, target: Target) -> dict[str, Any]:
        """The form that a conversion would make."""
        try:
            chosen = select(self.source, target, self.contents)
        except (InputError, UsageError) as error:  # the source itself was found sound: it does not suit this target
            return {"format": target.format, "dialect": target.dialect, "as_it_is": False, "not_possible": str(error)}
        modules = [Module(m.name, m.rows, m.cols, chosen.layout.FORMAT) for m in chosen.cast]
        modules += [Module(m.name, m.rows, m.cols, format_of(m)) for m in chosen.kept]
        modules += [Module(t.name.removesuffix(".weight"), t.shape[0], t.shape[1], "fp8") for t in chosen.fp8]
        return self._form(chosen.layout, modules, chosen.written(), self._error(chosen))

    def _form(
        self, layout: Layout, modules: Any, tensors: Any, error: dict[str, Any], *, as_it_is: bool = False
    ) -> dict[str, Any]:
        parallel = legal_parallel(modules, layout.FORMAT, layout.DIALECT, self.heads)
        candidate = Candidate(layout.FORMAT, layout.DIALECT, weights_of(tensors, self.family), parallel)
        found = choices([candidate], self.gpu, family=self.family, function=self.function)
        first = found[0]
        return {
            "format": layout.FORMAT,
            "dialect": layout.DIALECT,
            "as_it_is": as_it_is,
            "not_possible": None,
            "weight_error": error,
            "bytes": candidate.weights.total,
            "gpus": first.gpus,
            "bytes_per_gpu": first.bytes_per_gpu,
            "split": None if first.split is None else {"tp": first.split[0], "ep": first.split[1]},
            "legal": asdict(parallel),
            "routes": [_route(choice) for choice in found],
        }

    def _error(self, chosen: Selection) -> dict[str, Any]:
        if chosen.layout.FORMAT == "w4afp8" and quantized_anew(chosen.cast):
            self.int4 = self.int4 or int4_error(chosen)
            attention = fp8_error(chosen)
            return {
                "kind": "sampled",
                "experts": _estimate(self.int4),
                "attention": None if attention is None else _estimate(attention),
            }
        if not self.args.scan:
            return {"kind": "if-exact"}
        work, report = plan(self.source, chosen.target, self.contents), self.report
        total, stage = scan_bytes(work), f"scan {work.layout.NAME}"
        found = scan(work, self.args.jobs, (lambda n: report(stage, n, total)) if report else None)
        return {"kind": "scanned", "matrices": len(work.cast), "inexact_matrices": len(found.inexact_matrices)}


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {**asdict(found), "sqnr_db": found.sqnr_db, "sqnr_standard_error_db": found.sqnr_standard_error_db}


def _route(choice: Choice) -> dict[str, Any]:
    route = choice.route
    verdicts = {"verdict": choice.verdict, "verdict_with_plugin": choice.verdict_with_plugin}
    said = {**verdicts, "faults": [asdict(fault) for fault in choice.faults]}
    if route is None:
        return {"engine": None, **said}
    named = {key: getattr(route, key) for key in ("engine", "kernel", "activations", "weights", "options")}
    return {**named, **said}


def _stated(source: Checkpoint, key: str) -> object:
    """A value of config.json, at the top or in its text model."""
    text = source.config.get("text_config")
    return source.config.get(key, text.get(key) if isinstance(text, dict) else None)


def _refuse_options(args: argparse.Namespace) -> None:
    """Options of one target say nothing where all are compared."""
    for option, given in (
        ("--dialect", args.dialect is not None),
        ("--activations", args.activations is not None),
        ("--method", args.method != "exact"),
        ("--weights", args.weights is not None),
        ("--attention", args.attention is not None),
        ("--calibration", args.calibration is not None),
        ("--rounding", args.rounding is not None),
    ):
        if given:
            raise UsageError(f"{option} makes no sense without --to")
