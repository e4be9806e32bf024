"""The harness of the deployment table: what it serves, what it asks, and the table it prints."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from benchmarks.deployment.chat import bodies, chat_folder, starts
from benchmarks.deployment.servers import FORMATS, NotReadyError, command, serving
from benchmarks.deployment.table import records, table

NANO = Path(__file__).parents[2] / "examples" / "nano_k3"
DIALOGUES, DOCUMENTS = NANO / "heldout_dialogues.jsonl", NANO / "heldout_documents.jsonl"


def test_the_served_tokenizer_is_truecasts_own(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from truecast.models.kimi_k3.chat import render
    from truecast.models.kimi_k3.tokenizer import open_tokenizer

    folder = chat_folder(NANO / "checkpoint", tmp_path / "chat")
    served = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    own = open_tokenizer(NANO / "checkpoint")
    text = "17 * 3 = 51, naïve 字"
    assert served.encode(text) == own.encode(text)
    assert served.decode(own.encode(text)) == text
    asked = [{"role": "user", "content": "What is 17 * 3?"}]
    assert served.apply_chat_template(asked, thinking_effort="low") == render(own, asked, effort="low")


def test_the_weights_are_links(tmp_path: Path) -> None:
    folder = chat_folder(NANO / "checkpoint", tmp_path / "chat")
    shards = sorted(folder.glob("*.safetensors"))
    assert [s.resolve() for s in shards] == sorted(s.resolve() for s in (NANO / "checkpoint").glob("*.safetensors"))
    assert all(s.is_symlink() for s in shards)


def test_a_body_holds_what_the_dialogue_asks_and_nothing_of_the_answer() -> None:
    items = [json.loads(line) for line in DIALOGUES.read_text().splitlines()]
    made = list(bodies(DIALOGUES))
    wanted = [
        {"messages": item["messages"], "chat_template_kwargs": {"thinking": item["thinking"]}}
        | ({"tools": item["tools"]} if item["tools"] else {})
        | ({"reasoning_effort": item["effort"]} if item["effort"] else {})
        for item in items
    ]
    assert sorted(map(json.dumps, made)) == sorted(map(json.dumps, wanted))


def test_each_quarter_of_the_bodies_holds_every_effort_and_tools() -> None:
    made = list(bodies(DIALOGUES))
    for quarter in (made[i : i + 80] for i in range(0, 320, 80)):
        assert {body.get("reasoning_effort") for body in quarter} == {None, "low", "high", "max"}
        assert 20 <= sum("tools" in body for body in quarter) <= 44


def test_documents_are_started_and_dialogues_asked() -> None:
    made = list(starts(DIALOGUES, DOCUMENTS))
    tokens = [json.loads(line)["tokens"] for line in DOCUMENTS.read_text().splitlines()[1:]]
    assert [line["tokens"] for line in made if "tokens" in line] == [t[:48] for t in tokens]
    assert sum("messages" in line for line in made) == len(DIALOGUES.read_text().splitlines())
    assert len({line["id"] for line in made}) == len(made)


def test_each_format_differs_in_its_kernels_only(tmp_path: Path) -> None:
    lines = {name: command(name, tmp_path, 32000, eager=False) for name in FORMATS}
    shared = set.intersection(*map(set, lines.values()))
    assert {name: sorted(set(line) - shared) for name, line in lines.items()} == {
        "mxfp4": ["--moe-runner-backend", "marlin"],
        "nvfp4": ["--moe-runner-backend", "marlin"],
        "w4afp8": ["--fp8-gemm-backend"],  # triton is the attention's name too
    }
    assert "--disable-cuda-graph" in command("mxfp4", tmp_path, 32000, eager=True)


def test_a_server_that_ends_is_told_at_once(tmp_path: Path) -> None:
    line = [sys.executable, "-c", "raise SystemExit(3)", "--port", "9"]
    with (
        pytest.raises(NotReadyError, match="mxfp4: the server ended"),
        serving({"mxfp4": line}, os.environ, tmp_path, 60),
    ):
        pass


def test_servers_are_stopped_however_the_work_ends(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (tmp_path / "model_info").write_text("here")
    line = [sys.executable, "-c", _SERVE.format(folder=str(tmp_path)), "--port", port]
    with pytest.raises(ZeroDivisionError), serving({"one": line}, os.environ, tmp_path, 60):
        raise ZeroDivisionError
    with socket.socket() as again, pytest.raises(ConnectionRefusedError):
        again.connect(("127.0.0.1", int(port)))


_SERVE = """
import functools, http.server, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory={folder!r})
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), handler).serve_forever()
"""


def test_the_table_holds_the_records_figures_and_nothing_it_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "nvfp4"
    (folder / "bench").mkdir(parents=True)
    figure = {"value": 41.26, "interval_over_runs": [40.0, 42.5]}
    level = {"concurrency": 8, "figures": {"stream": figure, "aggregate": {"value": 300.0, "interval_over_runs": None}}}
    (folder / "bench" / "bench.json").write_text(json.dumps({"levels": [level]}))
    (folder / "served").mkdir()
    kl = {"mean": 0.00123, "interval": [0.0011, 0.0014]}
    (folder / "served" / "audit.json").write_text(json.dumps({"kl": kl, "floor": None}))
    text = table({"nvfp4": records(folder), "mxfp4": records(tmp_path / "nothing")})
    assert "| tok/s per stream, median, 8 streams | 41.3 (40.0 to 42.5) | - |" in text
    assert "| aggregate tok/s, 8 streams | 300.0 | - |" in text
    assert "| served KL to native, nats/token | 0.00123 (0.00110 to 0.00140) | - |" in text
    assert "| its noise floor | - | - |" in text


def test_the_published_table_is_what_the_records_say() -> None:
    """docs/benchmarks.md against the records beside nano-K3's card: each figure rounded as the page has it."""
    page = (
        (NANO.parents[1] / "docs" / "benchmarks.md").read_text().split("## A deployment:")[1].split("\n- **Speed**")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    shown = {title: [list(map(float, re.findall(r"-?[\d.]+", cell))) for cell in cells] for title, *cells in rows}
    at = NANO / "card" / "records"

    def rounded(mean: float, ends: list[float], digits: int) -> list[float]:
        return [round(value, digits) for value in (mean, *ends)]

    for column, label in enumerate((".native", ".NVFP4", "")):
        bench = json.loads((at / f"bench{label}.json").read_text())
        for level in bench["levels"]:
            streams = f"{level['concurrency']} streams"
            for name, title, digits in (
                ("stream", "tok/s per stream, median", 0),
                ("aggregate", "aggregate tok/s", 0),
                ("residual", "aggregate / (streams x mean)", 3),
            ):
                figure = level["figures"][name]
                told = shown[f"{title}, {streams}"][column]
                assert told == rounded(figure["value"], figure["interval_over_runs"], digits), (title, label)
        scores = json.loads((at / f"eval{label}.json").read_text())["scores"]
        told = shown["held-out dialogues, 8 answers each"][column]
        assert told == rounded(100 * scores["score"], [100 * end for end in scores["interval"]], 1)
    for column, label in ((1, ".NVFP4"), (2, "")):
        served, exact = (json.loads((at / f"audit{label}{n}.json").read_text()) for n in ("", ".2"))
        for title, figure, digits in (
            ("KL to native through the server, nats/token", served["kl"], 5),
            ("excess over the floor", served["excess"], 6 if column == 1 else 5),
            ("exact KL of the weights, same text", exact["kl"], 5),
        ):
            told = shown[title][column]
            assert told == rounded(figure["mean"], figure["interval"], digits)[: len(told)], (title, label)
        assert shown["KL to native through the server, nats/token"][0] == rounded(
            served["floor"]["mean"], served["floor"]["interval"], 5
        )
