from __future__ import annotations

import pytest

from tests.layouts.making import Spec, headers
from truecast.errors import InputError
from truecast.layouts.recognise import Contents, recognise

CT = [("m.w1.weight_packed", "U8", (8, 32)), ("m.w1.weight_scale", "U8", (8, 2))]
DEEPSEEK = [("m.w1.weight", "I8", (8, 32)), ("m.w1.scale", "F8_E8M0", (8, 2))]
GPT_OSS = [
    ("l.experts.gate_up_proj_blocks", "U8", (3, 8, 2, 16)),
    ("l.experts.gate_up_proj_scales", "U8", (3, 8, 2)),
    ("l.experts.gate_up_proj_bias", "BF16", (3, 8)),
]
MODELOPT = [
    ("m.w1.weight", "U8", (8, 32)),
    ("m.w1.weight_scale", "F8_E4M3", (8, 4)),
    ("m.w1.weight_scale_2", "F32", ()),
    ("m.w1.input_scale", "F32", ()),
]
NVFP4_CT = [
    ("m.w1.weight_packed", "U8", (8, 32)),
    ("m.w1.weight_scale", "F8_E4M3", (8, 4)),
    ("m.w1.weight_global_scale", "F32", (1,)),
    ("m.w1.input_global_scale", "F32", (1,)),
]
STACKED = [
    ("l.experts.gate_up_proj", "U8", (3, 32, 8)),
    ("l.experts.gate_up_proj_weight_scale", "F8_E4M3", (3, 4, 8)),
    ("l.experts.gate_up_proj_weight_scale_2", "F32", ()),
    ("l.experts.gate_up_proj_input_scale", "F32", ()),
    ("l.experts.gate_up_proj_bias", "BF16", (3, 8)),
]
SGLANG = [
    ("m.w1.weight", "I8", (8, 128)),
    ("m.w1.weight_scale_inv", "BF16", (8, 2)),
    ("m.w1.input_scale", "F32", ()),
]
WORDS = [
    ("m.w1.weight_packed", "I32", (8, 32)),
    ("m.w1.weight_scale", "BF16", (8, 2)),
    ("m.w1.weight_shape", "I64", (2,)),
]
BLOCKS = [("m.w1.weight", "F8_E4M3", (200, 256)), ("m.w1.weight_scale_inv", "F32", (2, 2))]
CHANNELS = [("m.w1.weight", "F8_E4M3", (8, 60)), ("m.w1.weight_scale", "F32", (8, 1))]
EVERY = {
    "mxfp4-compressed-tensors": CT,
    "mxfp4-deepseek": DEEPSEEK,
    "mxfp4-gpt-oss": GPT_OSS,
    "nvfp4-modelopt": MODELOPT,
    "nvfp4-compressed-tensors": NVFP4_CT,
    "nvfp4-modelopt-stacked": STACKED,
    "w4afp8-sglang": SGLANG,
    "w4afp8-compressed-tensors": WORDS,
    "fp8-deepseek": BLOCKS,
    "fp8-compressed-tensors": CHANNELS,
}
SIZES = {
    "mxfp4-gpt-oss": (4, 64),
    "nvfp4-modelopt-stacked": (4, 64),
    "w4afp8-sglang": (8, 256),
    "w4afp8-compressed-tensors": (8, 256),
    "fp8-deepseek": (200, 256),
    "fp8-compressed-tensors": (8, 60),
}
PACKED = [name for name in EVERY if not name.startswith("fp8")]
"""FP8 without its scales is a plain tensor: nothing in it says that it should have some."""


def found(specs: list[Spec]) -> Contents:
    return recognise(headers(specs))


def faults(specs: list[Spec]) -> list[str]:
    """Messages of all faults; and raised one by one they are the same first one, with exit code 2."""
    collected: list[InputError] = []
    recognise(headers(specs), collected.append)
    with pytest.raises(InputError) as caught:
        found(specs)
    assert caught.value.exit_code == 2
    assert str(caught.value) == str(collected[0])
    assert all(e.where.endswith(" in model.safetensors") for e in collected)
    return [str(e) for e in collected]


def replaced(
    specs: list[Spec], name: str, dtype: str | None = None, shape: tuple[int, ...] | None = None
) -> list[Spec]:
    assert any(n.endswith(name) for n, _, _ in specs)
    return [(n, dtype or d, s if shape is None else shape) if n.endswith(name) else (n, d, s) for n, d, s in specs]


