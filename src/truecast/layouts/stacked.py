"""Banks: the experts of one layer stacked along the first axis, gate and up interleaved row by row.

gpt-oss stores its experts so, and what is cast from it keeps that order. Seen as matrices, one module per expert:
``<bank>.<e>.gate_proj``, ``.up_proj``, ``.down_proj``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from truecast.checkpoint.header import BITS, TensorInfo
from truecast.errors import InputError
from truecast.layouts.base import Matrix, View

MEMBERS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Stacked projection -> the matrices interleaved in its rows: gate in the even rows, up in the odd ones."""

_SPELLINGS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def unstack(
    layout: str,
    stem: str,
    rows: int,
    cols: int,
    codes: TensorInfo,
    scale: TensorInfo,
    bias: TensorInfo | None,
    transposed: bool = False,
    global_scale: TensorInfo | None = None,
    input_scale: TensorInfo | None = None,
) -> list[Matrix]:
    """The matrices of a stacked projection ``<bank>.<projection>`` of ``rows`` interleaved rows and ``cols`` columns.

    ``codes`` and ``scale`` are stacks, ``transposed`` where they lie ``[in, out]``; the bank has one global scale and
    one input scale at the most.
    """
    bank, _, projection = stem.rpartition(".")
    names = MEMBERS[projection]
    step = len(names)
    return [
        Matrix(
            name=f"{bank}.{expert}.{name}",
            layout=layout,
            rows=rows // step,
            cols=cols,
            codes=View(codes, expert, start, step, transposed),
            scale=View(scale, expert, start, step, transposed),
            global_scale=View(global_scale) if global_scale is not None else None,
            input_scale=View(input_scale) if input_scale is not None else None,
            bias=View(bias, expert, start, step) if bias is not None else None,
        )
        for expert in range(codes.shape[0])
        for start, name in enumerate(names)
    ]


def is_stacked_bias(bias: TensorInfo, experts: int, rows: int) -> bool:
    """Can this tensor be the biases of a stacked projection? Shape ``[E, rows]``, whole bytes an element."""
    return bias.shape == (experts, rows) and BITS[bias.dtype] >= 8


def stack_experts(matrices: Sequence[Matrix]) -> Iterator[tuple[str, str, tuple[tuple[Matrix, ...], ...]]]:
    """Sort per-expert matrices into banks: ``(bank, gate_up_proj | down_proj, one piece per expert)``.

    A piece is ``(gate, up)`` or ``(down,)``. Raises: InputError where a bank is no full, even stack.
    """
    banks: dict[str, dict[int, dict[str, Matrix]]] = defaultdict(lambda: defaultdict(dict))
    for matrix in matrices:
        parent, _, leaf = matrix.name.rpartition(".")
        bank, _, expert = parent.rpartition(".")
        leaf = _SPELLINGS.get(leaf, leaf)
        numbered = expert.isdecimal() and len(expert) < 10 and str(int(expert)) == expert
        if not numbered or leaf not in ("gate_proj", "up_proj", "down_proj"):
            raise InputError("is no expert's gate, up or down projection and cannot be stacked", where=matrix.where)
        if leaf in banks[bank][int(expert)]:
            raise InputError(f"{bank}.{expert} has its {leaf} twice and cannot be stacked", where=matrix.where)
        banks[bank][int(expert)][leaf] = matrix
    for bank, experts in banks.items():
        for projection, leaves in MEMBERS.items():
            try:
                pieces = tuple(tuple(experts[e][leaf] for leaf in leaves) for e in range(len(experts)))
            except KeyError as missing:
                raise InputError(f"the stack lacks {missing.args[0]}", where=f"{bank}.{projection}") from None
            shapes = {(m.rows, m.cols, m.bias and m.bias.tensor.dtype) for piece in pieces for m in piece}
            if len(shapes) > 1:
                raise InputError(
                    f"experts differ in shape or bias: {sorted(map(str, shapes))}", where=f"{bank}.{projection}"
                )
            yield bank, projection, pieces
