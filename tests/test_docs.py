"""README and docs: links resolve, command lines parse, and what is listed is what exists."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.shaped import kimi_k3
from truecast.cli.main import VERBS, build_parser
from truecast.convert import Target, convert
from truecast.verify import verify
from truecast.verify.check.rules import RULES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]


def code_lines(text: str) -> Iterator[str]:
    """Lines of fenced or indented code, and inline code."""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.strip()
        else:
            yield from re.findall(r"`([^`]+)`", line)


def expand(line: str) -> list[str]:
    """A synopsis as command lines: ``[optional]`` once with and once without, ``a|b`` as its first choice."""
    line = re.sub(r"\bSIZE\b", "5GB", re.sub(r"\bN\b", "2", line))
    full = re.sub(r"[\[\]]|\.\.\.", "", line)
    bare = line
    while bare != (shorter := re.sub(r"\s*\[[^\[\]]*\]", "", bare)):
        bare = shorter
    return [re.sub(r"\|\S+", "", form) for form in dict.fromkeys((full, bare))]


def commands() -> list[tuple[str, str]]:
    found = []
    for page, name in zip(PAGES, IDS, strict=True):
        for line in code_lines(page.read_text(encoding="utf-8")):
            command = line.removeprefix("$ ").split(" #")[0].strip()
            if re.match(r"truecast [a-z-]+ \S", command) and not command.endswith("..."):
                found += [(name, form) for form in expand(command)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        linked = page if not path else (page.parent / path).resolve()
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^a-z0-9 _-]", "", h.lower()).replace(" ", "-") for h in headings}, target


@pytest.mark.parametrize(("page", "command"), commands())
def test_command_lines_parse(page: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)[1:]
    try:
        build_parser(words).parse_args(words)
    except SystemExit:
        pytest.fail(f"{page}: `{command}` does not parse: {capsys.readouterr().err}")


def test_every_verb_is_shown() -> None:
    shown = {command.split()[1] for _, command in commands()}
    assert shown == set(VERBS)
    assert all((DOCS / f"{verb}.md").is_file() for verb in VERBS)


def test_navigation_lists_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md"))


def test_readme_names_every_room() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8")
    rooms = [p.name for p in (ROOT / "src/truecast").iterdir() if p.is_dir() and p.name != "__pycache__"]
    assert [room for room in rooms if f"      {room}/ " not in tree] == []


def test_check_page_lists_every_finding() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (\w+) \| (.+) \| (.+) \|$", (DOCS / "check.md").read_text(), re.MULTILINE)
    assert rows == [(key, rule.severity, rule.why, rule.remedy) for key, rule in RULES.items()]


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for line in code_lines(page.read_text(encoding="utf-8")):
            if found := re.match(r"make ([a-z]+)", line):
                assert re.search(rf"^{found.group(1)}:", makefile, re.MULTILINE), line


def test_the_certificate_script_proves_one_tensor(tmp_path: Path) -> None:
    source, out, certificate = tmp_path / "source", tmp_path / "out", tmp_path / "certificate.json"
    kimi_k3.make(source, shape=kimi_k3.K3Shape(layers=2, experts=2))
    convert(source, out, Target("nvfp4"))
    assert verify(source, out, certificate=certificate).ok
    name = "language_model.model.layers.1.block_sparse_moe.experts.1.w2"
    script = re.findall(r"```python\n(.+?)```", (DOCS / "verify.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    command = [sys.executable, "-c", script, str(out), str(certificate), name]

    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{name}: {128 * 96:,} values proved\n"

    shard = out / json.loads((out / "model.safetensors.index.json").read_bytes())["weight_map"][f"{name}.weight_scale"]
    data = bytearray(shard.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    data[8 + int.from_bytes(data[:8], "little") + header[f"{name}.weight_scale"]["data_offsets"][0]] ^= 1
    shard.write_bytes(data)
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "other bytes" in failed.stderr


def test_the_weights_script_makes_a_file_that_convert_takes(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    page = (DOCS / "convert.md").read_text(encoding="utf-8")
    assert "examples.shaped.kimi_k3 K3 --expert-width 128" in page
    kimi_k3.make(tmp_path / "K3", shape=kimi_k3.K3Shape(layers=2, experts=2, expert_width=128))
    script = re.findall(r"```python\n(.+?)```", page, re.DOTALL)[0]
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    weights = tmp_path / "w.safetensors"
    convert(tmp_path / "K3", tmp_path / "out", Target("w4afp8", weights=weights))
    report = verify(tmp_path / "K3", tmp_path / "out", weights=weights)
    assert report.ok and report.quality.int4.unbeaten == report.quality.int4.groups > 0


def test_every_test_named_in_the_failures_page_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", (DOCS / "failures.md").read_text())
    assert len(named) > 25
    for file, test in named:
        assert re.search(rf"def {test}\(", (ROOT / "tests" / file).read_text()), f"{file}::{test}"
