"""RDMA adapters: those that NCCL is told to use are there and up, RoCE has its GID, and a container may use them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from truecast.serve.doctor.collectives import read_names
from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.nodes import alone, elsewhere, here
from truecast.serve.machine import Hca

HCA, GID = "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"
LEAST_LOCKED = 64 << 20
"""Bytes below which adapters cannot even make their queues; systemd's default is 8 MiB."""
_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


def _listed(adapters: Iterable[Hca]) -> str:
    return ", ".join(f"{a.device}:{a.port} ({a.link}, {'active' if a.active else 'down'})" for a in adapters) or "none"


def taken(ground: Ground) -> list[Hca]:
    """Ports that NCCL would use: those that are active, and that ``NCCL_IB_HCA`` means where it is set."""
    names = read_names(ground.environment.get(HCA, ""))
    every = [a for a in here(ground).adapters() if a.active]
    return [a for a in every if names.take(a.device, a.port)] if names.names else every


def _adapters(ground: Ground) -> Verdict:
    if why := alone(ground) or elsewhere(ground):
        return skipped(why)
    machine = here(ground)
    adapters, text = machine.adapters(), ground.environment.get(HCA, "")
    if ground.environment.get("NCCL_IB_DISABLE") == "1":
        return warned(f"NCCL_IB_DISABLE=1, adapters: {_listed(adapters)}; NCCL goes over TCP", "unset NCCL_IB_DISABLE")
    if not adapters and not text and machine.gpus() is None:
        return skipped("neither a GPU nor an RDMA adapter here: this is no node that serves")
    used = taken(ground)
    if not used:
        told = f"{HCA}={text}; " if text else ""
        return warned(
            f"{told}no active RDMA adapter is left, so NCCL goes over TCP; there are: {_listed(adapters)}",
            "name adapters that are there and up, or load their driver",
        )
    names = read_names(text)
    for pattern in names.names:
        meant = [a for a in adapters if names.one(pattern, a.device, a.port)]
        if not names.out and not any(a.active for a in meant):
            return warned(f"{HCA} names {pattern}: {_listed(meant)}; there are: {_listed(adapters)}", _REMEDY)
        more = sorted({a.device for a in meant} - {pattern.partition(":")[0]})
        if more and any(a.device == pattern.partition(":")[0] for a in meant):
            return warned(
                f"{HCA}={text}: {pattern} is the beginning of {', '.join(more)} too, which NCCL takes with it",
                f"begin the list with =, as in {HCA}=={text}",
            )
    if not names.names and len(links := {a.link for a in used}) > 1:
        return warned(
            f"{HCA} is not set and NCCL would use adapters of {' and '.join(sorted(links))}: {_listed(used)}",
            f"name those of the network between the nodes: {HCA}={_those(used)}",
        )
    return passed(f"NCCL would use {_listed(used)}" + (f" ({HCA}={text})" if text else ""))


_REMEDY = f"name in {HCA} adapters that are there and up, the same kind on every node"


def _those(used: list[Hca]) -> str:
    fabric = [a.device for a in used if a.link == "InfiniBand"] or [a.device for a in used]
    return "=" + ",".join(dict.fromkeys(fabric))


def _gids(ground: Ground) -> Verdict:
    if why := alone(ground) or elsewhere(ground):
        return skipped(why)
    ethernet = [a for a in taken(ground) if a.link == "Ethernet"]
    if not ethernet:
        return skipped("no adapter with RoCE is used, and InfiniBand needs no GID index")
    text = ground.environment.get(GID)
    if text in (None, "-1"):  # NCCL's own default
        return _chosen(ethernet)
    assert text is not None
    if not text.isdecimal():
        return failed(f"{GID}={text!r} is no index", f"unset {GID}, or name a RoCE v2 entry")
    for adapter in ethernet:
        found = {index: (gid, kind) for index, gid, kind in adapter.gids}
        table = "; ".join(f"{i}: {g} {k}" for i, (g, k) in found.items()) or "empty"
        if int(text) not in found:
            return failed(f"{GID}={text}: {adapter.device} has no such entry; its table: {table}", _GID_REMEDY)
        if found[int(text)][1] and "v2" not in found[int(text)][1]:
            return warned(
                f"{GID}={text}: on {adapter.device} that is {found[int(text)][1]}; its table: {table}", _GID_REMEDY
            )
    return passed(f"{GID}={text} is there on {', '.join(a.device for a in ethernet)}")


_GID_REMEDY = (
    f"unset {GID} (NCCL 2.21 and newer choose one), or name an index that is RoCE v2 on every adapter and node"
)


def _chosen(ethernet: list[Hca]) -> Verdict:
    for adapter in ethernet:
        if not any("v2" in kind and _routed(gid) for _, gid, kind in adapter.gids):
            return warned(
                f"{GID} is not set, and {adapter.device} has no RoCE v2 entry with an IP address",
                "give the adapter's interface an IP address",
            )
    return passed(f"{GID} is not set; every adapter has a RoCE v2 entry with an IP address for NCCL to choose")


def _routed(gid: str) -> bool:
    return not ipaddress.ip_address(gid).is_link_local


def _container(ground: Ground) -> Verdict:
    if why := alone(ground) or elsewhere(ground):
        return skipped(why)
    machine = here(ground)
    adapters = machine.adapters()
    if not any(a.active for a in adapters):
        return skipped("no active RDMA adapter")
    if not machine.verbs():
        return warned(
            f"{_listed(adapters)}, but no /dev/infiniband/uverbs*: NCCL goes over TCP",
            "give the container the devices: --device=/dev/infiniband",
        )
    limits = machine.limits()
    soft = limits.locked[0]
    if soft is None or limits.may_lock:
        how = "unlimited" if soft is None else f"{soft:,} bytes, which CAP_IPC_LOCK lifts"
        return passed(f"/dev/infiniband is there; locked memory: {how}")
    said = f"locked memory is limited to {soft:,} bytes (ulimit -l), and adapters lock what they transfer"
    remedy = "ulimit -l unlimited; in Docker --ulimit memlock=-1; under systemd LimitMEMLOCK=infinity"
    return failed(said, remedy) if soft < LEAST_LOCKED else warned(said, remedy)


CHECKS: Iterable[Check] = (
    Check(
        "network.adapters",
        "NCCL uses the RDMA adapters of the network between the nodes",
        _adapters,
        ("https://github.com/NVIDIA-NeMo/RL/pull/3670", _DOCS),
    ),
    Check(
        "network.gid",
        "the GID index that NCCL is told is there on every adapter",
        _gids,
        ("https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/pull/16", _DOCS),
    ),
    Check("network.container", "programs here may use the RDMA adapters", _container, (_TROUBLE,)),
)
