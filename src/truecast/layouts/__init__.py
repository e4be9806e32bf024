"""On-disk dialects, one file each: names, dtypes, shapes, config blocks. The only room that knows suffixes."""

from __future__ import annotations

from truecast.layouts import (
    bf16,
    mxfp4_compressed_tensors,
    mxfp4_deepseek,
    mxfp4_gpt_oss,
    nvfp4_compressed_tensors,
    nvfp4_modelopt,
)
from truecast.layouts.base import Layout

LAYOUTS: dict[str, Layout] = {
    module.NAME: module
    for module in (
        mxfp4_compressed_tensors,
        mxfp4_gpt_oss,
        mxfp4_deepseek,
        nvfp4_modelopt,
        nvfp4_compressed_tensors,
        bf16,
    )
}
"""Every layout by name, in the order in which recognition tries them."""


def find_layout(target: str, dialect: str) -> Layout:
    """The layout of a format and dialect. Raises: KeyError where there is none."""
    for layout in LAYOUTS.values():
        if target == layout.FORMAT and dialect == layout.DIALECT:
            return layout
    raise KeyError((target, dialect))
