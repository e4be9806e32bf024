"""On-disk dialects, one file each: names, dtypes, shapes, config blocks. The only room that knows suffixes."""

from __future__ import annotations

from truecast.layouts import (
    bf16,
    bf16_stacked,
    fp8_compressed_tensors,
    fp8_deepseek,
    mxfp4_compressed_tensors,
    mxfp4_deepseek,
    mxfp4_gpt_oss,
    nvfp4_compressed_tensors,
    nvfp4_modelopt,
    nvfp4_modelopt_stacked,
    w4afp8_compressed_tensors,
    w4afp8_sglang,
)
from truecast.layouts.base import Layout, Matrix

__all__ = ["LAYOUTS", "Layout", "dialects", "find_layout", "format_of"]

LAYOUTS: dict[str, Layout] = {
    module.NAME: module
    for module in (
        mxfp4_compressed_tensors,
        mxfp4_gpt_oss,
        mxfp4_deepseek,
        nvfp4_modelopt,
        nvfp4_compressed_tensors,
        nvfp4_modelopt_stacked,
        w4afp8_sglang,
        w4afp8_compressed_tensors,
        fp8_deepseek,
        fp8_compressed_tensors,
        bf16,
        bf16_stacked,
    )
}
"""Every layout by name, in the order in which recognition tries them."""


_DEFAULTS = {"nvfp4": "modelopt", "w4afp8": "sglang", "fp8": "deepseek"}


def format_of(matrix: Matrix) -> str:
    """``mxfp4``, ``nvfp4``, ``w4afp8`` or ``fp8``: what the matrix's codes and scales are, in whatever dialect."""
    return LAYOUTS[matrix.layout].FORMAT


def find_layout(target: str, dialect: str, stacked: bool) -> Layout:
    """The layout of a format and dialect; among several, the one that stacks experts as ``stacked`` says.

    Raises: KeyError where there is none.
    """
    found = [layout for layout in LAYOUTS.values() if (target, dialect) == (layout.FORMAT, layout.DIALECT)]
    if not found:
        raise KeyError((target, dialect))
    return next((layout for layout in found if stacked == layout.STACKED), found[0])


def dialects(target: str) -> list[str]:
    """Dialects of a format, the default first."""
    names = {layout.DIALECT for layout in LAYOUTS.values() if target == layout.FORMAT}
    return sorted(names, key=lambda d: (d != _DEFAULTS.get(target), d))
