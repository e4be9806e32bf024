"""What W4AFP8 asks of a source, from headers alone, and which plain weights become FP8 beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from truecast.checkpoint.header import TensorInfo
from truecast.errors import InputError, UsageError
from truecast.families import GENERIC
from truecast.families.base import Family, becomes_fp8
from truecast.layouts import Layout, format_of
from truecast.layouts.base import Matrix, class_of, group_size
from truecast.layouts.fp8_deepseek import BLOCK
from truecast.layouts.recognise import Contents


def quantized_anew(cast: Iterable[Matrix]) -> list[Matrix]:
    """The matrices whose groups get new scales; those that only change their dialect do not."""
    return [m for m in cast if format_of(m) != "w4afp8"]


def check_groups(family: Family, contents: Contents, cast: Sequence[Matrix]) -> None:
    """Refuse rows that do not split into groups, and experts of which engines would miss a part.

    A twin is missed where the family always has it, or, in a model of no known family, where it stands in other places
    of the same class: an MLP without a gate has none anywhere.
    Raises: InputError naming the matrix.
    """
    group = group_size("w4afp8")
    for matrix in cast:
        if matrix.cols % group:
            raise InputError(
                f"{matrix.name} has {matrix.cols} input channels, which is no multiple of {group}",
                where=matrix.where,
                fix="convert to nvfp4 (blocks of 16), or fp8, which takes any width",
            )
    names = {m.name for m in contents.matrices.values() if format_of(m) != "fp8"}
    absent: dict[str, Matrix] = {}
    for matrix in cast:
        parent, _, leaf = matrix.name.rpartition(".")
        for twins in family.twins:
            if leaf in twins:
                absent |= {f"{parent}.{t}": matrix for t in twins if f"{parent}.{t}" not in names}
    if absent and family is GENERIC:
        classes = {class_of(name.removesuffix(".weight")) for name in (*contents.matrices, *contents.plain)}
        absent = {twin: matrix for twin, matrix in absent.items() if class_of(twin) in classes}
    if absent:
        twin, matrix = next(iter(absent.items()))
        raise InputError(
            f"{matrix.name} is here without its twin {twin}: engines read both into one parameter",
            where=matrix.where,
            fix="download the checkpoint again",
        )


def becoming_fp8(family: Family, contents: Contents, layout: Layout, attention: str | None) -> list[TensorInfo]:
    """Plain BF16 weights that become FP8 blocks: what the family's engine code can take, whole blocks only.

    Engines fuse some of these modules and split the result by rows and columns, so a fused set becomes FP8 together.

    Raises: UsageError where FP8 is asked for and none can become it.
    """
    if layout.DIALECT != "sglang" or attention == "bf16":
        return []
    found: dict[str, TensorInfo] = {}
    ragged: set[str] = set()
    for tensor in contents.plain.values():
        module = tensor.name.removesuffix(".weight")
        if module == tensor.name or not becomes_fp8(family, module) or len(tensor.shape) != 2:
            continue
        found[module] = tensor
        if tensor.dtype != "BF16" or 0 in tensor.shape or tensor.shape[0] % BLOCK or tensor.shape[1] % BLOCK:
            ragged.add(module)
    for module in list(ragged):
        parent, _, leaf = module.rpartition(".")
        for members in family.fused.values():
            if leaf in members:
                ragged |= {f"{parent}.{member}" for member in members if f"{parent}.{member}" in found}
    chosen = [tensor for module, tensor in found.items() if module not in ragged]
    if attention == "fp8" and not chosen:
        raise UsageError(
            "--attention fp8: no BF16 weight of attention here can become FP8",
            fix="leave it out: q, k, v, g and o_proj become FP8 where they are whole blocks of 128 x 128",
        )
    return chosen
