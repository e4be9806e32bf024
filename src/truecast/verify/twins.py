"""Modules that engines fuse must share one global scale: they read only one of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from truecast.families.base import Family, twin_key
from truecast.verify.pairing import Pair
from truecast.verify.report import Failures


def group_twins(family: Family, pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Pairs of an NVFP4 output that share one global scale: fused twins, or one stored scale of a whole bank."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        view = pair.out.parts.get("global_scale")
        if view is not None:
            stacked = pair.out.main.entry is not None
            groups[view.tensor.name if stacked else twin_key(family, pair.out.name)].append(pair)
    return list(groups.values())


def watched(groups: Sequence[Sequence[Pair]], listed: Collection[str]) -> frozenset[str]:
    """Matrices that share a global scale with a listed one: together they must need it."""
    found = (members for members in groups if any(p.out.name in listed for p in members))
    return frozenset(p.out.name for members in found for p in members)


def check_need(
    groups: Sequence[Sequence[Pair]],
    listed: Collection[str],
    scales: Mapping[str, tuple[int, bool]],
    deciding: Collection[str],
    failures: Failures,
) -> None:
    """Where half blocks are inexact, the global scale must be the smallest that clips none.

    ``listed``: matrices with inexact half blocks; ``deciding``: those with a half block that a smaller one would clip.
    """
    for members in groups:
        odd = next((p for p in members if p.out.name in listed and p.out.name in scales), None)
        if odd is None or any(p.out.name in deciding for p in members):
            continue
        value = _float(scales[odd.out.name][0])
        if value != (2.0**126 if odd.out.divides else 2.0**-126):
            tensor = odd.out.parts["global_scale"].tensor
            why = f"half blocks are inexact, but the global scale {value} is larger than any half block needs"
            failures.add("inexact", why, file=tensor.file, tensor=tensor.name, row=0, column=0)


def check_twins(
    family: Family, pairs: Sequence[Pair], scales: Mapping[str, tuple[int, bool]], canonical: bool, failures: Failures
) -> list[str]:
    """Compare the global scales of fused twins in an NVFP4 output. Returns notes.

    ``scales``: matrix -> (bits of its float32 global scale, is it all zero). ``canonical``: truecast wrote the output,
    so twins cast from MXFP4 that are all zero have a global scale of 1. Twins that differ in an NVFP4 source already
    are carried over as they are, and noted.
    """
    notes = []
    for members in group_twins(family, (p for p in pairs if p.out.name in scales)):
        first = members[0]
        bits = scales[first.out.name][0]
        odd = next((p for p in members if scales[p.out.name][0] != bits), None)
        from_nvfp4 = first.source.format == "nvfp4"
        tensor = (odd or first).out.parts["global_scale"].tensor
        if odd is not None and from_nvfp4:
            notes.append(
                f"fused twins {first.out.name} and {odd.out.name} have different global scales, as in the source"
            )
        elif odd is not None:
            own = _float(scales[odd.out.name][0])
            why = f"its global scale is {own}, its fused twin {first.out.name} has {_float(bits)}"
            failures.add("twins", why, file=tensor.file, tensor=tensor.name, row=0, column=0)
        elif canonical and not from_nvfp4 and _float(bits) != 1.0 and all(scales[p.out.name][1] for p in members):
            why = f"global scale of an all-zero matrix is {_float(bits)}, should be 1.0"
            failures.add("global_scale", why, file=tensor.file, tensor=tensor.name, row=0, column=0)
    return notes


def _float(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))
