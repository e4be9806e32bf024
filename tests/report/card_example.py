"""A small converted checkpoint and one record of every kind about it, made by the program's own functions."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.shaped import kimi_k3
from tests.evals import records as evals
from tests.report.audit_example import example as audit_document
from truecast.audit.side_by_side import side_by_side
from truecast.bench.compare import compare_benches, parse_bench
from truecast.bench.server import Server
from truecast.bench.spread import interval_over_runs
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert
from truecast.evals.compare import compare_evals
from truecast.evals.record import parse_record
from truecast.evals.scores import scores
from truecast.report.card import Record, render_card
from truecast.serve.launch.plan import plan_launch
from truecast.serve.stored_model import stored_model
from truecast.serve.topology import read_topology
from truecast.verify import verify

Document = dict[str, Any]
NATIVE = "native MXFP4"
README = """---
license: other
license_name: small-licence
license_link: LICENSE
base_model: some-lab/Small-K3
pipeline_tag: text-generation
---
"""


def convert_small(folder: Path) -> Path:
    """``folder/out``: a Kimi-K3 of two layers as W4AFP8, from ``folder/source``."""
    source = folder / "source"
    kimi_k3.make(source, shape=kimi_k3.K3Shape(layers=2, experts=2, expert_width=128))
    (source / "README.md").write_text(README)
    convert(source, folder / "out", Target("w4afp8"), card=render_card)
    return folder / "out"


def documents(out: Path) -> dict[str, Document]:
    """File name -> record: of this checkpoint, and of ``native`` where the name says so."""
    rng = np.random.default_rng(5)
    found: dict[str, Document] = {
        "verify": {"schema": "truecast.verify/1", **verify(out.parent / "source", out).document()}
    }
    for side, speed in (("", 34.1), (".native", 29.6)):
        found[f"bench{side}"] = load(speed, "native" if side else "cast")
        found[f"eval{side}"] = answers(rng, "native" if side else "cast")
    found["audit"] = audit(out)
    found["audit.native"] = audit(out, candidate={"location": "/models/native", "fingerprint": "77" * 32})
    found["compare.eval"] = {
        "schema": "truecast.compare/1",
        **compare_evals(*(parse_record(found[n], n) for n in ("eval.native", "eval"))),
    }
    found["compare.bench"] = {
        "schema": "truecast.compare/1",
        **compare_benches(*(parse_bench(found[n], n) for n in ("bench.native", "bench"))),
    }
    pair = found["audit.native"], found["audit"]
    found["compare.audit"] = {"schema": "truecast.compare/1", **side_by_side(*pair, (Path("a.json"), Path("b.json")))}
    plan = plan_launch(stored_model(open_checkpoint(out)), read_topology("h200:1x1"))
    found["launch"] = {"schema": "truecast.launch/1", **plan.document()}
    return json.loads(json.dumps(found))  # as read from files


def load(speed: float, model: str, levels: Sequence[int] = (20, 50)) -> Document:
    """A load test at two concurrencies with two runs each."""
    server = Server(
        "http://10.1.2.3:30000", f"/models/{model}", 4096, "sglang", "0.5.20", {"tp_size": 4, "gpu": "H200"}
    )
    document: Document = {
        "schema": "truecast.bench/1",
        "truecast": "0.1.0",
        "command": ["truecast", "bench", server.url, "--prompts", "/data/aime.jsonl", "--out", "/runs/b1"],
        "date": "2026-11-30T11:00:00+00:00",
        "complete": True,
        "sound": True,
        "server": server.document(),
        "prompts": {"file": f"{model}.jsonl", "sha256": "5e" * 32, "prompts": 60, "distinct": 59},
        "sampling": {"temperature": 0.6},
        "requests": None,
        "duration": 600.0,
        "replicas": 1,
        "definitions": {},
        "levels": [],
    }
    for concurrency in levels:
        speeds = [speed * 30 / (10 + concurrency) * factor for factor in (1, 1.01)]
        runs = [
            {"figures": {"stream": v, "aggregate": 30 * v, "ttft": 8 / v}, "cache": {"before": "flushed"}}
            for v in speeds
        ]
        level: Document = {
            "concurrency": concurrency,
            "runs": runs,
            "faults": [],
            "remarks": [],
            "acceptance_length": None,
        }
        level["figures"] = {name: over_runs([run["figures"][name] for run in runs]) for name in runs[0]["figures"]}
        document["levels"].append(level)
    return document


def over_runs(values: list[float]) -> Document:
    """A figure over its runs."""
    return {"value": float(np.mean(values)), "runs": values, "interval_over_runs": interval_over_runs(values)}


def answers(rng: np.random.Generator, model: str) -> Document:
    """An eval of 40 problems with two answers each, some cut off, one failed."""
    drawn = [[{**evals.sample(bool(rng.random() < 0.8)), "most": 700} for _ in range(2)] for _ in range(40)]
    drawn[3][0] |= {"truncated": True, "correct": False}
    drawn[5][1]["error"] = "connection reset"
    document = evals.document(drawn, server={"engine": "sglang", "version": "0.5.20", "model": model})
    return {
        **document,
        "command": ["truecast", "eval", "http://10.1.2.3:30000", "--task", "aime"],
        "scores": scores(document["problems"], 65536),
    }


def audit(out: Path, **changes: Any) -> Document:
    """An exact audit of the checkpoint against its source."""
    sides = {
        key: {"location": f"/work/{key}", "fingerprint": open_checkpoint(path).fingerprint()}
        for key, path in (("reference", out.parent / "source"), ("candidate", out))
    }
    return {**audit_document(documents=12), **sides, **changes}


def records(out: Path, made: dict[str, Document]) -> list[Record]:
    """The manifest and all records, as the command would give them."""
    raw = (out / "truecast.json").read_bytes()
    sha = hashlib.sha256(raw).hexdigest()
    found = [Record("manifest", "truecast.json", str(out / "truecast.json"), json.loads(raw), sha)]
    for name, document in made.items():
        label = NATIVE if name.endswith(".native") else ""
        found.append(Record(name.partition(".")[0], f"records/{name}.json", f"{name}.json", document, "ab" * 32, label))
    return found


def changed(document: Document, change: Callable[[Document], Any]) -> Document:
    """A copy with something changed."""
    made = copy.deepcopy(document)
    change(made)
    return made