def without(specs: list[Spec], name: str) -> list[Spec]:
    rest = [s for s in specs if not s[0].endswith(name)]
    assert len(rest) == len(specs) - 1
    return rest


@pytest.mark.parametrize("layout", EVERY)
def test_every_layout_is_recognised_whole(layout: str) -> None:
    contents = found(EVERY[layout])
    assert contents.layouts == {layout}
    assert not contents.plain
    assert {(m.rows, m.cols) for m in contents.matrices.values()} == {SIZES.get(layout, (8, 64))}


STACKED_NAMES = {"mxfp4-gpt-oss", "nvfp4-modelopt-stacked"}


@pytest.mark.parametrize("layout", sorted(STACKED_NAMES))
def test_stacked_experts_are_matrices_with_interleaved_rows(layout: str) -> None:
    matrices = found(EVERY[layout]).matrices
    assert set(matrices) == {f"l.experts.{e}.{p}" for e in range(3) for p in ("gate_proj", "up_proj")}
    up = matrices["l.experts.2.up_proj"]
    assert (up.codes.entry, up.codes.row_start, up.codes.row_step) == (2, 1, 2)
    assert up.bias is not None
    assert (up.bias.entry, up.bias.row_start, up.bias.row_step) == (2, 1, 2)


def test_the_dtype_of_the_scale_tells_mxfp4_from_nvfp4() -> None:
    assert found(CT).layouts == {"mxfp4-compressed-tensors"}
    assert found(replaced(CT, ".weight_scale", "F8_E8M0")).layouts == {"mxfp4-compressed-tensors"}
    assert found(NVFP4_CT).layouts == {"nvfp4-compressed-tensors"}


@pytest.mark.parametrize(("codes", "scale"), [("I8", "F8_E8M0"), ("U8", "U8"), ("I8", "U8"), ("U8", "F8_E8M0")])
def test_deepseek_in_all_its_dtypes(codes: str, scale: str) -> None:
    specs = replaced(replaced(DEEPSEEK, ".weight", codes), ".scale", scale)
    assert found(specs).layouts == {"mxfp4-deepseek"}


def test_activation_scales_are_optional() -> None:
    assert found(without(MODELOPT, ".input_scale")).matrices["m.w1"].input_scale is None
    assert found(MODELOPT).matrices["m.w1"].input_scale is not None


def test_several_layouts_in_one_checkpoint() -> None:
    nvfp4 = [(n.replace("m.", "n."), d, s) for n, d, s in MODELOPT]
    assert found([*CT, *nvfp4, *GPT_OSS]).layouts == {"mxfp4-compressed-tensors", "nvfp4-modelopt", "mxfp4-gpt-oss"}


# ---- plain tensors that look a little like parts ---------------------------------------------------------------------


@pytest.mark.parametrize("scale", [("F8_E8M0", (1, 1)), ("F32", (1, 1)), ("U8", (1, 1))])
def test_fp8_weights_with_their_scales_stay_plain(scale: tuple[str, tuple[int, ...]]) -> None:
    specs = [("l.attn.wkv.weight", "F8_E4M3", (128, 128)), ("l.attn.wkv.scale", *scale)]
    contents = found(specs)
    assert not contents.matrices
    assert set(contents.plain) == {"l.attn.wkv.weight", "l.attn.wkv.scale"}


@pytest.mark.parametrize(
    "spec",
    [
        ("l.norm.scale", "F32", (64,)),
        ("l.norm.scale", "BF16", (64,)),
        ("scale", "F32", (64,)),
        ("l.attn.logit_scales", "F32", (8,)),
        ("l.attn.k_scale", "F32", ()),
        ("l.router.bias", "U8", (8,)),
        ("l.table", "U8", (8, 64)),
        ("l.ids.weight", "I32", (64,)),
        ("l.mask", "BOOL", (8, 8)),
        ("l.embed.weight", "BF16", (8, 3)),
        ("l.experts.gate_up_proj", "BF16", (3, 64, 8)),
    ],
)
def test_tensors_that_are_no_part_of_a_packed_one(spec: Spec) -> None:
    assert set(found([spec]).plain) == {spec[0]}


