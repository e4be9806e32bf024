"""Bad usage: exit 2, what is wrong on stderr, nothing on stdout, nothing written."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from truecast.cli.output import positive
from truecast.cli.target import size_in_bytes

Cli = Callable[..., Any]
VERBS = ("inspect", "plan", "convert", "verify", "check", "audit", "calibrate", "corpus", "serve-reference", "launch")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: VERB"),
        (("transmogrify",), "invalid choice: 'transmogrify'"),
        (("inspect",), "the following arguments are required: SRC"),
        (("convert", "SRC", "--to", "nvfp4"), "the following arguments are required: OUT"),
        (("convert", "SRC", "OUT"), "the following arguments are required: --to"),
        (("inspect", "SRC", "--nonsense"), "unrecognized arguments: --nonsense"),
        (("convert", "SRC", "OUT", "--to", "nvfp4", "--jobs", "0"), "'0' is no whole number of at least 1"),
        (("convert", "SRC", "OUT", "--to", "nvfp4", "--jobs", "two"), "'two' is no whole number of at least 1"),
        (("convert", "SRC", "OUT", "--to", "nvfp4", "--jobs=-1"), "'-1' is no whole number of at least 1"),
        (("convert", "SRC", "OUT", "--to", "nvfp4", "--max-shard-size", "big"), "'big' is no size such as 5GB"),
        (("convert", "SRC", "OUT", "--to", "nvfp4", "--activations", "fp8"), "invalid choice: 'fp8'"),
        (("convert", "SRC", "OUT", "--to", "nvfp4", "--inexact", "maybe"), "invalid choice: 'maybe'"),
    ],
)
def test_refused_by_the_parser(arguments: tuple[str, ...], message: str, tiny: Path, tmp_path: Path, cli: Cli) -> None:
    outcome = cli(*({"SRC": tiny, "OUT": tmp_path / "out"}.get(a, a) for a in arguments))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("usage: truecast")
    assert message in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--to fp3", "there is no target format 'fp3'; choose nvfp4, w4afp8, fp8, mxfp4 or bf16"),
        (
            "--to nvfp4 --dialect gguf",
            "--to nvfp4 has no dialect 'gguf'; choose one of modelopt, compressed-tensors",
        ),
        ("--to nvfp4 --dialect deepseek", "--to nvfp4 has no dialect 'deepseek'; choose one of modelopt"),
        ("--to mxfp4", "--to mxfp4 changes the dialect only, so it needs --dialect; one of "),
        ("--to bf16 --activations nvfp4", "--activations nvfp4 makes no sense with --to bf16"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "convert"])
def test_unknown_target(verb: str, options: str, message: str, tiny: Path, tmp_path: Path, cli: Cli) -> None:
    places = [tiny] if verb == "plan" else [tiny, tmp_path / "out"]
    outcome = cli(verb, *places, *options.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"truecast {verb}: {message}")
    assert cli(verb, *places, *options.split(), "--json").json["exit_code"] == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "plan needs --to FORMAT (nvfp4, w4afp8, fp8, mxfp4 or bf16); or --hardware GPU (h100, "),
        ("--hardware h300", "no such GPU: h300; one of h100, h200, gh200, gh200-144, b200, b300"),
        ("--hardware h200 --to fp3", "there is no target format 'fp3'; choose nvfp4"),
        ("--hardware h200 --to nvfp4 --dialect gguf", "--to nvfp4 has no dialect 'gguf'"),
        ("--hardware h200 --dialect sglang", "--dialect makes no sense without --to"),
        ("--hardware h200 --method amax", "--method makes no sense without --to"),
        ("--hardware h200 --attention bf16", "--attention makes no sense without --to"),
    ],
)
def test_a_comparison_that_cannot_be_made(options: str, message: str, tiny: Path, cli: Cli) -> None:
    outcome = cli("plan", tiny, *options.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"truecast plan: {message}")


@pytest.mark.parametrize("options", ["--to NVFP4 --dialect ModelOpt", "--to W4AFP8 --dialect Compressed-Tensors"])
def test_names_are_taken_in_any_case(
    options: str, tmp_path: Path, write_checkpoint: Callable[..., Path], cli: Cli
) -> None:
    tensors = {"a.weight_packed": ("U8", (4, 64), bytes(256)), "a.weight_scale": ("U8", (4, 4), bytes([120] * 16))}
    source = write_checkpoint(tmp_path / "src", {"model.safetensors": tensors})
    assert cli("plan", source, *options.split()) == cli("plan", source, *options.lower().split())
    assert cli("plan", source, *options.split()).code == 0


def test_help_and_version(cli: Cli) -> None:
    outcome = cli("--help")
    assert (outcome.code, outcome.err) == (0, "")
    for verb in VERBS:
        assert f"\n    {verb}" in outcome.out
        own = cli(verb, "--help")
        assert (own.code, own.err) == (0, "")
        for option in ("--json", "--quiet"):
            assert option in own.out
    assert cli("--version").out.startswith("truecast ")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000000", 10**6),
        ("5GB", 5_000_000_000),
        ("500 MB", 500_000_000),
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        ("1.5kB", 1500),
        (" 2 TB ", 2 * 10**12),
        ("10B", 10),
        ("0.5KiB", 512),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "0GB", "0.1", "-1GB", "GB", "5 G B", "5XB", "1e9", "inf", "nan", "9" * 400])
def test_no_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no size such as 5GB"):
        size_in_bytes(text)


@pytest.mark.parametrize("text", ["5", "999999"])
def test_a_number_alone_is_bytes_and_too_few(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"are bytes: did you mean {text}GB"):
        size_in_bytes(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.0", "+2", "²", "1 "])
def test_no_counts(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        positive(text)


def test_split_anew(tiny: Path, tmp_path: Path, cli: Cli) -> None:
    outcome = cli("convert", tiny, tmp_path / "out", "--to", "nvfp4", "--max-shard-size", "2kB", "--jobs", 1)
    assert outcome.code == 0
    shards = sorted(p for p in (tmp_path / "out").glob("*.safetensors"))
    assert [p.name for p in shards] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert cli("inspect", tmp_path / "out").code == 0
