"""What an audit keeps of every scored position, in memory and as plain ``.npy`` files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.errors import InputError

DTYPES: dict[str, type[np.generic]] = {
    "doc": np.int32,
    "pos": np.int32,
    "kl": np.float64,
    "reverse_kl": np.float64,
    "nll_ref": np.float64,
    "nll_cand": np.float64,
    "ref_top_prob": np.float32,
    "ref_margin": np.float32,
    "same_top": np.bool_,
}
"""The arrays of a position file, and the dtype in which each is stored."""


@dataclass(frozen=True, slots=True)
class Positions:
    """One entry for each scored position, documents one after another.

    Shapes: every array ``[n]``. Units: ``kl``, ``reverse_kl``, ``nll_*`` in nats; ``ref_margin`` is the log-probability of
    the reference's first choice less that of its second, in nats. ``doc`` is the document's index in the corpus,
    ``pos`` the position in it whose next token is predicted. ``kl`` is KL(reference || candidate). ``nll_*`` is the
    negative log-probability of the token that follows.
    Raises: InputError where an array has another dtype or length, or holds a number that is not finite.
    """

    doc: NDArray[np.int32]
    pos: NDArray[np.int32]
    kl: NDArray[np.float64]
    reverse_kl: NDArray[np.float64]
    nll_ref: NDArray[np.float64]
    nll_cand: NDArray[np.float64]
    ref_top_prob: NDArray[np.float32]
    ref_margin: NDArray[np.float32]
    same_top: NDArray[np.bool_]

    def __post_init__(self) -> None:
        for name in DTYPES:
            _check(name, getattr(self, name), self.doc.shape)

    def __len__(self) -> int:
        """Number of scored positions."""
        return len(self.doc)

    def save(self, folder: Path) -> None:
        """Write each array to ``folder/NAME.npy``."""
        folder.mkdir(parents=True, exist_ok=True)
        for field in fields(self):
            np.save(folder / f"{field.name}.npy", getattr(self, field.name), allow_pickle=False)


def load_positions(folder: Path) -> Positions:
    """Read what :meth:`Positions.save` wrote; nothing is unpickled.

    Raises: InputError for a file that is missing, no array, or does not fit the others.
    """
    return Positions(**{name: load_array(folder / f"{name}.npy") for name in DTYPES})


def load_array(path: Path) -> NDArray[Any]:
    """One array of a ``.npy`` file; nothing is unpickled. Raises: InputError."""
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), fix="name the output folder of a finished audit") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"not a plain array: {error}", where=str(path), fix="run the audit again") from None
    if not isinstance(array, np.ndarray):  # an .npz by another name
        raise InputError("not a plain array", where=str(path), fix="run the audit again")
    return array


def _check(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.dtype != DTYPES[name]:
        raise InputError(f"holds {array.dtype}, not {np.dtype(DTYPES[name])}", where=f"{name}.npy")
    if array.ndim != 1 or array.shape != shape:
        raise InputError(f"has shape {list(array.shape)}, doc.npy {list(shape)}", where=f"{name}.npy")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise InputError(f"{bad.size:,} numbers are not finite, the first at index {bad[0]}", where=f"{name}.npy")
