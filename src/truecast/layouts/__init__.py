"""On-disk dialects, one file each: names, dtypes, shapes, config blocks. The only room that knows suffixes."""

from __future__ import annotations

from truecast.layouts import (
    bf16,
    bf16_stacked,
    mxfp4_compressed_tensors,
    mxfp4_deepseek,
    mxfp4_gpt_oss,
    nvfp4_compressed_tensors,
    nvfp4_modelopt,
    nvfp4_modelopt_stacked,
)
from truecast.layouts.base import Layout

__all__ = ["LAYOUTS", "Layout", "dialects", "find_layout"]

LAYOUTS: dict[str, Layout] = {
    module.NAME: module
    for module in (
        mxfp4_compressed_tensors,
        mxfp4_gpt_oss,
        mxfp4_deepseek,
        nvfp4_modelopt,
        nvfp4_compressed_tensors,
        nvfp4_modelopt_stacked,
        bf16,
        bf16_stacked,
    )
}
"""Every layout by name, in the order in which recognition tries them."""


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
    order = {"modelopt": 0}
    names = {layout.DIALECT for layout in LAYOUTS.values() if target == layout.FORMAT}
    return sorted(names, key=lambda d: (order.get(d, 1), d))
