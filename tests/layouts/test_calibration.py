"""Calibration files: what is written is read again, and what is none is refused by file and tensor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from truecast.checkpoint.header import MAX_HEADER_BYTES
from truecast.errors import InputError, RefusedError
from truecast.layouts.calibration import (
    HESSIAN,
    InputStatistics,
    document_sha256,
    open_calibration,
    write_calibration,
)

METADATA = {
    "schema": "truecast.calibration/1",
    "source": "f" * 64,
    "weights": "e" * 64,
    "documents": json.dumps({"a": "0" * 64}),
    "tokens": "7",
    "never_routed": "[]",
}


def square(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def test_round_trip(tmp_path: Path) -> None:
    hessian = square([2, 1], [1, 3])
    given = {
        "m.0": InputStatistics(896.0, np.array([2, 3], np.float32), 5, hessian),
        "m.1": InputStatistics(0.0, np.array([0, 0], np.float32), 0),
    }
    path = tmp_path / "c.safetensors"
    documents = {"a": document_sha256([1, 2]), "b": document_sha256([2, 1])}
    sha256 = write_calibration(path, given, source="f" * 64, weights="e" * 64, documents=documents, tokens=7)
    found = open_calibration(path)
    assert (found.sha256, found.source, found.tokens, found.documents) == (sha256, "f" * 64, 7, documents)
    assert found.never_routed == {"m.1"}
    assert found.input_scale("m.0") == 2.0 and found.input_scale("m.1") == 2.0**-24
    assert (found.second_moment("m.0", 2) == [2, 3]).all() and (found.hessian("m.0", 2) == hessian).all()
    assert found.has("m.0", HESSIAN) and not found.has("m.1", HESSIAN)
    with safe_open(path, "np") as file:  # the official reader sees the same
        assert file.get_tensor("input_tokens").tolist() == [5, 0] and json.loads(file.metadata()["never_routed"]) == [
            "m.1"
        ]
    assert len(set(documents.values())) == 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema": "other"}, "schema is 'other'"),
        ({"documents": "["}, "is no calibration"),
        ({"documents": "[]"}, "documents is no map"),
        ({"never_routed": "{}"}, "never_routed is no list"),
        ({"tokens": "many"}, "is no calibration"),
        ({"source": None}, "lacks 'source'"),
        ({"weights": None}, "lacks 'weights'"),
        ({"documents": "{}"}, "does not say by their sha256"),
        ({"documents": json.dumps({"a": "0" * 64, "b": "F" * 64})}, "does not say by their sha256"),
        ({"documents": json.dumps({"a": "0" * 63})}, "does not say by their sha256"),
    ],
)
def test_other_metadata(tmp_path: Path, changes: dict[str, str | None], told: str) -> None:
    path = tmp_path / "c.safetensors"
    metadata = {k: v for k, v in (METADATA | changes).items() if v is not None}
    save_file({"m.input_amax": np.ones((), np.float32)}, path, metadata)
    with pytest.raises(InputError, match=told) as error:
        open_calibration(path)
    assert error.value.where == str(path)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({}, "is not in the file"),
        ({"m.input_hessian": square([1, 2, 3])}, r"F32 \[1, 3\], should be F32 \[2, 2\]"),
        ({"m.input_hessian": square([1, 0], [0, 1]).astype(np.float64)}, "is F64"),
        ({"m.input_hessian": square([1, 0], [np.nan, 1])}, "is nan at 1, 0; it must be finite"),
        ({"m.input_hessian": square([1, 0.5], [0.4, 1])}, "is not symmetric: 0.5 at 0, 1 and 0.4"),
    ],
)
def test_no_hessian(tmp_path: Path, tensors: dict[str, np.ndarray], told: str) -> None:
    path = tmp_path / "c.safetensors"
    save_file({"x.input_amax": np.ones((), np.float32)} | tensors, path, METADATA)
    with pytest.raises(InputError, match=told) as error:
        open_calibration(path).hessian("m", 2)
    assert error.value.where == f"m.input_hessian in {path}"


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_no_amax_and_no_second_moment(tmp_path: Path, value: float) -> None:
    path = tmp_path / "c.safetensors"
    moments = np.array([1, value], np.float32)
    save_file({"m.input_amax": np.array(value, np.float32), "m.input_second_moment": moments}, path, METADATA)
    found = open_calibration(path)
    for ask in (lambda: found.amax("m"), lambda: found.second_moment("m", 2)):
        with pytest.raises(InputError, match="must be finite and not negative"):
            ask()


def test_a_file_that_changes_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_file({"m.input_amax": np.ones((), np.float32)}, path, METADATA)
    found = open_calibration(path)
    path.unlink()
    with pytest.raises(RefusedError, match="changed while it was read"):
        found.amax("m")


def test_the_header_of_all_of_kimi_k3_fits_the_format(tmp_path: Path) -> None:
    one = InputStatistics(1.0, np.ones(1, np.float32), 5)
    prefix = "language_model.model.layers.92.block_sparse_moe.experts."
    layer = {f"{prefix}{e}.{leaf}": one for e in range(896) for leaf in ("w1", "w3", "w2")}
    path = tmp_path / "c.safetensors"
    write_calibration(path, layer, source="f" * 64, weights="e" * 64, documents={"a": "0" * 64}, tokens=5)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    longer_numbers = 12 * 2 * len(layer)
    assert 92 * (length + longer_numbers) < MAX_HEADER_BYTES