@pytest.mark.parametrize(
    "scale",
    [
        ("weight_scale", "F32", ()),
        ("weight_scale", "F32", (1,)),
        ("weight_scale", "F32", (8,)),
        ("weight_scale", "U8", (8, 2)),  # MXFP8
        ("weight_scale", "F32", (1, 1, 1, 1)),  # Model-Optimizer's FP8 by blocks
        ("weight_scale_inv", "F32", ()),
        ("weight_scale_inv", "BF16", (1,)),
        ("weight_scale_inv", "U8", (8, 2)),
    ],
)
def test_other_forms_of_fp8_stay_plain_and_their_scales_are_no_orphans(scale: tuple[str, str, tuple[int, ...]]) -> None:
    name, dtype, shape = scale
    specs = [("m.weight", "F8_E4M3", (8, 64)), (f"m.{name}", dtype, shape), ("m.input_scale", "F32", ())]
    assert set(found(specs).plain) == {n for n, _, _ in specs}


def test_static_activation_scales_belong_to_channelwise_fp8() -> None:
    contents = found([*CHANNELS, ("m.w1.input_scale", "F32", (1,))])
    assert contents.matrices["m.w1"].input_scale is not None
    assert not contents.plain


def test_a_bias_of_another_shape_stays_plain() -> None:
    contents = found([*CT, ("m.w1.bias", "F32", (3,))])
    assert contents.matrices["m.w1"].bias is None
    assert set(contents.plain) == {"m.w1.bias"}


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("mxfp4-compressed-tensors", ".weight_scale"),
        ("mxfp4-deepseek", ".scale"),
        ("mxfp4-gpt-oss", "_scales"),
    ],
)
def test_codes_whose_scales_are_missing(layout: str, name: str) -> None:
    (fault,) = faults(without(EVERY[layout], name))
    assert "its scales are missing" in fault
    assert EVERY[layout][0][0] in fault


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("nvfp4-modelopt", ".weight_scale_2"),
        ("nvfp4-modelopt", ".weight_scale"),
        ("nvfp4-compressed-tensors", ".weight_global_scale"),
        ("nvfp4-compressed-tensors", ".weight_scale"),
        ("nvfp4-modelopt-stacked", "_weight_scale_2"),
        ("nvfp4-modelopt-stacked", "_weight_scale"),
    ],
)
def test_nvfp4_without_one_of_its_two_scales(layout: str, name: str) -> None:
    """A dropped global scale otherwise passes for a model with weights thousands of times too large."""
    (fault,) = faults(without(EVERY[layout], name))
    assert EVERY[layout][0][0] in fault
    assert "fits no layout" in fault


@pytest.mark.parametrize("layout", EVERY)
def test_scales_whose_codes_are_missing(layout: str) -> None:
    specs = EVERY[layout]
    orphans = [n for n, _, _ in specs[1:] if "scale" in n or "shape" in n]
    messages = faults(specs[1:])
    assert len(messages) == len(orphans)
    for name, message in zip(orphans, messages, strict=True):
        assert message.startswith(f"{name} in ")
        assert ("that tensor is missing" if "shape" in name else "the tensor that it scales is missing") in message


@pytest.mark.parametrize(
    "specs",
    [
        [("m.weight_packed", "U8", (8, 24)), ("m.weight_scale", "U8", (8, 1))],
        [("m.weight", "I8", (8, 8)), ("m.scale", "F8_E8M0", (8, 1))],
        [("m.weight", "U8", (8, 24)), ("m.weight_scale", "F8_E4M3", (8, 3)), ("m.weight_scale_2", "F32", ())],
    ],
)
def test_a_last_dimension_that_is_no_multiple_of_32(specs: list[Spec]) -> None:
    (fault,) = faults(specs)
    assert f"holds {specs[0][2][1] * 2} elements, which is no multiple of 32" in fault
    assert specs[0][0] in fault


@pytest.mark.parametrize("shape", [(8, 1), (8, 3), (7, 2), (2, 8), (16,), (), (8, 2, 1), (8, 4)])
def test_mxfp4_scales_of_the_wrong_shape(shape: tuple[int, ...]) -> None:
    for specs, name in ((CT, ".weight_scale"), (DEEPSEEK, ".scale")):
        (fault,) = faults(replaced(specs, name, shape=shape))
        assert str(list(shape)) in fault  # what it is
        assert "U8 [8, 2]" in fault  # what it should be


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F8_E5M2", "I8"])
def test_scales_of_the_wrong_dtype(dtype: str) -> None:
    (fault,) = faults(replaced(CT, ".weight_scale", dtype))
    assert f"weight_scale {dtype}" in fault
    for specs in (MODELOPT, NVFP4_CT, STACKED):
        assert len(faults(replaced(specs, "weight_scale", dtype))) == 1


