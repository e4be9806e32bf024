"""Positions on disk: what is written is read, what does not fit is refused by name, nothing is unpickled."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from tests.report.audit_example import simulated
from truecast.audit.positions import DTYPES, Positions, load_array, load_positions
from truecast.errors import InputError


def test_round_trip(tmp_path: Path) -> None:
    positions = simulated(3, mean_tokens=30)
    positions.save(tmp_path / "positions")
    again = load_positions(tmp_path / "positions")
    for field in fields(Positions):
        one, other = getattr(positions, field.name), getattr(again, field.name)
        assert one.dtype == other.dtype == DTYPES[field.name]
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (None, "no such file"),
        (b"", "not a plain array"),
        (b"\x93NUMPY\x01\x00", "not a plain array"),
        (b"PK\x03\x04 no zip", "not a plain array"),
    ],
)
def test_files_that_are_no_array(tmp_path: Path, broken: bytes | None, message: str) -> None:
    path = tmp_path / "kl.npy"
    if broken is not None:
        path.write_bytes(broken)
    with pytest.raises(InputError, match=message) as caught:
        load_array(path)
    assert caught.value.where == str(path)
    assert caught.value.fix


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "kl.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="not a plain array"):
        load_array(tmp_path / "kl.npy")


def test_an_archive_is_no_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "kl.npz", a=np.zeros(3))
    (tmp_path / "kl.npz").rename(tmp_path / "kl.npy")
    with pytest.raises(InputError, match="not a plain array"):
        load_array(tmp_path / "kl.npy")


def test_a_header_that_promises_too_much(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999999,), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    (tmp_path / "kl.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(InputError, match="not a plain array"):
        load_array(tmp_path / "kl.npy")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("kl", np.zeros(3, np.float32), "holds float32, not float64"),
        ("kl", np.zeros(2), r"has shape \[2\]"),
        ("pos", np.zeros((3, 1), np.int32), r"has shape \[3, 1\]"),
        ("nll_cand", np.array([0.0, np.nan, np.inf]), "2 numbers are not finite, the first at index 1"),
    ],
)
def test_arrays_that_do_not_fit(name: str, array: np.ndarray, message: str) -> None:
    arrays = {key: np.zeros(3, dtype) for key, dtype in DTYPES.items()} | {name: array}
    with pytest.raises(InputError, match=message) as caught:
        Positions(**arrays)
    assert caught.value.where == f"{name}.npy"
