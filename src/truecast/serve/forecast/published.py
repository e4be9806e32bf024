"""Published speeds of Kimi-K3 on SGLang, as data: what the constants were fitted to, and what the error is stated on.

Left out, and why: MI355X (another vendor's kernels and links); vLLM on B300 and on H200 (another engine, and the drafts'
acceptance is not stated); two nodes of B300 with DeepEP (no all-reduce; speculation is not stated); 16 B200 at 128 streams
of 8,192 tokens and at 32 of 28,446 (requests wait for KV cache); B200 with a repeated passage as text (6.4 of 7 accepted);
GB300 at "857 tokens a second and GPU" (lengths are not stated).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from truecast.serve.forecast.constants import ACCEPTED
from truecast.serve.forecast.shape import Shape

_VISITED = 2 * 1_446_456_066_048 * 8 / 4.25 * 16 / 896

KIMI_K3 = Shape(
    "mxfp4", 93, 7168, 896, 16, 1_446_456_066_048, 102_007_963_648, 12_396_295_168, 13_824 * 2, False,
    108_527_616 * 4 + 7_630_848 * 2, _VISITED, _VISITED + 102_007_963_648 + 12_396_295_168,
)  # fmt: skip
"""Kimi-K3 as released, BF16 KV cache, FP32 states: what shape_of reads off its headers."""

_ATTENTION = 82_000_000_000
"""Bytes of the attention projections in BF16, which W4AFP8 as published stores in FP8."""

SHAPES = {
    "mxfp4": KIMI_K3,
    "nvfp4": replace(KIMI_K3, format="nvfp4", expert_bytes=KIMI_K3.expert_bytes * 450 // 425),
    "w4afp8": replace(
        KIMI_K3,
        format="w4afp8",
        expert_bytes=KIMI_K3.expert_bytes * 4125 // 4250,
        split_bytes=KIMI_K3.split_bytes - _ATTENTION // 2,
    ),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One published speed: ``milliseconds`` a token and stream.

    ``whole``: does it include the wait for the first token? ``drafted`` tokens a step (0: no speculation) of which with
    the model's own ``accepted`` come out. ``prompt`` and ``output`` tokens of a request. ``prefills``: does the same
    server read the prompts? ``fitted``: False for what a fixed constant was taken from, or is checked only.
    """

    deployment: str
    machine: str
    topology: str
    tp: int
    ep: int
    format: str
    streams: float
    milliseconds: float
    source: str
    drafted: int = 0
    accepted: float = 1.0
    prompt: float = 8192
    output: float = 1024
    whole: bool = False
    prefills: bool = True
    dcp: int = 1
    kv_bytes: int = 2
    tile_fixed: bool = True
    fitted: bool = True


_PR = "github.com/sgl-project/sglang/pull/"
_B200 = "github.com/kernelore/kimi-k3-gcp-enterprise-serving, README"
_CARD = "huggingface.co/Radioheading/Kimi-K3-W4AFP8"


def _b300(form: str, drafted: int, *pairs: tuple[int, float]) -> list[Point]:
    accepted = ACCEPTED.get(drafted, 1.0)
    where = f"B300 1x8, SGLang 0.5.18, {form.upper()}"
    return [Point(where, "B300", "b300:1x8", 8, 1, form, c, ms, f"{_PR}37878", drafted, accepted) for c, ms in pairs]


def _b200(prompt: int, *pairs: tuple[int, float]) -> list[Point]:
    return [
        Point(
            "B200 2x8, SGLang 0.5.16, MXFP4",
            "B200",
            "b200:2x8",
            16,
            16,
            "mxfp4",
            c,
            ms,
            _B200,
            prompt=prompt,
            whole=True,
        )
        for c, ms in pairs
    ]


def _b200_drafts(*triples: tuple[int, float, float]) -> list[Point]:
    return [
        Point(
            "B200 2x8, SGLang 0.5.16, MXFP4", "B200", "b200:2x8", 16, 16, "mxfp4", c, 1000 * c / rate, _B200, 7, accepted,
            prompt=1523, whole=True,
        )
        for c, accepted, rate in triples
    ]  # fmt: skip


def _gb200(ep: int, dcp: int, *pairs: tuple[float, float]) -> list[Point]:
    """Decode pools behind a prefill pool: streams are throughput over speed of a stream."""
    return [
        Point(
            "GB200 4x4, SGLang 0.5.16, MXFP4", "GB200", "b200:4x4", 16, ep, "mxfp4", rate * 16 / user, 1000 / user,
            f"{_PR}32592", dcp=dcp, prefills=False,
        )
        for rate, user in pairs
    ]  # fmt: skip


def _gh200(form: str, *pairs: tuple[int, float], tile: bool = True) -> list[Point]:
    return [
        Point(
            f"GH200 8x4, SGLang 0.5.20, {form.upper()}", "GH200", "gh200:8x4", 32, 32, form, c, 1000 / rate, _CARD, 2,
            ACCEPTED[2], prompt=200, output=20_000, kv_bytes=1, tile_fixed=tile, fitted=tile,
        )
        for c, rate in pairs
    ]  # fmt: skip


POINTS: tuple[Point, ...] = (
    *_b300("mxfp4", 0, (1, 8.51), (16, 19.47), (64, 40.19)),
    *_b300("mxfp4", 7, (1, 2.84), (16, 9.88), (64, 24.47)),
    *_b300("nvfp4", 0, (1, 10.12), (16, 20.94), (64, 41.55)),
    *_b300("nvfp4", 7, (1, 3.24), (16, 9.77), (64, 22.17)),
    *_b200(918, (1, 1000 / 40.52), (8, 28.89), (16, 32.52), (32, 36.38), (128, 128_000 / 2314.46)),
    *_b200(7133, (1, 1000 / 40.29), (8, 31.29), (16, 37.63), (32, 46.93)),
    *_b200_drafts((8, 2.20, 401.99), (16, 2.28, 656.60), (32, 2.24, 1028.57)),
    *_gb200(1, 1, (87.4, 23.9), (90.2, 23.9)),
    *_gb200(1, 16, (126.1, 18.7), (144.2, 16.1)),
    *_gb200(16, 16, (136.1, 20.6), (153.5, 17.5)),
    *_gh200("mxfp4", (50, 29.6), (20, 40.6)),
    *_gh200("w4afp8", (50, 34.1), (20, 43.6)),
    *_gh200("mxfp4", (50, 23.6), tile=False),
)
