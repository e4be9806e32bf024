"""``check``: is this checkpoint sound by itself? No manifest and no source is needed, anybody's checkpoint will do.

Headers and index, how the parts of packed matrices fit together, every scale byte, the global scales across fused
modules, and the quantization config against what is stored. Faults are collected, not raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from truecast.checkpoint.pool import run_jobs
from truecast.checkpoint.source import open_checkpoint
from truecast.errors import InputError
from truecast.families import find_family
from truecast.layouts.recognise import recognise
from truecast.verify.check.code import check_code
from truecast.verify.check.config import check_config, declares_activations, find_blocks
from truecast.verify.check.exclude import check_exclude
from truecast.verify.check.files import check_banks, check_shards, header_finding, part_finding
from truecast.verify.check.findings import Collector, Finding
from truecast.verify.check.scales import (
    ScaleResult,
    check_input_scales,
    check_static_scales,
    check_twins,
    scale_jobs,
    scan_shard,
)

SCHEMA = "truecast.check/1"
BLACKWELL = 100
"""Compute capability from which engines have kernels of their own for NVFP4; below, they run it on Marlin."""
Progress = Callable[[str, int, int], None]
"""Told ``(stage, bytes just done, bytes in all)``."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What ``check`` found in one checkpoint."""

    location: str
    findings: list[Finding]
    """Errors first. A rule broken more often on one class of tensors than is listed ends with "and N more"."""
    totals: dict[str, int]
    """Id -> how often it was found, listed or not."""
    errors: int
    warnings: int
    """How many there are of each, listed or not."""
    counts: dict[str, int]
    """Tensors, matrices, shards, scales read, bytes of tensor data, bytes read."""
    layouts: list[str]
    family: str

    @property
    def ok(self) -> bool:
        """No error; warnings do not count."""
        return not self.errors

    def document(self) -> dict[str, Any]:
        """The report as one JSON document."""
        return {
            "schema": SCHEMA,
            "location": self.location,
            "ok": self.ok,
            "family": self.family,
            "layouts": self.layouts,
            "counts": self.counts,
            "errors": self.errors,
            "warnings": self.warnings,
            "totals": self.totals,
            "findings": [finding.document() for finding in self.findings],
        }


def check(
    location: str | os.PathLike[str],
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    capability: int | None = None,
) -> CheckReport:
    """Judge a folder, a ``.safetensors`` file or an fsspec URL.

    ``capability`` is that of the GPU it is to be served on (90 is Hopper, 100 Blackwell): what is read wrong there is an
    error, where it is a warning for a checkpoint by itself.
    ``progress`` is told bytes of block scales as they are done; ``jobs`` processes scan one shard each.
    Raises: InputError if there is no checkpoint at all, or if a file cannot be read.
    """
    found = Collector()

    unread: list[InputError] = []

    def header_fault(error: InputError) -> None:
        unread.append(error)
        header_finding(found, os.fspath(location), error)

    def part_fault(error: InputError) -> None:
        part_finding(found, checkpoint.tensors, error)

    checkpoint = open_checkpoint(location, header_fault)
    check_shards(found, checkpoint)
    check_code(found, checkpoint)
    contents = recognise(checkpoint.tensors, part_fault)
    family = find_family(checkpoint.config, checkpoint.tensors)
    plain_experts = [n.removesuffix(".weight") for n in contents.plain if n.endswith(".weight")]
    check_banks(found, contents.matrices.values(), plain_experts)

    result = ScaleResult()
    parts = scale_jobs(checkpoint.opener, contents.matrices.values())
    total = sum(part.scale_bytes for part in parts)
    for scanned, part in run_jobs(scan_shard, parts, jobs):
        result.merge(scanned)
        if progress:
            progress("scales", part.scale_bytes, total)
    found.merge(result.found)
    if capability is not None and capability < BLACKWELL and _activations(checkpoint.config) != "float16":
        found.make_error("scale-subnormal")
    check_twins(found, family, contents.matrices, result.global_scales)

    blocks = find_blocks(found, checkpoint)
    check_config(found, checkpoint, blocks, contents.layouts)
    check_input_scales(found, contents.matrices, declares_activations(blocks.chosen))
    check_static_scales(found, contents.matrices)
    if blocks.chosen is not None:
        check_exclude(found, family, blocks.chosen, blocks.file, contents)
    if unread:  # then a pattern that seems to match nothing may match what could not be read
        found.drop("exclude-matches-nothing")
    return CheckReport(
        location=checkpoint.location,
        findings=found.findings(),
        totals=found.totals(),
        errors=sum(found.totals("error").values()),
        warnings=sum(found.totals("warning").values()),
        counts={
            "shards": len(checkpoint.shards),
            "tensors": len(checkpoint.tensors),
            "matrices": len(contents.matrices),
            "scales": result.scales,
            "bytes": checkpoint.total_bytes,
            "bytes_read": result.bytes_read,
        },
        layouts=sorted(contents.layouts),
        family=family.name,
    )


def _activations(config: Mapping[str, Any]) -> str:
    """The type in which config.json wants activations; engines take BF16 where it says nothing."""
    text = config.get("text_config")
    for part in (text if isinstance(text, Mapping) else {}, config):
        for key in ("dtype", "torch_dtype"):
            if isinstance(said := part.get(key), str):
                return said.removeprefix("torch.")
    return "bfloat16"
