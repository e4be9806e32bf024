"""Interfaces, routes and RDMA adapters, against the kernel of the machine that runs the test and made trees."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from truecast.serve.machine import Interface, ThisMachine, network

HERE = ThisMachine()


def test_loopback_is_there() -> None:
    (loopback,) = (i for i in HERE.interfaces() if i.name == "lo")
    assert "127.0.0.1/8" in loopback.addresses and loopback.up and loopback.virtual


def test_every_address_is_owned() -> None:
    for interface in HERE.interfaces():
        for address in interface.addresses:
            if interface.up and not address.startswith("fe80:"):  # those are bound to with a scope only
                assert HERE.owns(address.partition("/")[0]), interface
    assert not HERE.owns("203.0.113.77") and not HERE.owns("no address")


def test_routes_and_names() -> None:
    assert HERE.source_address("127.0.0.1") == "127.0.0.1"
    assert HERE.resolve("127.0.0.1") == "127.0.0.1"
    for name in ("no-such-host.invalid", "x" * 300, "a..b"):
        assert HERE.resolve(name) is None and HERE.source_address(name) is None


def test_the_source_of_a_route_is_what_a_socket_gets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()[:2]) as client:
        assert HERE.source_address(server.getsockname()[0]) == client.getsockname()[0]


def _port(root: Path, device: str, port: str, state: str, link: str, gids: dict[int, tuple[str, str | None]]) -> None:
    folder = root / device / "ports" / port
    (folder / "gids").mkdir(parents=True)
    (folder / "gid_attrs" / "types").mkdir(parents=True)
    (folder / "state").write_text(f"{state}\n")
    (folder / "link_layer").write_text(f"{link}\n")
    for index, (gid, kind) in gids.items():
        (folder / "gids" / str(index)).write_text(f"{gid}\n")
        if kind:
            (folder / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")


def test_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros, mapped = "0000:" * 7 + "0000", "0000:0000:0000:0000:0000:ffff:0a00:0005"
    gids: dict[int, tuple[str, str | None]] = {
        0: (mapped, "IB/RoCE v1"),
        1: (mapped, "RoCE v2"),
        10: (zeros, None),
        2: (zeros, None),
    }
    _port(tmp_path, "mlx5_1", "1", "4: ACTIVE", "Ethernet", gids)
    _port(tmp_path, "mlx5_0", "1", "1: DOWN", "InfiniBand", {})
    monkeypatch.setattr(network, "_RDMA", tmp_path)
    down, up = HERE.adapters()
    assert (down.device, down.active, down.link, down.gids) == ("mlx5_0", False, "InfiniBand", ())
    assert (up.device, up.port, up.active) == ("mlx5_1", 1, True)
    assert [(index, kind) for index, _, kind in up.gids] == [(0, "IB/RoCE v1"), (1, "RoCE v2")]
    monkeypatch.setattr(network, "_RDMA", tmp_path / "none")
    assert HERE.adapters() == []


def test_ipv6_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "if_inet6"
    table.write_text(
        "fd000000000000000000000000000002 04 40 00 82     lo\nfe80000000000000000000000000aaaa 04 40 20 80 other\n"
    )
    monkeypatch.setattr(network, "_TABLE_V6", table)
    (loopback,) = (i for i in network.interfaces() if i.name == "lo")
    assert loopback == Interface("lo", ("127.0.0.1/8", "fd00::2/64"), True, True)
