"""What is asked for, and what becomes of every matrix and every plain tensor: from headers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from truecast.checkpoint.header import TensorInfo, nbytes_of
from truecast.checkpoint.source import Checkpoint
from truecast.convert.calibrated import ROUNDINGS, open_for
from truecast.convert.importance import Importance, open_importance
from truecast.convert.int4_plan import becoming_fp8, check_groups, quantized_anew
from truecast.errors import InputError, UsageError
from truecast.families import Family, find_family
from truecast.families.base import is_kept
from truecast.layouts import Layout, dialects, find_layout, format_of, fp8_deepseek, nvfp4_modelopt
from truecast.layouts.base import Matrix
from truecast.layouts.calibration import HESSIAN, Calibration, open_calibration
from truecast.layouts.recognise import Contents, recognise

_CASTABLE = {
    "nvfp4": ("mxfp4", "nvfp4"),
    "mxfp4": ("mxfp4",),
    "w4afp8": ("mxfp4", "w4afp8"),
    "fp8": ("mxfp4",),
    "bf16": ("mxfp4", "nvfp4", "w4afp8", "fp8"),
}
"""Formats of the source from which each format is made. FP8 modules stay FP8 under every target but BF16."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to convert to.

    ``activations``: add (or keep) activation scales, ``None`` = as the source has it. ``allow_inexact``: go on where
    exactness would be lost. ``max_shard_bytes``: split anew, ``None`` = one output shard per source shard.
    For W4AFP8: ``method``: rule of the group scales; ``weights``: file of importance vectors; ``attention``: ``fp8`` or
    ``bf16``, ``None`` = FP8 where the dialect has a place for it. ``calibration``: file of
    input statistics, ``rounding``: what a group's error counts by it (:data:`truecast.convert.calibrated.ROUNDINGS`),
    ``None`` = ``gptq`` where that file holds Hessians, else ``data-free``. ``fix_code``: add the loading rule that
    modelling code of the source lacks to its copy (:mod:`truecast.convert.a_log_rule`).
    """

    format: str
    dialect: str | None = None
    activations: bool | None = None
    allow_inexact: bool = False
    max_shard_bytes: int | None = None
    method: str = "exact"
    weights: Path | None = None
    attention: str | None = None
    fix_code: bool = True
    calibration: Path | None = None
    rounding: str | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What becomes of every matrix, before any output byte has its place."""

    source: Checkpoint
    contents: Contents
    family: Family
    target: Target
    layout: Layout
    activations: bool
    kept: list[Matrix]
    """Quantized matrices that stay as they are."""
    cast: list[Matrix]
    """Every matrix whose bytes change."""
    fp8: list[TensorInfo]
    """Plain BF16 weights that become FP8."""
    importance: Importance | None
    calibration: Calibration | None

    @property
    def rounding(self) -> str:
        """What a group's error counts, decided."""
        return self.target.rounding or "data-free"

    def written(self) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """Name, shape and bytes of every tensor of the output, in no fixed order."""
        for name in copied(self.contents, self.kept).difference(t.name for t in self.fp8):
            info = self.source.tensors[name]
            yield name, info.shape, info.nbytes
        for info in self.fp8:
            yield from ((t.name, t.shape, nbytes_of(t.dtype, t.shape)) for t in fp8_deepseek.emit_fp8(info))
        for tensor in self.layout.emit(self.cast, self.activations):
            yield tensor.name, tensor.shape, nbytes_of(tensor.dtype, tensor.shape)


def select(source: Checkpoint, target: Target, contents: Contents | None = None) -> Selection:
    """Decide what becomes of every matrix. ``contents``: what :func:`recognise` found in the source, where known.

    Raises: UsageError for a target that does not exist or does not fit the source; InputError for packed tensors of no
    known layout, or nothing to cast.
    """
    contents = contents or recognise(source.tensors)
    if not contents.matrices:
        raise InputError(
            "holds no quantized matrix: nothing to cast",
            where=source.location,
            fix="give a checkpoint in MXFP4, NVFP4, W4AFP8 or FP8: one in BF16 is not quantized",
        )
    family = find_family(source.config, source.tensors)
    target = _with_rounding(target)
    layout = target_layout(contents, target)
    kept, cast = _split_kept(contents, family, layout)
    if not cast and all(m.layout != layout.NAME for m in kept):
        raise _unsuited(kept[0], layout)
    if not cast:
        raise InputError(
            f"is {layout.NAME} already: nothing to do", where=source.location, fix="choose another --to or --dialect"
        )
    activations = target.activations
    if activations is None:
        wanted = (layout.FORMAT, layout.DIALECT) in family.wants_input_scales
        activations = layout.FORMAT == "nvfp4" and (wanted or any(m.input_scale is not None for m in cast))
    if activations and layout.FORMAT != "nvfp4":
        raise UsageError(f"--activations nvfp4 makes no sense with --to {layout.FORMAT}")
    fp8, importance, calibration = [], None, None
    if layout.FORMAT in ("w4afp8", "fp8"):
        _check_fp8_has_words(layout, kept)
    if layout.FORMAT == "w4afp8":
        check_groups(family, contents, cast)
        fp8 = becoming_fp8(family, contents, layout, target.attention)
        anew = quantized_anew(cast)
        given = [
            ("--weights", target.weights),
            ("--calibration", target.calibration),
            ("--method", target.method != "exact"),
        ]
        if not anew and (options := [option for option, value in given if value]):
            option = options[0]
            raise UsageError(f"{option} makes no sense here: the INT4 groups of {source.location} stay as they are")
        importance = None if target.weights is None else open_importance(target.weights, anew)
        if target.calibration is not None:
            calibration = open_for(source, target.calibration, anew, layout, target.rounding or "data-free")
    return Selection(source, contents, family, target, layout, activations, kept, cast, fp8, importance, calibration)


