"""What the process does to its streams: pipes that close, terminals, full disks, encodings; and what it imports."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.process import Process
from truecast.cli.output import print_result, table

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-9]|4[0-9]|9[0-7])(?:;[0-9;]*)?m")
Shell = Callable[..., Any]


@pytest.fixture
def wide(tmp_path: Path, write_checkpoint: Callable[..., Path]) -> Path:
    """A checkpoint whose listing is larger than a pipe's buffer, with a name of 400 characters."""
    matrices: dict[str, Any] = {}
    for i in range(1500):
        matrices[f"part{i}_{'x' * 200}.weight_packed"] = ("U8", (1, 16), bytes(16))
        matrices[f"part{i}_{'x' * 200}.weight_scale"] = ("U8", (1, 1), b"\x78")
    matrices["a" * 400] = ("BF16", (1,), bytes(2))
    return write_checkpoint(tmp_path / "wide", {"model.safetensors": matrices}, index=False)


@pytest.mark.parametrize("options", ["", "--json"])
def test_reader_leaves(
    wide: Path, command: Callable[..., list[str]], environment: dict[str, str], options: str
) -> None:
    """``truecast inspect ... | head -1``."""
    with Process(
        command("inspect", wide, *options.split()),
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_reader_leaves_and_the_claim_still_fails(
    tiny: Path, tmp_path: Path, command: Callable[..., list[str]], environment: dict[str, str], shell: Shell
) -> None:
    """The exit code is the verdict, read or not."""
    assert shell("convert", tiny, tmp_path / "out", "--to", "nvfp4", "--jobs", 1).code == 0
    shard = tmp_path / "out" / "model-00003-of-00003.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command("verify", tiny, tmp_path / "out", "--jobs", 1),
        env=environment, stdout=writer, stderr=subprocess.PIPE, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_nobody_reads_stderr(
    tiny: Path, tmp_path: Path, command: Callable[..., list[str]], environment: dict[str, str]
) -> None:
    """A conversion does not stop because its progress is no longer read."""
    reader, writer = os.pipe()
    os.close(reader)
    program = (
        "import sys; from truecast.cli import output; output.REPORT_EVERY_S = 0\n"
        "from truecast.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = [*command("convert", tiny, tmp_path / "out", "--to", "nvfp4", "--jobs", 1)[3:]]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, stdout=writer, stderr=writer, timeout=60
    )
    assert done.returncode == 0
    assert (tmp_path / "out" / "truecast.json").exists()
    failed = subprocess.run(command("inspect", "absent"), env=environment, stdout=writer, stderr=writer, timeout=60)
    assert failed.returncode == 2
    os.close(writer)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", ["", "--json"])
def test_stdout_is_full(
    tiny: Path, command: Callable[..., list[str]], environment: dict[str, str], options: str
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("inspect", tiny, *options.split()),
            env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr == ("truecast inspect: standard output: cannot print the result: No space left on device\n")


def test_piped_output_is_plain_and_whole(wide: Path, shell: Shell) -> None:
    for arguments in (("inspect", wide), ("plan", wide, "--to", "nvfp4")):
        outcome = shell(*arguments)
        assert outcome.code == 0
        assert not ANSI.search(outcome.out + outcome.err)
        assert "a" * 400 in outcome.out  # not cut to some width


def test_output_in_a_poor_encoding(tiny: Path, tmp_path: Path, shell: Shell) -> None:
    named = tiny.rename(tmp_path / "größe-模型")
    for options in ((), ("--json",)):
        outcome = shell(
            "convert",
            named,
            tmp_path / f"größe{len(options)}",
            "--to",
            "nvfp4",
            *options,
            env={"PYTHONIOENCODING": "ascii"},
        )
        assert (outcome.code, outcome.err) == (0, "")
    outcome = shell("inspect", tmp_path / "größe2", env={"PYTHONIOENCODING": "ascii"})
    assert outcome.code == 2
    assert "gr\\xf6\\xdfe2: no such file or folder" in outcome.err


def _on_terminal(arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, and what a terminal sees as (stdout, stderr), each on a terminal of its own."""
    pairs = [pty.openpty(), pty.openpty()]
    process = subprocess.Popen(
        arguments, env={**environment, "TERM": "xterm-256color"}, stdout=pairs[0][1], stderr=pairs[1][1]
    )
    seen = []
    for _, side in pairs:
        os.close(side)
    for terminal, _ in pairs:
        text = b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            text += piece
        os.close(terminal)
        seen.append(text.decode())
    return process.wait(), seen[0], seen[1]


def test_terminal(tiny: Path, tmp_path: Path, command: Callable[..., list[str]], environment: dict[str, str]) -> None:
    arguments = command("convert", tiny, tmp_path / "out", "--to", "nvfp4", "--jobs", 1)
    code, out, err = _on_terminal(arguments, environment)
    assert code == 0
    assert "nvfp4-modelopt, 22 tensors" in out
    assert "scan" in err and "write" in err
    assert COLOUR.search(err)  # a bar
    arguments = command("convert", tiny, tmp_path / "out2", "--to", "nvfp4", "--jobs", 1)
    code, out, err = _on_terminal(arguments, {**environment, "NO_COLOR": "1"})
    assert code == 0
    assert not COLOUR.search(out + err)
    assert "write" in err
    arguments = command("convert", tiny, tmp_path / "out3", "--to", "nvfp4", "--jobs", 1, "--quiet")
    assert _on_terminal(arguments, environment)[2] == ""


def test_imports_are_light(environment: dict[str, str]) -> None:
    """No verb of the core needs torch; numba and the like only where they are used."""
    program = (
        "import sys, truecast.cli.main as m; m.build_parser(list(m.VERBS))\n"
        "print([n for n in ('torch', 'numba', 'transformers', 'fsspec', 'safetensors', 'pandas') if n in sys.modules])"
    )
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
    assert time.monotonic() - begun < 5  # about 0.3 s on an idle core


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["--help"], ("numpy", "truecast.layouts", "truecast.serve")),
        (["convert", "--help"], ("truecast.serve", "truecast.verify", "truecast.bench", "ssl")),
    ],
)
def test_only_the_verb_asked_for_is_imported(
    words: list[str], unneeded: tuple[str, ...], environment: dict[str, str]
) -> None:
    program = (
        "import sys, truecast.cli.main as m\n"
        "try: m.main(sys.argv[1:])\n"
        f"except SystemExit: print([n for n in {unneeded} if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "[]\n"


def test_no_verb_runs_torch(tiny: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    program = (
        "import sys; from truecast.cli.main import main\n"
        "src, out = sys.argv[1:]\n"
        "to = ['--to', 'nvfp4', '--jobs', '1', '--quiet']\n"
        "for line in (['inspect', src], ['plan', src, '--scan', *to], ['convert', src, out, *to],\n"
        "             ['verify', src, out, '--jobs', '1'], ['check', out]):\n"
        "    assert main(line) == 0, line\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tiny, tmp_path / "out"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_control_characters_of_a_config_reach_no_terminal(done_with_escapes: Path, cli: Callable[..., Any]) -> None:
    for arguments in (["check", done_with_escapes], ["check", done_with_escapes, "--json"]):
        out = cli(*arguments).out
        assert "pwn" in out and all(c.isprintable() or c == "\n" for c in out)
        assert "\nPASS  forged" not in out
    document = cli("check", done_with_escapes, "--json").json
    assert any("pwn" in f["message"] for f in document["findings"])


def test_control_characters_in_every_kind_of_print(capsys: pytest.CaptureFixture[str]) -> None:
    def render(console: Any) -> None:
        console.print("\na\x1b[31m\nb\x9b")
        console.print(table("", ("x",), [("c\x1b]0;d\x07",)]))

    document = {"\x7f\x9b": "\u202e\x1b"}
    print_result(argparse.Namespace(json=False, verb="check"), document, render)
    assert capsys.readouterr().out.split() == ["a\\x1b[31m\\nb\\x9b", "x", "c\\x1b]0;d\\x07"]
    print_result(argparse.Namespace(json=True, verb="check"), document, render)
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out) and json.loads(out)["\x7f\x9b"] == "\u202e\x1b"


def test_a_narrow_terminal_breaks_text_and_cuts_nothing_off() -> None:
    written = io.StringIO()
    flag, why, size = "--speculative-draft-attention-backend", "the one known to be right " * 4, "1,234 GB"
    Console(file=written, width=60).print(table("", ("setting", "why", ">size"), [(flag, why, size)]))
    text = written.getvalue()
    assert size in text and "\u2026" not in text and text.split().count("right") == 4
    assert "".join(line.split(" ")[0] for line in text.splitlines()[1:]) == flag


def test_inspect_of_many_classes(
    tmp_path: Path, write_checkpoint: Callable[..., Path], cli: Callable[..., Any]
) -> None:
    source = write_checkpoint(
        tmp_path / "many", {"model.safetensors": {f"t{i}": ("U8", (0,), b"") for i in range(20_000)}}
    )
    lines = cli("inspect", source).out.splitlines()
    assert "and 19,500 more classes (--json lists them all)" in lines and len(lines) < 520
    assert len(cli("inspect", source, "--json").json["classes"]) == 20_000


@pytest.fixture
def done_with_escapes(tiny: Path, tmp_path: Path, cli: Callable[..., Any]) -> Path:
    out = tmp_path / "done"
    assert cli("convert", tiny, out, "--to", "nvfp4", "--jobs", 1).code == 0
    config = json.loads((out / "config.json").read_bytes())
    config["quantization_config"]["ignore"].append("\x1b]0;pwn\x07\x1b[31mX\nPASS  forged\x9b\x7f")
    (out / "config.json").write_text(json.dumps(config))
    return out
