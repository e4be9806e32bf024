"""Nodes files."""

from __future__ import annotations

from pathlib import Path

import pytest

from truecast.errors import UsageError
from truecast.serve.launch.nodes import Node, read_nodes


def test_hosts_users_comments_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("# rack 3\nnode-0.example.org\n\n  admin@10.0.0.2  # the other\r\n\tfe80::1\n")
    nodes = read_nodes(path, 3)
    assert nodes == [Node("node-0.example.org"), Node("10.0.0.2", "admin"), Node("fe80::1")]
    assert str(nodes[1]) == "admin@10.0.0.2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n", "1 nodes, and the topology has 2"),
        ("a\nb\nc\n", "3 nodes, and the topology has 2"),
        ("a\nx@a\n", "line 2: a is there twice"),
        ("a\n-oProxyCommand=touch\n", "line 2 is no \\[user@\\]host: '-oProxyCommand=touch'"),
        ("a\nroot@-x\n", "line 2 is no"),
        ("a\nb; reboot\n", "line 2 is no"),
        ("a\n$(reboot)\n", "line 2 is no"),
        ("a\nb c\n", "line 2 is no"),
        ("a\nb\0\n", "line 2 is no"),
    ],
)
def test_what_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_nodes(path, 2)


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_nodes(tmp_path / "none", 1)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        read_nodes(tmp_path / "binary", 1)
