"""From headers alone: what will be written, byte for byte of layout, and what becomes of every source tensor."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from truecast.checkpoint.source import Checkpoint
from truecast.convert.calibrated import scale_origins
from truecast.convert.importance import Importance
from truecast.convert.int4_plan import quantized_anew
from truecast.convert.parts import Cast
from truecast.convert.place import ShardPlan, place
from truecast.convert.select import Selection, Target, select
from truecast.families import Family
from truecast.families.base import twin_key
from truecast.layouts import Layout, format_of
from truecast.layouts.base import Matrix, OutTensor, class_of
from truecast.layouts.calibration import Calibration
from truecast.layouts.recognise import Contents


@dataclass(frozen=True, slots=True)
class Plan(Selection):
    """Everything that a conversion will do. Pure: the same source headers and target give the same plan."""

    shards: list[ShardPlan]
    twin_groups: list[list[Matrix]]
    """Cast matrices that must share one global scale; every cast matrix is in exactly one group."""
    dropped: dict[str, str]
    """Source tensor -> why it is not carried over."""
    notes: list[str]

    @property
    def out_bytes(self) -> int:
        """Size of all output shards in bytes, headers included."""
        return sum(self.shard_bytes(s) for s in self.shards)

    def shard_bytes(self, shard: ShardPlan) -> int:
        """Size of one output shard in bytes."""
        return self.source.shards[shard.verbatim] if shard.verbatim else len(shard.header) + shard.data_bytes

    def cast_settings(self, device: str = "cpu") -> Cast:
        """What a worker has to know of the target."""
        layout = self.layout
        return Cast(
            layout.FORMAT,
            layout.DIALECT,
            layout.STACKED,
            self.target.method,
            importance=self.importance,
            calibration=self.calibration,
            rounding=self.rounding,
            device=device,
        )

    @property
    def unit(self) -> str:
        """What a scan counts where exactness is lost."""
        return "half blocks" if self.layout.FORMAT == "nvfp4" else "elements"

    def options(self) -> dict[str, str]:
        """The target's options as a user would write them, defaults resolved: to say in what two runs differ."""
        target, importance = self.target, self.importance
        named = {
            "--to": self.layout.FORMAT,
            "--dialect": self.layout.DIALECT,
            "--activations": "nvfp4" if self.activations else "none",
            "--inexact": "allow" if target.allow_inexact else "error",
            "--no-fix-code": "not given" if target.fix_code else "given",
            "--max-shard-size": f"{target.max_shard_bytes} bytes" if target.max_shard_bytes else "none",
        }
        if self.layout.FORMAT == "w4afp8":
            named |= {
                "--method": target.method,
                "--weights": _file(importance),
                "--calibration": _file(self.calibration),
                "--rounding": self.rounding,
                "--attention": "fp8" if self.fp8 else "bf16",
            }
        return named

    def digest(self) -> str:
        """sha256 over the target's options and every output header: what the journal compares."""
        options = [self.layout.NAME, self.activations, self.target.allow_inexact]  # defaults resolved: however spelt
        if self.layout.FORMAT == "w4afp8":
            options += [self.target.method, self.importance.sha256 if self.importance else None]
            if self.calibration is not None:
                options += [self.calibration.sha256, self.rounding]
        if not self.target.fix_code:
            options.append("no-fix-code")
        digest = hashlib.sha256(json.dumps(options).encode())
        for shard in self.shards:
            digest.update(shard.file.encode() + b"\0")
            digest.update(self.source.header_sha256[shard.verbatim].encode() if shard.verbatim else shard.header)
        return digest.hexdigest()


def plan(source: Checkpoint, target: Target, contents: Contents | None = None) -> Plan:
    """Plan a conversion from the source's headers; arguments and errors are those of :func:`select`."""
    chosen = select(source, target, contents)
    layout, family = chosen.layout, chosen.family
    emitted = list(layout.emit(chosen.cast, chosen.activations))
    shards = place(chosen, emitted)
    note = family.engine_notes.get((layout.FORMAT, layout.DIALECT))
    if layout.FORMAT == "mxfp4" and family.dialect not in (None, layout.DIALECT):
        note = f"no engine is known to read {family.name} in this dialect; its own is {family.dialect}"
    notes = [note] if note else []
    if layout.FORMAT == "w4afp8" and "1.0" in scale_origins(emitted, chosen.calibration):
        notes.append("activation scales of 1.0 saturate at 448; --calibration FILE takes measured ones")
    if layout.FORMAT in ("nvfp4", "mxfp4"):
        fp8_kept = sum(format_of(m) == "fp8" for m in chosen.kept)
        if fp8_kept:
            notes.append(f"{fp8_kept:,} FP8 modules stay as they are, and this dialect's config has no words for them")
    return Plan(
        **{field.name: getattr(chosen, field.name) for field in fields(chosen)},
        shards=shards,
        twin_groups=_twin_groups(family, chosen.cast, emitted),
        dropped=_dropped(chosen.cast, emitted, layout),
        notes=notes,
    )


