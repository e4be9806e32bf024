"""Which SGLang this is, and whether what lies beside it goes with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.setting import OTHER_VERSION, TESTED, dspark, no_sglang, numbers
from truecast.serve.installed import module_path

KERNEL_OF_TORCH_213 = (0, 4, 7)
"""The first sglang-kernel whose library imports torch::Library::_def with torch 2.13's types."""


def _version(ground: Ground) -> Verdict:
    if ground.installation is None:
        return skipped("no SGLang is installed here or given by --site-packages")
    if said := no_sglang(ground):
        return said
    version, root = ground.installation.version, ground.installation.root
    problems = "; ".join(ground.installation.problems[:3])
    if version not in TESTED:
        return warned(
            f"SGLang {version} in {root}: its sources are read like those of {', '.join(TESTED)}, but were not tested",
            OTHER_VERSION,
        )
    if problems:
        return warned(f"SGLang {version} in {root}; not readable beside it: {problems}", "reinstall that package")
    return passed(f"SGLang {version} in {root}")


def _model(ground: Ground) -> Verdict:
    if ground.installation is None or ground.model is None:
        return skipped("wants an SGLang and a checkpoint (--for)")
    architecture = ground.model.architecture
    if not architecture.isidentifier():
        return skipped(f"config.json names no architecture: {architecture!r}")
    if ground.model.family == "kimi_k3":  # the file is probed: an editable install lists no models
        modules = ["sglang.srt.models.kimi_k3"]
    else:
        modules = _models(ground)
    for module in modules:
        try:
            text = ground.installation.sources(module)
        except LookupError:
            continue
        if f"class {architecture}(" in text:
            return passed(f"{architecture} in {module_path(ground.installation.root, module)}")
    at = ground.installation.root / "sglang" / "srt" / "models"
    return failed(f"no file in {at} defines {architecture}", "install an SGLang that has it; Kimi-K3 came with 0.5.17")


def _models(ground: Ground) -> list[str]:
    assert ground.installation is not None
    folder = ground.installation.root / "sglang" / "srt" / "models"
    return [f"sglang.srt.models.{path.stem}" for path in sorted(folder.glob("*.py"))]


def _pin(distribution: str) -> Callable[[Ground], Verdict]:
    def run(ground: Ground) -> Verdict:
        if ground.installation is None:
            return skipped("no SGLang is installed here or given by --site-packages")
        wanted = ground.installation.pins.get("sglang", {}).get(distribution)
        found = ground.installation.versions.get(distribution)
        if wanted is None:
            return unknown(
                f"the METADATA of SGLang {ground.installation.version or 'of no known version'} is not there or pins no"
                f" {distribution}",
                "install SGLang from its wheel, which says what it was built with",
            )
        if found is None:
            return unknown(
                f"SGLang asks for {distribution} {wanted}, and none lies in {ground.installation.root}",
                f"install {distribution}=={wanted}, or name the site-packages that holds it",
            )
        if found.partition("+")[0] == wanted:
            return passed(f"{distribution} {found}, as SGLang {ground.installation.version} asks")
        return failed(
            f"{distribution} {found}, but the METADATA of SGLang {ground.installation.version} asks for {wanted}",
            f"install {distribution}=={wanted}",
        )

    return run


def _pair(ground: Ground) -> Verdict:
    if ground.installation is None:
        return skipped("no SGLang is installed here or given by --site-packages")
    versions = ground.installation.versions
    kernel, torch = versions.get("sglang-kernel"), versions.get("torch")
    if kernel is None or torch is None:
        return skipped("wants sglang-kernel and torch beside SGLang")
    own = ground.installation.pins.get("sglang-kernel", {}).get("torch")
    if own is not None and torch.partition("+")[0] != own:
        return failed(
            f"sglang-kernel {kernel} was built for torch {own} (its METADATA), and this is torch {torch}: its libraries"
            " import C++ symbols that this torch does not have",
            f"install torch=={own}, or the sglang-kernel that goes with torch {torch}",
        )
    new, release = numbers(kernel) >= KERNEL_OF_TORCH_213, numbers(torch)
    if own is None and (release < (2, 12) if new else release >= (2, 13)):
        return failed(
            f"sglang-kernel {kernel} with torch {torch}: from 0.4.7 on its libraries want torch 2.13's"
            " torch::Library::_def, before that torch 2.11's",
            "install the pair that SGLang's METADATA names (0.5.17: torch 2.11.0 with sglang-kernel 0.4.5)",
        )
    return passed(f"sglang-kernel {kernel} with torch {torch}")


