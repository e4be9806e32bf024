"""Two candidates against one reference on the same tokens: the difference, document by document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from truecast.audit.positions import Positions


def paired(a: Positions, b: Positions) -> dict[str, Any]:
    """KL of ``a`` less KL of ``b``: mean, standard error and interval in nats per token.

    Raises: InputError where documents or tokens differ.
    """
    raise NotImplementedError


def paired_folders(a: Path, b: Path) -> dict[str, Any]:
    """The same from two output folders of ``truecast audit`` (``positions/*.npy``, ``audit.json``).

    Raises: InputError where a file is missing or malformed, or the corpora or references differ.
    """
    raise NotImplementedError
