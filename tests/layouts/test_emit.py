"""What a layout emits, it recognises: names, dtypes and shapes go there and back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.layouts.making import Spec, headers
from truecast.checkpoint.header import TensorInfo, nbytes_of
from truecast.errors import InputError
from truecast.layouts import LAYOUTS, dialects, find_layout, format_of, fp8_deepseek
from truecast.layouts import w4afp8_compressed_tensors as words
from truecast.layouts.base import Matrix, View, read_view
from truecast.layouts.recognise import recognise

QUANTIZED = [name for name, layout in LAYOUTS.items() if layout.FORMAT != "bf16"]
GATE_UP_DOWN = {"gate_proj": (6, 256), "up_proj": (6, 256), "down_proj": (256, 128)}


def experts(count: int, bias: bool) -> list[Matrix]:
    """Per-expert matrices in compressed-tensors' MXFP4 form."""
    specs: list[Spec] = []
    for expert, (leaf, (rows, cols)) in itertools.product(range(count), GATE_UP_DOWN.items()):
        module = f"l.3.experts.{expert}.{leaf}"
        specs += [
            (f"{module}.weight_packed", "U8", (rows, cols // 2)),
            (f"{module}.weight_scale", "U8", (rows, cols // 32)),
        ]
        if bias:
            specs.append((f"{module}.bias", "BF16", (rows,)))
    return list(recognise(headers(specs)).matrices.values())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.parametrize("name", QUANTIZED)
def test_what_is_emitted_is_recognised_again(name: str, activations: bool, bias: bool) -> None:
    matrices = experts(2, bias)
    emitted = list(LAYOUTS[name].emit(matrices, activations))
    contents = recognise(headers((t.name, t.dtype, t.shape) for t in emitted))
    assert not contents.plain
    assert contents.layouts == {name}
    assert {(m.name, m.rows, m.cols) for m in contents.matrices.values()} == {
        (m.name, m.rows, m.cols) for m in matrices
    }
    for matrix in contents.matrices.values():
        assert (matrix.bias is not None) == bias
        assert (matrix.global_scale is not None) == (LAYOUTS[name].FORMAT == "nvfp4")
        expects_inputs = (activations and LAYOUTS[name].FORMAT == "nvfp4") or name == "w4afp8-sglang"
        assert (matrix.input_scale is not None) == expects_inputs
        assert (matrix.shape is not None) == (name == "w4afp8-compressed-tensors")


@pytest.mark.parametrize("name", QUANTIZED)
def test_every_part_of_every_matrix_is_emitted_once_and_where_it_is_read(name: str) -> None:
    """The pieces of an emitted tensor stand just where the layout's own view looks for them."""
    emitted = list(LAYOUTS[name].emit(experts(2, True), True))
    tensors = headers((t.name, t.dtype, t.shape) for t in emitted)
    matrices = recognise(tensors).matrices
    for out in emitted:
        if out.shape in ((), (1,)):
            continue
        together = len(out.pieces)
        for entry, piece in enumerate(out.pieces):
            for row, matrix in enumerate(piece):
                view = matrices[matrix.name].parts[out.role]
                assert view.tensor.name == out.name
                assert view.entry == (entry if LAYOUTS[name].STACKED else None)
                assert (view.row_start, view.row_step) == (row, len(piece))
        assert together == (2 if LAYOUTS[name].STACKED else 1)


@pytest.mark.parametrize("name", QUANTIZED)
def test_emitted_sizes_are_those_of_the_format(name: str) -> None:
    matrices = experts(2, False)
    emitted = list(LAYOUTS[name].emit(matrices, False))
    elements = sum(m.rows * m.cols for m in matrices)
    group = {"mxfp4": 32, "nvfp4": 16, "w4afp8": 128}.get(LAYOUTS[name].FORMAT)
    scales = {"fp8-deepseek": 2 * (2 + 2 + 2), "fp8-compressed-tensors": sum(m.rows for m in matrices)}
    codes = sum(nbytes_of(t.dtype, t.shape) for t in emitted if t.role == "codes")
    assert codes == (elements // 2 if group else elements)
    assert sum(int(np.prod(t.shape)) for t in emitted if t.role == "scale") == (
        elements // group if group else scales[name]
    )


@pytest.mark.parametrize("name", ["bf16", "bf16-stacked"])
@pytest.mark.parametrize("bias", [False, True])
def test_bf16_emits_all_elements_and_recognises_nothing(name: str, bias: bool) -> None:
    matrices = experts(2, bias)
    emitted = list(LAYOUTS[name].emit(matrices, False))
    contents = recognise(headers((t.name, t.dtype, t.shape) for t in emitted))
    assert not contents.matrices
    weights = [t for t in emitted if t.role == "weight"]
    assert sum(int(np.prod(t.shape)) for t in weights) == sum(m.rows * m.cols for m in matrices)
    assert {t.dtype for t in weights} == {"BF16"}
    assert any(t.role == "bias" for t in emitted) == bias


STACKED = [name for name, layout in LAYOUTS.items() if layout.STACKED]


@pytest.mark.parametrize("name", STACKED)
def test_a_gap_among_the_experts_cannot_be_stacked(name: str) -> None:
    matrices = [m for m in experts(3, False) if ".experts.1." not in m.name]
    with pytest.raises(InputError, match="lacks") as caught:
        list(LAYOUTS[name].emit(matrices, False))
    assert "l.3.experts" in str(caught.value)


@pytest.mark.parametrize("name", STACKED)
def test_a_gate_without_its_up_cannot_be_stacked(name: str) -> None:
    matrices = [m for m in experts(2, False) if m.name != "l.3.experts.1.up_proj"]
    with pytest.raises(InputError, match="lacks up_proj"):
        list(LAYOUTS[name].emit(matrices, False))


@pytest.mark.parametrize("name", STACKED)
def test_experts_of_different_shape_cannot_be_stacked(name: str) -> None:
    matrices = experts(2, False)
    odd = matrices[0]
    matrices[0] = Matrix(odd.name, odd.layout, odd.rows + 2, odd.cols, odd.codes, odd.scale)
    with pytest.raises(InputError, match="differ in shape"):
        list(LAYOUTS[name].emit(matrices, False))


@pytest.mark.parametrize("name", STACKED)
def test_a_matrix_that_is_no_expert_cannot_be_stacked(name: str) -> None:
    (matrix,) = recognise(
        headers([("l.q_proj.weight_packed", "U8", (8, 32)), ("l.q_proj.weight_scale", "U8", (8, 2))])
    ).matrices.values()
    with pytest.raises(InputError, match=r"l\.q_proj\.weight_packed in .* cannot be stacked"):
        list(LAYOUTS[name].emit([matrix], False))


def test_w1_w3_w2_are_gate_up_down() -> None:
    matrices = experts(1, False)
    renamed = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    spelled = []
    for m in matrices:
        parent, _, leaf = m.name.rpartition(".")
        spelled.append(Matrix(f"{parent}.{renamed[leaf]}", m.layout, m.rows, m.cols, m.codes, m.scale))
    (gate_up, *_) = LAYOUTS["mxfp4-gpt-oss"].emit(spelled, False)
    assert [m.name.rpartition(".")[2] for m in gate_up.pieces[0]] == ["w1", "w3"]


class Memory:
    """A file of known bytes."""

    chunk_bytes = 1 << 20

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, start: int, end: int) -> bytes:
        return self.data[start:end]

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self.data[start : start + len(buffer)]

    def close(self) -> None: ...


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("start", "step"), [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("entry", [None, 0, 2])
def test_views_read_rows_of_entries(entry: int | None, start: int, step: int, transposed: bool) -> None:
    shape = (6, 10) if entry is None else (3, 6, 10)
    data = np.arange(int(np.prod(shape)), dtype=np.uint8)
    tensor = TensorInfo("t", "U8", shape, "f", 5, 5 + data.size)
    expected = data.reshape(shape) if entry is None else data.reshape(shape)[entry]
    expected = (expected.T if transposed else expected)[start::step]
    got = read_view(View(tensor, entry, start, step, transposed), Memory(b"\xa5" * 5 + data.tobytes() + b"\xa5" * 9))
    np.testing.assert_array_equal(got, expected)
    assert got.flags.c_contiguous


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_scalar_is_one_row(shape: tuple[int, ...]) -> None:
    tensor = TensorInfo("t", "F32", shape, "f", 0, 4)
    got = read_view(View(tensor), Memory(np.float32(2.5).tobytes()))
    assert got.view(np.float32).tolist() == [[2.5]]


def test_the_default_dialect_and_stacking() -> None:
    assert dialects("nvfp4") == ["modelopt", "compressed-tensors"]
    assert dialects("w4afp8") == ["sglang", "compressed-tensors"]
    assert dialects("fp8") == ["deepseek", "compressed-tensors"]
    assert dialects("mxfp4") == ["compressed-tensors", "deepseek", "gpt-oss"]
    assert find_layout("w4afp8", "sglang", stacked=True).NAME == "w4afp8-sglang"
    assert find_layout("fp8", "deepseek", stacked=False).NAME == "fp8-deepseek"
    assert find_layout("nvfp4", "modelopt", stacked=True).NAME == "nvfp4-modelopt-stacked"
    assert find_layout("nvfp4", "modelopt", stacked=False).NAME == "nvfp4-modelopt"
    assert find_layout("nvfp4", "compressed-tensors", stacked=True).NAME == "nvfp4-compressed-tensors"
    with pytest.raises(KeyError):
        find_layout("nvfp4", "gpt-oss", stacked=False)


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_format_of_a_matrix_is_that_of_its_layout(name: str) -> None:
    emitted = list(LAYOUTS[name].emit(experts(1, False), False))
    for matrix in recognise(headers((t.name, t.dtype, t.shape) for t in emitted)).matrices.values():
        assert format_of(matrix) == LAYOUTS[name].FORMAT == name.partition("-")[0]


@pytest.mark.parametrize(("shape", "blocks"), [((256, 384), (2, 3)), ((300, 129), (3, 2)), ((1, 1), (1, 1))])
def test_a_plain_bf16_weight_becomes_fp8_blocks_that_are_recognised(
    shape: tuple[int, int], blocks: tuple[int, int]
) -> None:
    (info,) = headers([("l.self_attn.q_proj.weight", "BF16", shape)]).values()
    emitted = list(fp8_deepseek.emit_fp8(info))
    assert [(t.role, t.source, t.pieces) for t in emitted] == [("fp8", info, ()), ("fp8_scale", info, ())]
    assert [(t.dtype, t.shape) for t in emitted] == [("F8_E4M3", shape), ("F32", blocks)]
    contents = recognise(headers((t.name, t.dtype, t.shape) for t in emitted))
    assert {(m.name, m.layout, m.rows, m.cols) for m in contents.matrices.values()} == {
        ("l.self_attn.q_proj", "fp8-deepseek", *shape)
    }
    assert not contents.plain


@pytest.mark.parametrize("dtype", ["I64", "I32"])
@pytest.mark.parametrize(("stored", "right"), [((6, 256), True), ((6, 128), False), ((256, 6), False)])
def test_the_stored_shape_is_compared_with_the_words(dtype: str, stored: tuple[int, int], right: bool) -> None:
    tensors = headers(
        [
            ("m.weight_packed", "I32", (6, 32)),
            ("m.weight_scale", "BF16", (6, 2)),
            ("m.weight_shape", dtype, (2,)),
        ]
    )
    matrix = recognise(tensors).matrices["m"]
    data = np.array(stored, f"<{dtype.lower()[0]}{int(dtype[1:]) // 8}").tobytes()
    file = Memory(b"\0" * tensors["m.weight_shape"].start + data)
    if right:
        words.check_stored_shape(matrix, file)
        return
    with pytest.raises(InputError, match=r"m\.weight_shape in .*says \[.*hold \[6, 256\]"):
        words.check_stored_shape(matrix, file)
