from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import ROOT, Serve, write_prompts
from tests.bench.conftest import in_process as in_process
from tests.bench.conftest import serve as serve
from tests.bench.conftest import stand_in as stand_in
from tests.bench.conftest import timed_port as timed_port
from tests.bench.conftest import with_stand_in as with_stand_in
from truecast.cli.main import main

QUICK = {"ttft": 0.002, "interval": 0.0002, "tokens": 20}


def reasoning_share(lines: list[dict[str, float]], run: dict[str, Any]) -> float:
    """Of the requests that finished in the window, from the lines alone."""
    kept = [r for r in lines if run["window"]["start"] <= r["ended"] <= run["window"]["end"]]
    return sum(r["reasoning_tokens"] for r in kept) / sum(r["output_tokens"] for r in kept)


def prompts(folder: Path) -> str:
    return str(write_prompts(folder))


@pytest.mark.usefixtures("in_process")
def test_a_table_with_definitions_and_a_document(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(**QUICK, acceptance=2.45, reasoning=0.5, chunk=(3, 3))
    out = tmp_path / "out"
    argv = ["bench", f"{server.url}/v1", "--prompts", prompts(tmp_path), "--concurrency", "2,4", "--requests", "12"]
    assert main([*argv, "--out", str(out)]) == 0
    printed, progress = capsys.readouterr()
    assert "4 streams, 2 runs" in printed
    assert "unit: run" in printed
    assert "output tokens after the first chunk's / time from the first to the last token" in printed
    assert "2.45" in printed
    assert "2 streams, run 1 of 2" in progress
    document = json.loads((out / "bench.json").read_text())
    assert document["complete"] and document["sound"]
    assert [len(level["runs"]) for level in document["levels"]] == [2, 2]
    assert document["levels"][1]["figures"]["stream"]["requests"] == len(
        [v for r in document["levels"][1]["runs"] for v in r["samples"]["stream"]]
    )
    lines = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * (4 + 12) + 2 * (8 + 12)
    for n, run in enumerate(document["levels"][1]["runs"]):
        mine = [line for line in lines if (line["concurrency"], line["run"]) == (4, n)]
        assert reasoning_share(mine, run) == pytest.approx(run["figures"]["reasoning_share"]), (
            "each figure from the lines"
        )
    served = [s["prompt"] for s in server.log()]
    assert len(set(served)) == len(served) == len(lines), "each run goes on where the last one ended in the prompts"
    assert sorted(p.name for p in out.iterdir()) == ["bench.json", "requests.jsonl"]
    assert main([*argv, "--out", str(out)]) == 3, "somebody's figures are there"


@pytest.mark.usefixtures("with_stand_in")
def test_json_and_quiet(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "bench",
        serve(**QUICK, acceptance=2.45).url,
        "--prompts",
        prompts(tmp_path),
        "--concurrency",
        "2",
        "--duration",
        "0.4",
    ]
    assert main([*argv, "--runs", "1", "--temperature", "0.6", "--max-tokens", "99", "--json", "--quiet"]) == 0
    printed, progress = capsys.readouterr()
    document = json.loads(printed)
    assert document["schema"] == "truecast.bench/1"
    assert document["sampling"] == {"max_tokens": 99, "temperature": 0.6}
    assert document["levels"][0]["figures"]["stream"]["interval_over_runs"] is None
    assert 0.3 < document["levels"][0]["runs"][0]["window"]["seconds"] < 0.5, "by the stand-in's own clock"
    assert document["levels"][0]["acceptance_length"] == 2.45
    assert progress == ""


@pytest.mark.usefixtures("in_process")
def test_replicas_against_one(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(**QUICK)
    argv = ["bench", server.url, "--prompts", prompts(tmp_path), "--requests", "10", "--runs", "1", "--concurrency"]
    main([*argv, "2,4", "--out", str(tmp_path / "one")])
    assert main([*argv, "6", "--replicas", "2", "--single", str(tmp_path / "one" / "bench.json")]) == 0
    printed = capsys.readouterr().out
    assert "of one replica at 3 streams" in printed
    assert main([*argv, "6", "--single", str(tmp_path / "one" / "bench.json")]) == 2


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("behaviour", "fault"),
    [
        ({"fail_every": 4}, "500: worker died"),
        ({"cut_every": 4}, "broke off before its finish"),
        ({"error_every": 4}, "error in the stream: CUDA error"),
    ],
)
def test_failures_are_told_and_what_finished_is_kept(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], behaviour: dict[str, int], fault: str
) -> None:
    server = serve(**QUICK, **behaviour)
    argv = ["bench", server.url, "--prompts", prompts(tmp_path), "--concurrency", "3", "--requests", "24"]
    assert main([*argv, "--runs", "1", "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().out
    assert "requests failed, most with" in printed
    assert fault in printed
    document = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert document["levels"][0]["figures"]["stream"]["value"] > 0
    assert len((tmp_path / "out" / "requests.jsonl").read_text().splitlines()) == 6 + 24
    assert not document["sound"]


@pytest.mark.usefixtures("in_process")
def test_prompts_longer_than_the_context(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mixed.jsonl"
    lengths = [5, 5, 5, 300]
    path.write_text("".join(json.dumps({"prompt": f"{i} " + "word " * n}) + "\n" for i, n in enumerate(lengths * 20)))
    argv = ["bench", serve(**QUICK, context=100).url, "--prompts", str(path), "--concurrency", "2", "--requests", "20"]
    assert main([*argv, "--runs", "1"]) == 1
    assert "longer than the model's context length (100 tokens)" in capsys.readouterr().out


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"status": 503}, "answers 503: the model says 503"),
        ({"usage": "none"}, "reports no usage"),
        ({"context": 1}, "longer than the model's context"),
    ],
)
def test_a_server_that_cannot_be_measured(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], behaviour: dict[str, object], words: str
) -> None:
    argv = ["bench", serve(**QUICK, **behaviour).url, "--prompts", prompts(tmp_path), "--concurrency", "2"]
    assert main([*argv, "--requests", "4"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("url", "text", "words"),
    [
        (
            "http://127.0.0.1:9",
            '{"prompt": "a"}',
            "cannot be reached: [Errno 111] Connection refused; is the server up?",
        ),
        ("http://none.invalid", '{"prompt": "a"}', "cannot be reached"),
        ("ftp://127.0.0.1", '{"prompt": "a"}', "is no http address"),
        ("http://user:pass@127.0.0.1:9", '{"prompt": "a"}', "cannot be reached"),
        ("http://127.0.0.1:9", "", "holds no prompt"),
    ],
)
def test_nothing_to_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, text: str, words: str
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(text)
    out = tmp_path / "out"
    argv = ["bench", url, "--prompts", str(file), "--concurrency", "2", "--requests", "4", "--out", str(out)]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said
    assert not out.exists()


@pytest.mark.parametrize(
    "bad",
    [
        ["--concurrency", "0", "--requests", "4"],
        ["--concurrency", "2,2", "--requests", "4"],
        ["--concurrency", "2", "--requests", "4", "--duration", "3"],
        ["--concurrency", "2"],
        ["--concurrency", "2", "--duration", "nan"],
        ["--concurrency", "2", "--requests", "4", "--runs", "0"],
        ["--concurrency", "2", "--requests", "4", "--temperature", "-1"],
    ],
)
def test_bad_usage(bad: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "http://127.0.0.1:9", "--prompts", prompts(tmp_path), *bad])


