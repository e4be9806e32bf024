from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from truecast.checkpoint.files import LocalFile
from truecast.verify.reader import CHUNK_BYTES, HashingFile, same_ranges


def make(path: Path, size: int, seed: int = 0) -> bytes:
    data = np.random.default_rng(seed).bytes(size)
    path.write_bytes(data)
    return data


def test_in_order_reads_hash_the_file_in_one_pass(tmp_path: Path) -> None:
    data = make(tmp_path / "f", 10_000)
    file = HashingFile(LocalFile(tmp_path / "f"))
    file.advance(100)
    assert file.read(100, 5000) == data[100:5000]
    assert file.read(5000, 9000) == data[5000:9000]
    assert file.finish() == hashlib.sha256(data).hexdigest()
    assert file.bytes_read == len(data)
    file.close()


def test_overlapping_early_and_late_reads_do_not_disturb_the_hash(tmp_path: Path) -> None:
    data = make(tmp_path / "f", 3 * CHUNK_BYTES + 17)
    rng = np.random.default_rng(1)
    for _ in range(20):
        file = HashingFile(LocalFile(tmp_path / "f"))
        for _ in range(10):
            start, end = sorted(int(x) for x in rng.integers(0, len(data), 2))
            assert file.read(start, end) == data[start:end]
        assert file.finish() == hashlib.sha256(data).hexdigest()
        file.close()


def test_remembered_ranges_are_read_once(tmp_path: Path) -> None:
    data = make(tmp_path / "f", 1000)
    file = HashingFile(LocalFile(tmp_path / "f"), remember=True)
    for _ in range(2):
        assert file.read(0, 600) == data[:600]
        assert file.read(600, 1000) == data[600:]
    assert file.finish() == hashlib.sha256(data).hexdigest()
    assert file.bytes_read == 1000
    file.close()


def test_same_ranges_reads_on_after_a_difference(tmp_path: Path) -> None:
    size = 2 * CHUNK_BYTES + 5
    data = make(tmp_path / "a", size)
    (tmp_path / "b").write_bytes(bytes([data[0] ^ 1]) + data[1:])
    a, b = LocalFile(tmp_path / "a"), HashingFile(LocalFile(tmp_path / "b"))
    assert not same_ranges(a, 0, b, 0, size)
    assert b.bytes_read == size
    assert same_ranges(a, 1, b, 1, size - 1)
    a.close()
    b.close()