@pytest.mark.parametrize(("dtype", "shape"), [("F16", ()), ("F32", (8,)), ("F32", (1, 1)), ("F64", ())])
def test_global_scales_that_are_no_float32_scalar(dtype: str, shape: tuple[int, ...]) -> None:
    for specs, name in ((MODELOPT, ".weight_scale_2"), (NVFP4_CT, ".weight_global_scale"), (STACKED, "_scale_2")):
        (fault,) = faults(replaced(specs, name, dtype, shape))
        assert "F32 scalar global scale" in fault


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("m.qweight", "I32", (8, 8)),  # GPTQ
        ("m.weight", "I32", (8, 8)),
        ("m.weight", "F4", (8, 64)),
        ("m.weight_packed", "I32", (8, 8)),  # compressed-tensors int4
        ("m.weight", "U8", (2048, 1)),  # bitsandbytes nf4
        ("m.weight", "I8", (8, 64)),
        ("m_blocks", "U8", (3, 8, 2, 16)),  # of no known projection
        ("l.experts.down_proj_blocks", "U8", (3, 8, 2, 8)),
        ("l.experts.down_proj", "U8", (3, 32, 8)),
        ("l.experts.gate_up_proj", "I8", (3, 32, 8)),
    ],
)
def test_packed_tensors_of_no_known_layout(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    (fault,) = faults([(name, dtype, shape)])
    assert fault.startswith(f"{name} in ")


def test_gate_and_up_rows_that_do_not_pair() -> None:
    specs = [("l.experts.gate_up_proj_blocks", "U8", (3, 7, 2, 16)), ("l.experts.gate_up_proj_scales", "U8", (3, 7, 2))]
    assert len(faults(specs)) == 1


def test_a_stacked_bias_of_another_shape_is_a_fault() -> None:
    assert "gate_up_proj_blocks" in faults(replaced(GPT_OSS, "_bias", shape=(3, 7)))[0]


@pytest.mark.parametrize(
    ("weight", "scales", "first", "second"),
    [
        (
            ("I8", (8, 64)),
            [("scale", "F8_E8M0", (8, 4)), ("weight_scale_inv", "BF16", (8, 1))],
            "mxfp4-deepseek",
            "w4afp8-sglang",
        ),
        (
            ("F8_E4M3", (128, 128)),
            [("weight_scale", "F32", (128, 1)), ("weight_scale_inv", "F32", (1, 1))],
            "fp8-deepseek",
            "fp8-compressed-tensors",
        ),
    ],
)
def test_codes_with_two_meanings(
    weight: tuple[str, tuple[int, ...]], scales: list[Spec], first: str, second: str
) -> None:
    specs = [("a.weight", *weight), *((f"a.{name}", dtype, shape) for name, dtype, shape in scales)]
    with pytest.raises(InputError, match=f"can be read as {first} and as {second}: it has scales of both"):
        recognise(headers(specs))


def test_the_same_matrix_in_two_layouts() -> None:
    assert "m.w1 is stored twice" in faults([*CT, *DEEPSEEK])[0]


def test_all_faults_are_collected() -> None:
    more = [(n.replace("m.", "n."), d, s) for n, d, s in DEEPSEEK[1:]]
    assert len(faults([CT[0], *more, ("m.qweight", "I32", (8, 8))])) == 3


@pytest.mark.parametrize("layout", PACKED)
@pytest.mark.parametrize("shape", ["no rows", "no columns"])
def test_a_matrix_without_elements_is_a_fault(layout: str, shape: str) -> None:
    """Nothing can be said of scales that are not there."""
    empty = {"no rows": {8}, "no columns": {2, 4, 32, 128}}[shape]
    specs = [
        (n, d, s if n.endswith("_shape") else tuple(0 if x in empty else x for x in s)) for n, d, s in EVERY[layout]
    ]
    (fault,) = faults(specs)
    assert "holds no element" in fault


# ---- W4AFP8 and FP8 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("inputs", [("F32", ()), ("F32", (1,)), ("BF16", ()), ("BF16", (1,)), None])
def test_w4afp8_of_sglang_in_all_its_dtypes(dtype: str, inputs: tuple[str, tuple[int, ...]] | None) -> None:
    specs = replaced(SGLANG, ".weight_scale_inv", dtype)
    specs = replaced(specs, ".input_scale", *inputs) if inputs else without(specs, ".input_scale")
    contents = found(specs)
    assert contents.layouts == {"w4afp8-sglang"}
    assert (contents.matrices["m.w1"].input_scale is not None) == (inputs is not None)
    assert not contents.plain


@pytest.mark.parametrize(("leaf", "other"), [("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")])
def test_activation_scales_under_the_experts_other_spelling(leaf: str, other: str) -> None:
    specs = [(n.replace("w1", leaf), d, s) for n, d, s in SGLANG[:2]] + [(f"m.{other}.input_scale", "F32", (1,))]
    contents = found(specs)
    view = contents.matrices[f"m.{leaf}"].input_scale
    assert view is not None
    assert view.tensor.name == f"m.{other}.input_scale"
    assert not contents.plain


@pytest.mark.parametrize("scale", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("shape", ["I64", "I32"])
def test_w4afp8_in_words_in_all_its_dtypes(scale: str, shape: str) -> None:
    contents = found(replaced(replaced(WORDS, ".weight_scale", scale), ".weight_shape", shape))
    assert contents.layouts == {"w4afp8-compressed-tensors"}
    assert contents.matrices["m.w1"].parts["shape"].tensor.name == "m.w1.weight_shape"


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_fp8_in_all_its_dtypes(dtype: str) -> None:
    assert found(replaced(BLOCKS, ".weight_scale_inv", dtype)).layouts == {"fp8-deepseek"}
    assert found(replaced(CHANNELS, ".weight_scale", dtype)).layouts == {"fp8-compressed-tensors"}


@pytest.mark.parametrize(
    ("dtype", "shape"), [("BF16", (8, 4)), ("BF16", (8, 8)), ("F16", (8, 2)), ("U8", (8, 2)), ("F32", (7, 2))]
)
def test_w4afp8_scales_that_do_not_fit(dtype: str, shape: tuple[int, ...]) -> None:
    (fault,) = faults(replaced(SGLANG, ".weight_scale_inv", dtype, shape))
    assert fault.startswith("m.w1.weight in ")
    assert f"weight_scale_inv {dtype} {list(shape)}" in fault  # what it is
    assert "weight_scale_inv BF16 or F32 [8, 2]" in fault  # what it should be


def test_w4afp8_whose_columns_are_no_groups_of_128() -> None:
    specs = replaced(replaced(SGLANG, ".weight", shape=(8, 96)), ".weight_scale_inv", shape=(8, 2))
    assert "holds 192 elements, which is no multiple of 128" in faults(specs)[0]
    specs = replaced(replaced(WORDS, ".weight_packed", shape=(8, 24)), ".weight_scale", shape=(8, 2))
    assert "192 elements a row, which is no multiple of 128" in faults(specs)[0]


@pytest.mark.parametrize(("groups", "size"), [(4, 64), (8, 32), (1, 256)])
def test_words_in_groups_of_another_size(groups: int, size: int) -> None:
    (fault,) = faults(replaced(WORDS, ".weight_scale", shape=(8, groups)))
    assert f"one scale for {size} elements" in fault
    assert "only groups of 128 are read: scales BF16, F16 or F32 [8, 2]" in fault


@pytest.mark.parametrize(
    "specs",
    [
        without(WORDS, ".weight_shape"),
        replaced(WORDS, ".weight_shape", "F32"),
        replaced(WORDS, ".weight_shape", shape=(3,)),
        replaced(WORDS, ".weight_scale", "F8_E4M3"),
        replaced(WORDS, ".weight_scale", shape=(16,)),
    ],
)
def test_words_without_what_they_need(specs: list[Spec]) -> None:
    (fault,) = faults(specs)
    assert fault.startswith("m.w1.weight_packed in ")
    assert "wants two dimensions, scales BF16, F16 or F32 [8, 2] and a weight_shape I64 [2]" in fault


@pytest.mark.parametrize("part", [("weight_zero_point", "I32", (1, 2)), ("weight_g_idx", "I32", (256,))])
def test_words_of_an_asymmetric_or_reordered_scheme(part: tuple[str, str, tuple[int, ...]]) -> None:
    name, dtype, shape = part
    (fault,) = faults([*WORDS, (f"m.w1.{name}", dtype, shape)])
    assert f"has a {name} too" in fault


@pytest.mark.parametrize("shape", [(2, 1), (200, 1), (1, 2), (2,), (200, 2)])
def test_fp8_block_scales_of_the_wrong_shape(shape: tuple[int, ...]) -> None:
    (fault,) = faults(replaced(BLOCKS, ".weight_scale_inv", shape=shape))
    assert fault.startswith("m.w1.weight in ")
    assert f"weight_scale_inv F32 {list(shape)}" in fault
    assert "weight_scale_inv F32 or BF16 [2, 2]" in fault


def test_fp8_without_scales_is_plain() -> None:
    assert set(found(BLOCKS[:1]).plain) == {"m.w1.weight"}
