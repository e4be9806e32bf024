"""States that are written, kept, spilled and removed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from truecast.audit.spill import Store
from truecast.errors import RefusedError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("budget", [0, 200, 1 << 20])
def test_what_is_read_is_what_was_written(tmp_path: Path, dtype: torch.dtype, budget: int) -> None:
    tiles = [torch.randn(n, 6).to(dtype) for n in (3, 1, 4)]
    store = Store(tmp_path, [3, 1, 4], 6, dtype, budget)
    for i in (2, 0, 1):
        store.write("a", i, tiles[i])
        store.write("b", i, -tiles[i])
    again = Store(tmp_path, [3, 1, 4], 6, dtype, 0)
    for i, tile in enumerate(tiles):
        for one in (store, again):
            assert torch.equal(one.read("a", i), tile)
            assert torch.equal(one.read("b", i), -tile)
    assert (tmp_path / "a.rows").stat().st_size == store.bytes_each == 8 * 6 * dtype.itemsize


def test_room_is_given_back(tmp_path: Path) -> None:
    store = Store(tmp_path, [10], 8, torch.float32, 320)
    for name in ("a", "b", "c", "d"):
        store.write(name, 0, torch.ones(10, 8))
        (tmp_path / f"{name}.rows").write_bytes(b"")  # what is kept is not read from the file
        assert store.read(name, 0).sum() == 80
        if name == "a":
            store.let_go(name, 0)
        else:
            store.keep_only(["d"])
    assert [p.name for p in tmp_path.iterdir()] == ["d.rows"]


def test_a_view_does_not_keep_what_it_is_a_view_of(tmp_path: Path) -> None:
    store = Store(tmp_path, [2], 4, torch.float32, 1 << 20)
    store.write("a", 0, torch.ones(1000, 4)[:2])
    assert store.read("a", 0).untyped_storage().nbytes() == 32


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, [4, 4], 8, torch.float32, 0)
    store.write("a", 0, torch.ones(4, 8))
    with pytest.raises(RefusedError, match="shorter than it was"):
        store.read("a", 1)
