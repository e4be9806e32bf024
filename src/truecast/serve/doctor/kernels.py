"""The compiled kernels beside SGLang: for which GPU, and are those there that the arguments ask for."""

from __future__ import annotations

from pathlib import Path

from truecast.engines.sglang import binary
from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.setting import quantization

HOPPER = 90
FLASHMLA = "sglang.srt.layers.attention.flashmla_backend"
_BACKENDS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
_CUTLASS = ("w4afp8", "fp8", "compressed-tensors", "modelopt_fp8", "w8a8_fp8")
"""Methods whose Hopper kernels are CUTLASS's, or may be."""


def _sm90a(ground: Ground) -> Verdict:
    if ground.installation is None:
        return skipped("no SGLang is installed here or given by --site-packages")
    if ground.capability is not None and ground.capability != HOPPER:
        return skipped(f"sm_90a is Hopper's, and this is {ground.topology}")
    folder = ground.installation.path("sgl_kernel")
    if folder is None:
        return unknown(f"no sgl_kernel in {ground.installation.root}", "install sglang-kernel beside SGLang")
    libraries = sorted(folder.glob("sm90/common_ops*.so"))
    if not libraries:
        return failed(
            f"{folder}/sm90 holds no common_ops library", "install the sglang-kernel wheel for this machine again"
        )
    host = ground.topology.gpu.host if ground.topology is not None else ""
    return _look(libraries[0], ground.installation.version or "main", host, _wanted(ground))


def _look(library: Path, version: str, host: str, wanted: bool | None) -> Verdict:
    try:
        found = binary.architectures(library)
    except (OSError, ValueError) as error:
        return unknown(f"{library} cannot be read: {error}", "install the sglang-kernel wheel")
    has = ", ".join(sorted(found)) or "no machine code"
    if "sm_90a" in found:
        return passed(f"{library} has {has}")
    say = warned if wanted is False else failed
    return say(
        f"{library} has {has}, and no sm_90a: CUTLASS kernels for Hopper (W4AFP8, FP8) abort with"
        ' "Arch conditional MMA instruction used without targeting"',
        binary.RECIPE.format(version=version, machine=host or "a machine like this one", path=library),
    )


def _wanted(ground: Ground) -> bool | None:
    """Does this model run CUTLASS kernels for Hopper? None where it is not told."""
    if ground.model is None:
        return None
    method = quantization(ground)
    if ground.model.format in ("w4afp8", "fp8"):
        return True
    return method in _CUTLASS and ground.model.format not in ("mxfp4", "nvfp4")


def _asked(ground: Ground, backend: str) -> Verdict | str | None:
    """The argument that asks for this attention backend, None if none does; a SKIP where it does not come to that."""
    if ground.installation is None:
        return skipped("no SGLang is installed here or given by --site-packages")
    if ground.capability is not None and ground.capability != HOPPER:
        return skipped(f"asked on Hopper, and this is {ground.topology}")
    if ground.arguments is None:
        return skipped("the server's arguments are not given")
    return next((name for name in _BACKENDS if ground.argument(name) == backend), None)


def _flash_attention(ground: Ground) -> Verdict:
    asked = _asked(ground, "fa3")
    if isinstance(asked, Verdict):
        return asked
    assert ground.installation is not None
    folder = ground.installation.path("sgl_kernel")
    if folder is None:
        return unknown(f"no sgl_kernel in {ground.installation.root}", "install sglang-kernel beside SGLang")
    if found := sorted(folder.glob("flash_ops*.so")):
        return passed(f"{found[0]} is there")
    instead = "the aarch64 wheels have none: set --attention-backend flashinfer (or flashmla for MLA)"
    if asked:
        return failed(f"{asked} fa3, and {folder} holds no flash_ops library", instead)
    every, prefill, decode = (ground.argument(name) for name in _BACKENDS)
    if every or (prefill and decode):
        return passed(f"fa3 is not asked for; {folder} holds no flash_ops library")
    return warned(
        f"{folder} holds no flash_ops library, and no attention backend is set: on Hopper SGLang may choose fa3",
        instead,
    )


def _flash_mla(ground: Ground) -> Verdict:
    asked = _asked(ground, "flashmla")
    if isinstance(asked, Verdict):
        return asked
    if asked is None:
        return skipped("flashmla is not asked for")
    assert ground.installation is not None
    package, pattern, get = "flash_mla", "*.so", "install sgl-flash-mla"
    if "sgl_kernel.flash_mla" in ground.installation.sources(FLASHMLA):
        package, pattern, get = "sgl_kernel", "flashmla_ops*.so", "install the sglang-kernel wheel"
    folder = ground.installation.path(package)
    found = sorted(folder.glob(pattern)) if folder is not None else []
    if package == "flash_mla" and folder is not None:  # it finds its library by itself
        return passed(f"{asked} flashmla, and {folder} is there")
    if found:
        return passed(f"{asked} flashmla, and {found[0]} is there")
    if "sglang-kernel" not in ground.installation.versions:
        return unknown(f"no {package} and no sglang-kernel in {ground.installation.root}", get)
    return failed(f"{asked} flashmla, and {ground.installation.root}/{package} holds no {pattern}", get)


_AARCH64 = "wheels of sglang-kernel 0.4.7 and 0.4.10 for aarch64, read"
CHECKS = (
    Check(
        "kernel.sm90a",
        "the kernels for Hopper were compiled with sm_90a",
        _sm90a,
        (_AARCH64, "NVIDIA/cutlass#3174", "sgl-project/sglang#38515", "Kimi-K3-W4AFP8 card, patch 01"),
    ),
    Check(
        "kernel.flash-attention",
        "FlashAttention 3 is there if it would be used",
        _flash_attention,
        (_AARCH64, "sgl_kernel/flash_attn.py"),
    ),
    Check(
        "kernel.flash-mla",
        "FlashMLA is there if it is asked for",
        _flash_mla,
        ("sglang/srt/layers/attention/flashmla_backend.py", "METADATA of sglang 0.5.23"),
    ),
)