def _file(given: Importance | Calibration | None) -> str:
    return f"{given.path.name} (sha256 {given.sha256[:12]})" if given else "none"


def _dropped(cast: Sequence[Matrix], emitted: Sequence[OutTensor], layout: Layout) -> dict[str, str]:
    """Activation scales of matrices that are written without any."""
    scaled = {m.name for t in emitted if t.role == "input_scale" for piece in t.pieces for m in piece}
    why = "activation scale"
    if layout.FORMAT == "nvfp4":
        why += ": the target is weight-only"
    elif layout.FORMAT in ("w4afp8", "fp8"):
        why += ": the target finds its own at run time"
    return {m.input_scale.tensor.name: why for m in cast if m.input_scale is not None and m.name not in scaled}


def _twin_groups(family: Family, cast: Sequence[Matrix], emitted: Sequence[OutTensor]) -> list[list[Matrix]]:
    """Join what must share a global scale: fused twins, and the matrices under one stored global scale."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while (up := parent.setdefault(key, key)) != key:
            parent[key] = key = parent[up]
        return key

    keys = {m.name: twin_key(family, m.name) for m in cast}
    for tensor in emitted:
        if tensor.role == "global_scale":
            first = root(keys[tensor.pieces[0][0].name])
            for piece in tensor.pieces:
                for matrix in piece:
                    parent[root(keys[matrix.name])] = first
    groups: dict[str, list[Matrix]] = defaultdict(list)
    for matrix in cast:
        groups[root(keys[matrix.name])].append(matrix)
    return list(groups.values())


def summary(plan: Plan) -> Mapping[str, Any]:
    """The plan as a JSON-ready document: classes, bytes, what is kept and dropped."""
    classes: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    cast = {m.name for m in plan.cast}
    for matrix in plan.contents.matrices.values():
        key = class_of(matrix.name)
        classes[key] += 1
        elements[key] += matrix.rows * matrix.cols
    becomes = {class_of(m): plan.layout.NAME for m in cast}
    fp8 = {t.name for t in plan.fp8}
    layouts = {class_of(m.name): m.layout for m in plan.contents.matrices.values()}
    plain: dict[str, dict[str, Any]] = {}
    recast: dict[str, dict[str, Any]] = {}
    for tensor in plan.contents.plain.values():
        rows = recast if tensor.name in fp8 else plain
        row = rows.setdefault(class_of(tensor.name), {"dtype": tensor.dtype, "tensors": 0, "bytes": 0})
        row["tensors"] += 1
        row["bytes"] += tensor.nbytes
    return {
        "family": plan.family.name,
        "target": plan.layout.NAME,
        "activations": plan.activations,
        "source_tensors": len(plan.source.tensors),
        "source_bytes": sum(plan.source.shards.values()),
        "out_tensors": sum(len(s.tensors) for s in plan.shards),
        "out_bytes": plan.out_bytes,
        "shards": len(plan.shards),
        "verbatim_shards": sum(s.verbatim is not None for s in plan.shards),
        "twin_groups": len(plan.twin_groups),
        "classes": [
            {
                "class": key,
                "matrices": classes[key],
                "elements": elements[key],
                "from": layouts[key],
                "to": becomes.get(key, layouts[key]),
            }
            for key in sorted(classes)
        ],
        "plain": [{"class": key, **plain[key]} for key in sorted(plain)],
        "fp8": [{"class": key, **recast[key]} for key in sorted(recast)],
        "quantized": len(quantized_anew(plan.cast)) if plan.layout.FORMAT == "w4afp8" else 0,
        "dropped": len(plan.dropped),
        "notes": plan.notes,
    }
