"""The whole launch of a checkpoint on a topology, worked out from headers; nothing is started or written here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from truecast.errors import InputError, UsageError
from truecast.serve.forecast.memory import MemoryFit
from truecast.serve.installed import Installation, flags
from truecast.serve.launch import attention, experts, memory, parsers, speculation, timeouts
from truecast.serve.launch.case import Case, Draft, Split
from truecast.serve.launch.environment import environment_settings
from truecast.serve.launch.plugin import plugin_notes
from truecast.serve.launch.published import differences
from truecast.serve.launch.setting import Setting
from truecast.serve.launch.split import divide
from truecast.serve.launch.versions import NEWEST, version_numbers
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import Topology

__all__ = ["Draft", "LaunchPlan", "Setting", "plan_launch"]

PROFILES = ("throughput", "latency")
PORT, RENDEZVOUS = 30000, 20000
_RELEASED = (93, 896)
"""Layers and experts of the released Kimi-K3, which clients ask for by its name on the Hub."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What every node runs. ``environment`` and ``arguments`` are in the order in which they are printed.

    ``version`` is SGLang's. ``tp`` and ``ep`` are of one replica, ``nodes_per_replica`` its nodes. Node ``k`` of replica
    ``r`` is node ``r * nodes_per_replica + k`` of the topology where a replica takes whole nodes; replicas that share a
    node (``replicas_per_node`` above 1) take ``tp`` of its GPUs each, in order. The arguments hold what is the same on
    each node of the first replica; the node's rank and the head's address come in as ``$NODE_RANK`` and ``$HEAD``, or
    through :meth:`command`. ``port``: of the first replica. ``draft``: a draft model's path or repository. ``notes`` are
    for people: differences from a published command with their reasons, warnings, what else was possible.
    """

    model: StoredModel
    topology: Topology
    version: str
    profile: str
    replicas: int
    tp: int
    ep: int
    nodes_per_replica: int
    port: int
    draft: str | None
    environment: tuple[Setting, ...]
    arguments: tuple[Setting, ...]
    notes: tuple[str, ...]
    fit: MemoryFit

    @property
    def replicas_per_node(self) -> int:
        """Above 1 where replicas share a node."""
        return max(self.replicas // self.topology.nodes, 1)

    def port_of(self, replica: int) -> int:
        """Where a replica's head answers: replicas on one node have ports of their own."""
        return self.port + replica % self.replicas_per_node

    def node_of(self, replica: int, rank: int = 0) -> int:
        """Which node of the topology runs rank ``rank`` of the nodes of a replica, from 0."""
        return replica // self.replicas_per_node if self.replicas_per_node > 1 else replica * self.nodes_per_replica + rank

    def settings(self, replica: int = 0) -> tuple[Setting, ...]:
        """The arguments of one replica: those of the first but for port and GPUs where replicas share a node."""
        place = replica % self.replicas_per_node
        if not place:
            return self.arguments
        changed = [replace(a, value=str(self.port_of(replica))) if a.name == "--port" else a for a in self.arguments]
        first = Setting("--base-gpu-id", str(place * self.tp), "replicas on one node have GPUs of their own")
        return (*changed, first)

    def command(self, node_rank: str, head: str, replica: int = 0) -> list[str]:
        """Words of ``sglang serve ...`` for one node, unquoted; ``head`` is the address of its replica's first node."""
        address = f"[{head}]" if ":" in head else head
        words = ["sglang", "serve"]
        for setting in self.settings(replica):
            words.append(setting.name)
            if setting.value is not None:
                value = setting.value
                if setting.shell:
                    value = value.replace("$NODE_RANK", node_rank).replace("$HEAD", address)
                words.append(value)
        return words


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
    share, fit = memory.fitted(case)
    if not fit.fits:
        raise _too_large(model, topology, fit)
    arguments = [
        Setting("--model-path", _path(model), "the checkpoint"),
        *experts.expert_settings(case),
        *_name(case),
        *_remote_code(model, trust_remote_code),
        *_ranks(split),
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
    notes = [
        *differences(case, str(topology) if replicas == 1 else "", environment, arguments),
        *_remote_code_notes(model, trust_remote_code),
        *experts.expert_notes(case),
        *attention.attention_notes(case),
        *speculation.speculation_notes(case),
        *memory.memory_notes(case, fit),
        *plugin_notes(case, arguments, installation),
    ]
    return LaunchPlan(
        model, topology, version, profile, replicas, split.tp, split.ep, split.nodes, PORT,
        draft.path if draft else None, tuple(environment), tuple(arguments), tuple(notes), fit,
    )  # fmt: skip


def _path(model: StoredModel) -> str:
    """As SGLang takes it: ``hf://owner/name`` is ``owner/name`` there."""
    return model.location.removeprefix("hf://")


def _name(case: Case) -> list[Setting]:
    if case.is_k3 and (case.model.layers, case.model.experts) == _RELEASED:
        return [Setting("--served-model-name", "moonshotai/Kimi-K3", "the model's own name, whatever its format")]
    return [Setting("--served-model-name", case.model.name or "model", "the checkpoint's name, without its path")]


def _remote_code(model: StoredModel, trusted: bool) -> list[Setting]:
    return [Setting("--trust-remote-code", None, "as asked for")] if trusted else []


def _remote_code_notes(model: StoredModel, trusted: bool) -> list[str]:
    if not model.remote_code:
        return []
    named = ", ".join(model.remote_code)
    if trusted:
        return [f"--trust-remote-code lets SGLang run the checkpoint's own Python on every node: {named}. Read it first"]
    return [
        f"the checkpoint names Python files that could be run: {named}. They are not, unless you say --trust-remote-code;"
        " SGLang may refuse tokenizer or processor without"
    ]


def _ranks(split: Split) -> list[Setting]:
    found = [Setting("--tp-size", str(split.tp), f"{split.tp} GPUs share one copy of the model")]
    if split.tp > 1:
        found.append(Setting("--ep-size", str(split.ep), split.why))
    if split.nodes > 1:
        found += [
            Setting("--nnodes", str(split.nodes), f"{split.per_node} GPUs each"),
            Setting("--node-rank", "$NODE_RANK", "all that differs between nodes", shell=True),
            Setting("--dist-init-addr", f"$HEAD:{RENDEZVOUS}", "where the ranks meet, on the first node", shell=True),
        ]
    return found


def _check_flags(arguments: list[Setting], installation: Installation) -> None:
    known = flags(installation)
    for setting in arguments:
        flag = known.get(setting.name)
        if flag is None:
            raise InputError(f"this SGLang has no {setting.name}", where=str(installation.root))
        if flag.choices is not None and setting.value is not None and setting.value not in flag.choices:
            raise InputError(f"this SGLang has no {setting.name} {setting.value}", where=str(installation.root))


def _too_large(model: StoredModel, topology: Topology, fit: MemoryFit) -> UsageError:
    would = f"it would on {', '.join(fit.would_fit)}" if fit.would_fit else "it would on no topology that is known here"
    return UsageError(
        f"{model.name} does not fit on {fit.gpus} {topology.gpu.title}: {'; '.join(fit.reasons)}", where=str(topology), fix=would
    )
