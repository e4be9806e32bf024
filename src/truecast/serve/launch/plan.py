"""The whole launch of a checkpoint on a topology, worked out from headers; nothing is started or written here."""

from __future__ import annotations

from truecast.errors import InputError, UsageError
from truecast.serve.forecast.memory import MemoryFit
from truecast.serve.forecast.ready import Ready, ready
from truecast.serve.forecast.speed import Forecast, forecast_speed
from truecast.serve.installed import Installation, flags
from truecast.serve.launch import attention, checkpoint, experts, memory, parsers, speculation, timeouts
from truecast.serve.launch.case import Case, Draft
from truecast.serve.launch.environment import environment_settings
from truecast.serve.launch.launch_plan import LaunchPlan
from truecast.serve.launch.plugin import plugin_notes
from truecast.serve.launch.published import differences
from truecast.serve.launch.setting import Setting
from truecast.serve.launch.split import divide, rank_settings
from truecast.serve.launch.versions import NEWEST, version_numbers
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import Topology

__all__ = ["PROFILES", "Draft", "LaunchPlan", "Setting", "plan_launch"]

PROFILES = ("throughput", "latency")
PORT = 30000
STREAMS = 16
"""For the forecast where SGLang is left to choose how many requests run."""


def plan_launch(
    model: StoredModel,
    topology: Topology,
    *,
    version: str = NEWEST,
    installation: Installation | None = None,
    profile: str = "throughput",
    draft: Draft | None = None,
    replicas: int = 1,
    trust_remote_code: bool = False,
) -> LaunchPlan:
    """Work out every flag and variable for serving ``model`` on ``topology`` with SGLang.

    ``version`` is SGLang's; an ``installation`` says its own, and every flag must be among its. ``trust_remote_code``:
    the user's choice to let SGLang run the checkpoint's Python.
    Raises: UsageError for a release that is not known, sizes that do not divide the model, a format without a kernel on
    this GPU, a model that does not fit (by how much, and on what it would); InputError if an installation lacks a flag.
    """
    if profile not in PROFILES:
        raise UsageError(f"no such profile: {profile}", fix=f"one of {', '.join(PROFILES)}")
    if installation is not None:
        version = installation.version or "of no stated version"
    numbers = version_numbers(version)
    if draft is not None:
        speculation.check_draft(draft, model.family)
    split = divide(model, topology, replicas)
    case = Case(model, topology.gpu, split, numbers, profile, draft)
    experts.backend(case)
    case, share, fit = memory.fitted(case)
    if not fit.fits:
        raise _too_large(model, topology, fit)
    arguments = [
        *checkpoint.path_settings(model),
        *experts.expert_settings(case),
        *checkpoint.name_settings(case),
        *checkpoint.remote_code_settings(trust_remote_code),
        *rank_settings(split),
        *timeouts.timeout_settings(case),
        *attention.cache_settings(case),
        *memory.fraction_setting(case, share),
        *attention.attention_settings(case),
        *memory.request_settings(case),
        *speculation.speculation_settings(case),
        *parsers.parser_settings(case),
        Setting("--host", "0.0.0.0", "answer on every interface"),
        Setting("--port", str(PORT), "SGLang's own"),
    ]
    if installation is not None:
        _check_flags(arguments, installation)
    environment = environment_settings(case)
    forecast, unknown = _forecast(case, replicas)
    notes = [
        *checkpoint.fault_notes(model),
        *differences(case, str(topology) if replicas == 1 else "", environment, arguments),
        *checkpoint.remote_code_notes(model, trust_remote_code),
        *experts.expert_notes(case),
        *attention.attention_notes(case),
        *speculation.speculation_notes(case),
        *memory.memory_notes(case, share, fit),
        *unknown,
        *plugin_notes(case, arguments, installation),
    ]
    return LaunchPlan(
        model, topology, version, profile, replicas, split.tp, split.ep, split.nodes, PORT,
        draft.path if draft else None, tuple(environment), tuple(arguments), tuple(notes), fit, _ready(case), forecast,
    )  # fmt: skip


def _check_flags(arguments: list[Setting], installation: Installation) -> None:
    try:
        known = flags(installation)
    except LookupError as error:
        raise InputError(str(error)) from None
    for setting in arguments:
        flag = known.get(setting.name)
        if flag is None:
            raise InputError(f"this SGLang has no {setting.name}", where=str(installation.root))
        if flag.choices is not None and setting.value is not None and setting.value not in flag.choices:
            raise InputError(f"this SGLang has no {setting.name} {setting.value}", where=str(installation.root))


def _too_large(model: StoredModel, topology: Topology, fit: MemoryFit) -> UsageError:
    held = sum(size for name, size in fit.parts.items() if name != "KV cache")
    parts = f"{held / 1e9:.1f} GB of weights, states and buffers, {fit.free / 1e9:.1f} GB for activations and graphs"
    return UsageError(
        f"{model.name} does not fit on {fit.gpus} {topology.gpu.title}: short by {fit.short / 1e9:.1f} GB a GPU"
        f" ({parts}, of {fit.total / 1e9:.1f} GB)",
        where=str(topology),
        fix=f"it would on {', '.join(fit.would_fit)}"
        if fit.would_fit
        else "it would on no topology that is known here",
    )


def _ready(case: Case) -> Ready:
    split = case.split
    return ready(
        case.model, Topology(case.gpu, split.nodes, split.per_node), split.tp, split.ep,
        load_filter=split.ep > 1,
        marlin=experts.backend(case) == "marlin",
        graph_batch=case.streams or 256,
        drafted=speculation.block(case) if case.draft else 0,
    )  # fmt: skip


def _forecast(case: Case, replicas: int) -> tuple[Forecast | None, list[str]]:
    split = case.split
    try:
        found = forecast_speed(
            case.model, Topology(case.gpu, split.nodes, split.per_node), split.tp, split.ep,
            streams=(case.streams or STREAMS) * replicas,
            drafted=speculation.block(case) if case.draft else 0,
            kv_bytes=attention.kv_bytes(case),
            replicas=replicas,
        )  # fmt: skip
    except InputError as error:
        return None, [f"no forecast of speed: {error.problem}"]
    return found, []