def test_without_aiperf(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    argv = ["bench", serve(**QUICK).url, "--prompts", prompts(tmp_path), "--concurrency", "2", "--requests", "4"]
    assert main(argv) == 2
    assert "pip install 'truecast[bench]'" in capsys.readouterr().err


@pytest.mark.usefixtures("with_stand_in")
def test_no_room_for_temporary_files(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    argv = ["bench", serve(**QUICK).url, "--prompts", prompts(tmp_path), "--concurrency", "2", "--requests", "4"]
    assert main(argv) == 3
    assert "none: cannot be written: No such file or directory; TMPDIR" in capsys.readouterr().err


@pytest.mark.usefixtures("with_stand_in")
def test_aiperf_that_breaks_off(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "aiperf"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 0.13.0\n')
    program.chmod(0o755)
    monkeypatch.setattr("truecast.bench.bench.find_aiperf", lambda: str(program))
    argv = ["bench", serve(**QUICK).url, "--prompts", prompts(tmp_path), "--concurrency", "2", "--requests", "4"]
    assert main(argv) == 2
    assert "AIPerf ended with 1" in capsys.readouterr().err


@contextmanager
def hanging(serve: Serve, folder: Path, stand_in: str) -> Iterator[subprocess.Popen[str]]:
    """A load test whose first level has finished and whose second hangs; its temporary files are in ``folder``/tmp."""
    server = serve(**QUICK, hang_after=4 + 4)
    options = ["bench", server.url, "--prompts", prompts(folder), "--runs", "1", "--concurrency", "2,3"]
    (folder / "tmp").mkdir()
    path = f"{Path(stand_in).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": "src", "TMPDIR": str(folder / "tmp")}
    code = "import sys; sys.executable = '/none/python'; from truecast.cli.main import main; sys.exit(main())"
    argv = [sys.executable, "-c", code, *options, "--requests", "4", "--out", str(folder / "out")]
    with subprocess.Popen(argv, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        while server.page("/timed/state")["requests"] < 4 + 4 + 3:  # the second level hangs
            assert process.poll() is None
            time.sleep(0.05)
        yield process


def nothing_is_left(folder: Path) -> bool:
    """Is there no process that works there, and no temporary file?"""
    at_work = False
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            at_work |= str(folder / "tmp").encode() in (process / "cmdline").read_bytes()
    return not at_work and not list((folder / "tmp").iterdir())


def finished_levels(folder: Path) -> list[int]:
    document = json.loads((folder / "out" / "bench.json").read_text())
    assert not document["complete"]
    return [level["concurrency"] for level in document["levels"]]


def test_ctrl_c_keeps_the_levels_that_have_finished(serve: Serve, tmp_path: Path, stand_in: str) -> None:
    with hanging(serve, tmp_path, stand_in) as process:
        assert not nothing_is_left(tmp_path), "the load generator runs"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the runs that had finished are kept" in said
    assert "Traceback" not in said
    assert finished_levels(tmp_path) == [2]
    assert nothing_is_left(tmp_path)


def test_no_load_goes_on_after_a_kill(serve: Serve, tmp_path: Path, stand_in: str) -> None:
    with hanging(serve, tmp_path, stand_in) as process:
        process.kill()
        process.communicate(timeout=60)
    end = time.time() + 20
    while not nothing_is_left(tmp_path):
        assert time.time() < end
        time.sleep(0.05)
    assert finished_levels(tmp_path) == [2]