def _with_rounding(target: Target) -> Target:
    """The target with its rounding decided: Hessians are in a file because somebody asked for them.

    Raises: InputError where the calibration is no such file.
    """
    if target.rounding is not None:
        return target
    may = target.format == "w4afp8" and target.weights is None and target.method == "exact"
    gptq = may and target.calibration is not None and open_calibration(target.calibration).holds(HESSIAN)
    return replace(target, rounding="gptq" if gptq else "data-free")


def target_layout(contents: Contents, target: Target) -> Layout:
    """The layout in which a target is written. Raises: UsageError for a target or combination that does not exist."""
    names = dialects(target.format)
    if not names:
        raise UsageError(f"there is no target format {target.format!r}", fix="choose nvfp4, w4afp8, fp8, mxfp4 or bf16")
    if target.format == "mxfp4" and target.dialect is None:
        raise UsageError("--to mxfp4 changes the dialect only, so it needs --dialect", fix=f"one of {', '.join(names)}")
    stacked = all(m.codes.entry is not None for m in contents.matrices.values())
    try:
        layout = find_layout(target.format, target.dialect or names[0], stacked)
    except KeyError:
        raise UsageError(
            f"--to {target.format} has no dialect {target.dialect!r}", fix=f"choose one of {', '.join(names)}"
        ) from None
    _check_options(target, layout)
    return layout


def _check_options(target: Target, layout: Layout) -> None:
    """Options that concern W4AFP8 alone are a mistake anywhere else."""
    if layout.FORMAT != "w4afp8":
        for option, given in (
            ("--weights", target.weights is not None),
            ("--method", target.method != "exact"),
            ("--attention", target.attention is not None),
            ("--calibration", target.calibration is not None),
            ("--rounding", target.rounding not in (None, "data-free")),
        ):
            if given:
                raise UsageError(f"{option} makes no sense with --to {layout.FORMAT}")
    _check_calibration(target, layout)
    if target.weights is not None and target.method != "exact":
        raise UsageError(f"--weights needs --method exact: {target.method} looks at the largest value only")
    if target.attention == "fp8" and layout.DIALECT != "sglang":
        raise UsageError(f"the dialect {layout.DIALECT} keeps attention in BF16", fix="leave out --attention fp8")


def _check_calibration(target: Target, layout: Layout) -> None:
    if target.rounding is None:
        return
    if target.rounding not in ROUNDINGS:
        raise UsageError(f"there is no rounding {target.rounding!r}", fix=f"choose one of {', '.join(ROUNDINGS)}")
    if target.rounding == "data-free":
        if target.calibration is not None and layout.DIALECT != "sglang":
            raise UsageError(
                f"--calibration: the dialect {layout.DIALECT} stores no activation scales, so nothing would be taken of it",
                fix="add --rounding diagonal or gptq, or leave it out",
            )
        return
    if target.calibration is None:
        raise UsageError(f"--rounding {target.rounding} needs --calibration FILE")
    if target.weights is not None:
        raise UsageError(f"--rounding {target.rounding} weighs by the calibration: leave out --weights")
    if target.method != "exact":
        raise UsageError(f"--rounding {target.rounding} needs --method exact")


def _unsuited(matrix: Matrix, layout: Layout) -> UsageError:
    return UsageError(
        f"--to {layout.FORMAT} takes {' or '.join(_CASTABLE[layout.FORMAT])}, and {matrix.where} is {format_of(matrix)}",
        fix="convert from the original checkpoint",
    )


def _check_fp8_has_words(layout: Layout, kept: Sequence[Matrix]) -> None:
    """The config of W4AFP8 and FP8 describes one kind of FP8 modules at most."""
    described = fp8_deepseek.NAME if layout.DIALECT == "sglang" else layout.NAME
    others = [m for m in kept if format_of(m) == "fp8" and m.layout != described]
    if others:
        fix = "convert from the original checkpoint"
        if layout.FORMAT == "w4afp8" and others[0].layout == fp8_deepseek.NAME:
            fix += ", or from a W4AFP8 made with --attention bf16"
        raise UsageError(
            f"{len(others):,} FP8 modules, such as {others[0].name}, have no place in the config of this dialect",
            fix=fix,
        )


def _split_kept(contents: Contents, family: Family, layout: Layout) -> tuple[list[Matrix], list[Matrix]]:
    """Matrices that stay, and those to cast. Raises: UsageError for one that is neither."""
    kept: list[Matrix] = []
    cast: list[Matrix] = []
    for matrix in contents.matrices.values():
        stays = matrix.layout == layout.NAME or (layout.NAME == nvfp4_modelopt.NAME and is_kept(family, matrix.name))
        if not stays and format_of(matrix) not in _CASTABLE[layout.FORMAT]:
            if format_of(matrix) != "fp8":
                raise _unsuited(matrix, layout)
            stays = True
        (kept if stays else cast).append(matrix)
    return kept, cast


def copied(contents: Contents, kept: Sequence[Matrix]) -> set[str]:
    """Tensors that stay as they are, and those that become FP8."""
    return set(contents.plain) | {view.tensor.name for m in kept for view in m.parts.values()}
