"""Legal sizes: Kimi-K3's against the engines' own rules worked by hand, the rest against the definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truecast.errors import UsageError
from truecast.serve import Module, legal_parallel

EXPERTS, LATENT, WIDTH, HEADS = 896, 3584, 3072, 96
LAYER = "language_model.model.layers.1."


def bank(target: str, experts: int = EXPERTS, latent: int = LATENT, width: int = WIDTH) -> list[Module]:
    prefix = f"{LAYER}block_sparse_moe.experts"
    shapes = {"w1": (width, latent), "w2": (latent, width), "w3": (width, latent)}
    return [Module(f"{prefix}.{e}.{leaf}", *shapes[leaf], target) for e in range(experts) for leaf in shapes]


def divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, 129) if number % n == 0)


@pytest.mark.parametrize(
    ("target", "dialect", "groups", "unpadded"),
    [
        ("w4afp8", "sglang", 24, 6),  # 3072/128 groups; 3072/512 interleaved by four
        ("w4afp8", "compressed-tensors", 12, 12),  # 3072/256
        ("mxfp4", "compressed-tensors", 96, 24),  # 3072/32, 3072/128
        ("nvfp4", "modelopt", 192, 48),  # 3072/16, 3072/64
        ("fp8", "deepseek", 24, 24),
        ("fp8", "compressed-tensors", 192, 192),
        ("bf16", "bf16", 3072, 3072),
    ],
)
def test_kimi_k3(target: str, dialect: str, groups: int, unpadded: int) -> None:
    found = legal_parallel(bank(target), target, dialect, heads=HEADS)
    assert found.tp == divisors(groups)
    assert found.unpadded == divisors(unpadded)
    assert found.ep == (1, 2, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128)
    assert found.dense == divisors(HEADS)


def test_whole_experts_are_preferred_and_heads_limit_all() -> None:
    found = legal_parallel(bank("w4afp8"), "w4afp8", "sglang", heads=HEADS)
    assert found.split(32) == (1, 32)
    assert found.split(12) == (3, 4)
    assert found.split(64) is None, "96 heads"
    assert found.split(5) is None


def test_fp8_modules_beside_the_experts_keep_whole_tiles() -> None:
    """The dense layer's 33792 is 264 tiles and the shared experts' 6144 is 48: neither can be cut in 16 and 32."""
    projection = Module(f"{LAYER}self_attn.q_proj", 12288, 7168, "fp8")
    dense = Module("language_model.model.layers.0.mlp.down_proj", 7168, 33792, "fp8")
    shared = Module(f"{LAYER}block_sparse_moe.shared_experts.up_proj", 6144, 7168, "fp8")
    experts = bank("w4afp8", 8)
    assert 32 in legal_parallel([*experts, projection], "w4afp8", "sglang").dense
    assert 16 not in legal_parallel([*experts, projection, dense], "w4afp8", "sglang").dense
    with_shared = legal_parallel([*experts, projection, shared], "w4afp8", "sglang").dense
    assert 16 in with_shared and 32 not in with_shared


def test_a_kept_matrix_of_another_format_does_not_count() -> None:
    draft = Module("mtp.0.experts.0.w2", 64, 96, "mxfp4")
    assert legal_parallel([*bank("nvfp4", 8), draft], "nvfp4", "modelopt").tp == divisors(192)


def test_banks_of_different_sizes_divide_by_what_they_share() -> None:
    small = [Module(m.name.replace("layers.1.", "layers.2."), m.rows, m.cols, m.format) for m in bank("mxfp4", 6)]
    assert legal_parallel([*bank("mxfp4", 8), *small], "mxfp4", "compressed-tensors").ep == (1, 2)


def test_where_nothing_is_legal() -> None:
    assert legal_parallel(bank("fp8", 2, width=192), "fp8", "deepseek").tp == ()
    latent_384 = bank("w4afp8", 2, latent=384)  # whole groups, but vLLM asserts multiples of 256 on both axes
    assert legal_parallel(latent_384, "w4afp8", "compressed-tensors").tp == ()
    assert legal_parallel(latent_384, "w4afp8", "sglang").tp == divisors(24)


def test_an_unknown_dialect_is_named() -> None:
    with pytest.raises(UsageError, match="w4afp8 in the marlin dialect"):
        legal_parallel([], "w4afp8", "marlin")


@given(groups=st.integers(1, 64), experts=st.integers(1, 40), gpus=st.integers(1, 128))
def test_every_split_leaves_whole_groups_and_whole_experts(groups: int, experts: int, gpus: int) -> None:
    width = 128 * groups
    split = legal_parallel(bank("w4afp8", experts, width=width), "w4afp8", "sglang").split(gpus)
    legal = [
        (tp, gpus // tp)
        for tp in range(1, gpus + 1)
        if gpus % tp == 0 and groups % tp == 0 and experts % (gpus // tp) == 0
    ]
    assert split == (legal[0] if legal else None)