@dataclass(frozen=True, slots=True)
class Known:
    """A fault of some versions with Kimi-K3. ``where``: does this deployment come near it?"""

    issue: str
    versions: tuple[str, ...]
    what: str
    remedy: str
    where: Callable[[Ground], bool]


def _disaggregated(ground: Ground) -> bool:
    return (ground.argument("--disaggregation-mode") or "null") != "null"


KNOWN = (
    Known(
        "sgl-project/sglang#39568",
        ("0.5.16",),
        "hangs in the first decode under TP16",
        "use 0.5.17 or newer",
        lambda ground: True,
    ),
    Known(
        "sgl-project/sglang#36859",
        ("0.5.18", "0.5.19"),
        "answers of one request leak into others under load with prefill/decode disaggregation and DSPARK (open)",
        "use another version, run without disaggregation or without DSPARK, and run the leak canary of `truecast smoke`",
        lambda ground: _disaggregated(ground) and dspark(ground),
    ),
    Known(
        "sgl-project/sglang#36018",
        ("0.5.18",),
        "crashes with --dcp-size, --ep-size and the hierarchical cache together",
        "leave one of them out, or use another version",
        lambda ground: (
            ground.number("--dcp-size", 1) > 1
            and ground.number("--ep-size", 1) > 1
            and ground.argument("--enable-hierarchical-cache") is not None
        ),
    ),
    Known(
        "sgl-project/sglang#34920",
        (),
        "DSPARK with --dcp-size fails in the planner of decode context parallelism (open when it was read)",
        "run DSPARK without --dcp-size, or try it before you rely on it",
        lambda ground: ground.number("--dcp-size", 1) > 1 and dspark(ground),
    ),
    Known(
        "sgl-project/sglang#32541, #32422",
        (),
        "DSPARK with disaggregation: hangs on a geometry mismatch that only the prefill log names, and acceptance that"
        " decays until a restart",
        "watch the prefill log and the accept length; restart if it falls",
        lambda ground: _disaggregated(ground) and dspark(ground),
    ),
)
"""Without versions: reported and not known to be mended."""


def _known(ground: Ground) -> Verdict | list[Verdict]:
    if ground.installation is None or ground.model is None:
        return skipped("wants an SGLang and a checkpoint (--for)")
    if ground.model.family != "kimi_k3":
        return skipped("the list is of Kimi-K3's faults")
    version = ground.installation.version
    if version is None:
        return unknown(f"{ground.installation.root}/sglang tells no version", OTHER_VERSION)
    told = []
    for known in KNOWN:
        if known.versions and version not in known.versions:
            continue
        if known.where(ground):
            say = failed if known.versions else warned
            told.append(say(f"SGLang {version} {known.what} ({known.issue})", known.remedy))
    return told or passed(
        f"none of {len(KNOWN)} faults listed for Kimi-K3 touches SGLang {version} with these arguments"
    )


_PINS = ("METADATA of sglang 0.5.17, 0.5.20, 0.5.23",)
CHECKS = (
    Check("sglang.version", "SGLang is of a version that is known here", _version, ("tests on the released wheels",)),
    Check(
        "sglang.model-file",
        "SGLang has the code of this model",
        _model,
        ("sglang 0.5.16 has no models/kimi_k3.py, 0.5.17 has", "AMD-AGI/Infera#71"),
    ),
    Check(
        "sglang.known-faults",
        "no fault is known of this version with these arguments",
        _known,
        tuple(known.issue for known in KNOWN),
    ),
    Check("sglang.torch", "torch is the one that SGLang asks for", _pin("torch"), _PINS),
    Check("sglang.kernel", "sglang-kernel is the one that SGLang asks for", _pin("sglang-kernel"), _PINS),
    Check("sglang.flashinfer", "FlashInfer is the one that SGLang asks for", _pin("flashinfer-python"), _PINS),
    Check(
        "sglang.torch-pair",
        "sglang-kernel's libraries load with this torch",
        _pair,
        ("METADATA and imported symbols of sglang-kernel 0.4.5, 0.4.7, 0.4.10",),
    ),
)
