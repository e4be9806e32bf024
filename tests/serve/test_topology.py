import json
from pathlib import Path

import pytest

from truecast.errors import UsageError
from truecast.serve.topology import read_topology


def test_short_form_is_nodes_by_gpus() -> None:
    found = read_topology("gh200:8x4")
    assert (found.gpu.name, found.nodes, found.per_node, found.gpus) == ("gh200", 8, 4, 32)
    assert str(found) == "gh200:8x4"


def test_file_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rack.json"
    path.write_text(json.dumps({"gpu": "B200", "nodes": 2, "gpus_per_node": 8}))
    assert read_topology(str(path)) == read_topology("b200:2x8")


@pytest.mark.parametrize(
    "text", ["gh200:0x4", "gh200:8x0", "gh200:8x73", "gh200:1025x4", "a100:8x8", "gh200", "8x4", ""]
)
def test_what_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError):
        read_topology(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"gpu":"h200","nodes":2}',
        '{"gpu":"h200","nodes":true,"gpus_per_node":8}',
        '{"gpu":1,"nodes":1,"gpus_per_node":1}',
        "[" * 100_000,
    ],
)
def test_files_that_say_something_else_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rack.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"rack\.json"):
        read_topology(str(path))


def test_a_file_without_end_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "rack.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match=r"rack\.json: .*longer than 65536 bytes"):
        read_topology(str(path))
