"""``truecast card`` as a user sees it: what is written, what is left alone, and records that do not fit."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.card_example import NATIVE, Document, convert_small, documents
from truecast.checkpoint.card_seal import sealed_files
from truecast.checkpoint.source import open_checkpoint
from truecast.cli.main import main
from truecast.convert import Target, convert
from truecast.convert.manifest import encode_manifest
from truecast.report.card import render_card
from truecast.verify import verify

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Document]]:
    out = convert_small(tmp_path_factory.mktemp("card"))
    return out, documents(out)


@pytest.fixture
def out(made: tuple[Path, dict[str, Document]], tmp_path: Path) -> Path:
    """A copy of the checkpoint, and its records beside it."""
    shutil.copytree(made[0].parent, tmp_path, dirs_exist_ok=True)
    (tmp_path / "given").mkdir()
    for name, document in made[1].items():
        (tmp_path / "given" / f"{name}.json").write_text(json.dumps(document))
    return tmp_path / "out"


def options(out: Path) -> list[object]:
    """All records, as a user names them."""
    given = out.parent / "given"
    found: list[object] = ["--verify", given / "verify.json", "--launch", given / "launch.json"]
    for kind in ("bench", "eval", "audit"):
        found += [f"--{kind}", f"{NATIVE}={given / kind}.native.json", f"--{kind}", given / f"{kind}.json"]
    return [*found, *(word for kind in ("eval", "bench") for word in ("--compare", given / f"compare.{kind}.json"))]


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_card_and_its_records(cli: Cli, out: Path, tmp_path: Path) -> None:
    before = tree(out)
    outcome = cli("card", out, *options(out), "--html", tmp_path / "card.html")
    assert outcome.code == 0 and f"wrote {out / 'README.md'}" in outcome.out
    assert "records/launch.json" in outcome.err and "look before you publish" in outcome.err
    after = tree(out)
    assert {name for name in before if after.get(name) != before[name]} == {"README.md"}
    names = ["verify", "launch", "compare", "compare.2"]
    names += [name for kind in ("audit", "bench", "eval") for name in (kind, f"{kind}.native-MXFP4")]
    assert after.keys() - before.keys() == {f"records/{name}.json" for name in names}
    assert after["records/eval.json"] == (tmp_path / "given" / "eval.json").read_bytes()
    listed = sealed_files(after["README.md"])
    assert listed == {
        n: hashlib.sha256(d).hexdigest() for n, d in after.items() if n == "truecast.json" or n.startswith("rec")
    }
    assert all(sha.encode() in after["README.md"].partition(b"<!--")[0] for sha in listed.values())
    assert (tmp_path / "card.html").read_text().startswith("<!doctype html>")


def test_verify_check_and_convert_know_it(cli: Cli, out: Path) -> None:
    assert cli("card", out, *options(out)).code == 0
    source = out.parent / "source"
    assert cli("verify", source, out).code == 0
    assert cli("check", out).code == 0
    card = (out / "README.md").read_bytes()
    assert cli("convert", source, out, "--to", "w4afp8").code == 0 and (out / "README.md").read_bytes() == card
    shard = next(out.glob("*.safetensors"))
    data = shard.read_bytes()
    shard.unlink()
    (out / ".truecast" / "shards").mkdir(exist_ok=True)
    assert cli("convert", source, out, "--to", "w4afp8").code == 0
    assert shard.read_bytes() == data and (out / "README.md").read_bytes() == card
    assert verify(source, out).ok


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("README.md", lambda data: data.replace(b"Measured", b"measured"), "README.md"),
        ("records/eval.json", lambda data: data + b" ", "its bytes are not those that the card records"),
        ("records/eval.json", None, "the card lists this file, but it is not there"),
        ("records/other.json", lambda data: b"{}", "the manifest does not list it"),
    ],
)
def test_verify_finds_an_edit_of_it(cli: Cli, out: Path, name: str, change: Any, says: str) -> None:
    assert cli("card", out, *options(out)).code == 0
    path = out / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes() if path.exists() else b""))
    failures = verify(out.parent / "source", out).failures.kept
    assert any(says in f"{f.file} {f.message}" for f in failures)


def test_verify_finds_the_card_of_another_manifest(out: Path, cli: Cli) -> None:
    assert cli("card", out).code == 0
    other = out.parent / "other"
    convert(out.parent / "source", other, Target("w4afp8", method="amax"), card=render_card)
    shutil.copy(out / "README.md", other / "README.md")
    report = verify(out.parent / "source", other)
    assert [f.message for f in report.failures.kept] == ["is the card of another truecast.json"]


def test_a_card_without_records(cli: Cli, out: Path) -> None:
    assert cli("card", out).code == 0
    assert verify(out.parent / "source", out).ok


def test_the_same_again_and_fewer_records(cli: Cli, out: Path) -> None:
    assert cli("card", out, *options(out)).code == 0
    first = tree(out)
    assert cli("card", out, *options(out)).code == 0 and tree(out) == first
    command = first["README.md"].decode().partition("\ntruecast card . ")[2].partition("\n")[0]
    words = shlex.split(command.replace("records/", f"{out}/records/"))
    assert cli("card", out, *words).code == 0 and tree(out) == first
    assert cli("card", out).code == 0
    assert not list((out / "records").iterdir()) and b"Nothing was measured yet" in (out / "README.md").read_bytes()


def killed(after: int, *words: object) -> bool:
    """Run a command in a process that ends without warning at the ``after``-th sync, rename or removal. Was it?"""
    child = os.fork()
    if child == 0:
        left = after

        def counting(real: Callable[..., Any]) -> Callable[..., Any]:
            def step(*given: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    os._exit(9)
                return real(*given, **named)

            return step

        os.fsync = counting(os.fsync)
        Path.rename, Path.unlink = counting(Path.rename), counting(Path.unlink)  # type: ignore[method-assign]
        os._exit(main([*map(str, words), "--quiet"]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_after_a_kill_at_any_instant_any_card_can_be_written(cli: Cli, out: Path) -> None:
    given = out.parent / "given"
    first = ["card", out, "--eval", given / "eval.json", "--bench", given / "bench.json"]
    (given / "other.json").write_text((given / "eval.json").read_text() + " ")
    second = ["card", out, "--eval", given / "other.json", "--audit", given / "audit.json"]
    plain: list[object] = ["card", out]
    assert cli(*first).code == 0
    shutil.copytree(out, out.parent / "first")
    ends = {}
    for name, words in (("second", second), ("plain", plain)):
        assert cli(*words).code == 0
        ends[name] = tree(out)
    after, stopped = -1, True
    while stopped:
        after += 1
        shutil.rmtree(out)
        shutil.copytree(out.parent / "first", out)
        stopped = killed(after, *second)
        then, words = ("second", second) if after % 2 else ("plain", plain)
        outcome = cli(*words)
        assert outcome.code == 0, (after, outcome.err)
        assert tree(out) == ends[then], after
    assert after > 10


def test_a_card_waits_for_no_other_run_in_the_folder(cli: Cli, out: Path) -> None:
    (out / ".truecast").mkdir(exist_ok=True)
    with (out / ".truecast" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome = cli("card", out)
    assert outcome.code == 3 and "another run is writing this folder" in outcome.err


def test_a_card_leaves_no_notes_of_its_own(cli: Cli, out: Path) -> None:
    shutil.rmtree(out / ".truecast", ignore_errors=True)
    assert cli("card", out, *options(out)).code == 0 and not (out / ".truecast").exists()
    (out / ".truecast").symlink_to(out.parent / "given")
    before = tree(out.parent)
    outcome = cli("card", out)
    assert outcome.code == 3 and ".truecast" in outcome.err and tree(out.parent) == before


def test_a_card_that_no_verify_would_read_is_not_written(cli: Cli, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truecast.cli.card_folder.MAX_BYTES", 1000)
    before = tree(out)
    outcome = cli("card", out, *options(out))
    assert outcome.code == 2 and "more than any card" in outcome.err and tree(out) == before


def test_records_of_a_source_do_not_travel_on(cli: Cli, out: Path) -> None:
    assert cli("card", out, *options(out)).code == 0
    assert cli("convert", out, out.parent / "next", "--to", "w4afp8", "--dialect", "compressed-tensors").code == 0
    assert not (out.parent / "next" / "records").exists() and (out.parent / "next" / "README.source.md").exists()


def test_json(cli: Cli, out: Path) -> None:
    outcome = cli("card", out, *options(out), "--json", "--quiet")
    assert outcome.code == 0 and outcome.err == ""
    found = outcome.json
    assert found["schema"] == "truecast.card/1" and len(found["written"]) == 11
    files = {r["file"]: json.loads((out / r["file"]).read_text()) for r in found["records"]}
    for figure in found["figures"]:
        value: Any = files[figure["file"]]
        for key in figure["pointer"].split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            value = value[int(key)] if isinstance(value, list) else value[key]
        assert figure["how"] or value == figure["value"]
        assert figure["sha256"] == hashlib.sha256((out / figure["file"]).read_bytes()).hexdigest()
    assert {"file": "records/launch.json", "pointer": "/model/location"} in found["local_places"]


FOREIGN = [
    ("README.md", lambda path: path.write_text("# Mine\n")),
    ("README.md", lambda path: path.write_bytes(path.read_bytes() + b"\nmine\n")),
    ("README.md", lambda path: (path.unlink(), path.symlink_to("elsewhere.md"))),
    ("records", lambda path: path.symlink_to(path.parent.parent / "elsewhere")),
    ("records", lambda path: path.write_text("mine")),
    ("records/eval.json", lambda path: (path.parent.mkdir(), path.write_text("mine"))),
    ("records/eval.json", lambda path: (path.parent.mkdir(), path.symlink_to("../../elsewhere.json"))),
    ("records/eval.json", lambda path: path.mkdir(parents=True)),
]


@pytest.mark.parametrize(("name", "make"), FOREIGN, ids=[f"{n}-{i}" for i, (n, _) in enumerate(FOREIGN)])
def test_what_is_not_ours_is_left_alone(cli: Cli, out: Path, name: str, make: Callable[[Path], Any]) -> None:
    (out.parent / "elsewhere").mkdir()
    make(out / name)
    before = tree(out)
    outcome = cli("card", out, *options(out), "--html", out.parent / "card.html")
    assert outcome.code == 3 and name in outcome.err and "move it away" in outcome.err
    assert tree(out) == before and not list((out.parent / "elsewhere").iterdir())
    assert not (out.parent / "card.html").exists()


def test_an_edited_record_is_not_lost(cli: Cli, out: Path) -> None:
    assert cli("card", out, *options(out)).code == 0
    (out / "records" / "eval.json").write_text("mine")
    for given in ([], options(out)):
        outcome = cli("card", out, *given)
        assert outcome.code == 3 and "records/eval.json" in outcome.err
        assert (out / "records" / "eval.json").read_text() == "mine"


def test_a_page_of_somebody_elses_is_not_overwritten(cli: Cli, out: Path) -> None:
    page = out.parent / "page.html"
    assert cli("card", out, "--html", page).code == 0 and cli("card", out, *options(out), "--html", page).code == 0
    page.write_text(page.read_text().replace("Measured", "Mine"))
    (out.parent / "folder").mkdir()
    (out.parent / "index.html").write_text("<!doctype html><p>mine")
    before = tree(out.parent)
    for name in ("page.html", "folder", "index.html"):
        outcome = cli("card", out, "--html", out.parent / name)
        assert outcome.code == 3 and "no page as truecast wrote it" in outcome.err
    assert tree(out.parent) == before


def test_nothing_is_written_where_the_page_cannot_be(cli: Cli, out: Path) -> None:
    before = tree(out)
    assert cli("card", out, *options(out), "--html", out.parent / "given" / "eval.json" / "page.html").code == 2
    assert tree(out) == before


@pytest.mark.parametrize("where", ["out", "mine"])
def test_the_page_is_no_part_of_the_checkpoint_and_nobodys_file(cli: Cli, out: Path, where: str) -> None:
    page = out / "card.html" if where == "out" else out.parent / "mine.html"
    if where == "mine":
        page.write_text("mine")
    before = tree(out)
    assert cli("card", out, *options(out), "--html", page).code == 3 and tree(out) == before


BROKEN: list[tuple[str, Any, str]] = [
    ("not JSON", "{", "is no JSON"),
    ("NaN", '{"schema": "truecast.eval/1", "scores": {"score": NaN}}', "NaN is no JSON number"),
    ("no object", "[]", "is no JSON object"),
    ("a key twice", '{"schema": "truecast.eval/1", "scores": {"score": 1, "score": 0}}', "'score' stands twice"),
    ("deep", "[" * 100_000, "is no JSON"),
    ("10^400", '{"schema": "truecast.eval/1", "scores": {"score": 1' + "0" * 400 + "}}", "(/settings)"),
    ("digits", '{"schema": "truecast.eval/1", "x": ' + "9" * 5000 + "}", "is no JSON"),
    ("another schema", '{"schema": "truecast.audit/1"}', "--eval takes truecast.eval/1"),
    ("no schema", "{}", "--eval takes truecast.eval/1"),
    ("an error", '{"schema": "truecast.eval/1", "error": "x", "exit_code": 2}', "records an error"),
    ("bytes", b"\xff\xfe", "is no JSON"),
]


@pytest.mark.parametrize(("content", "says"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_broken_record(cli: Cli, out: Path, content: Any, says: str) -> None:
    path = out.parent / "given" / "bad.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = tree(out)
    outcome = cli("card", out, "--eval", path)
    assert outcome.code == 2 and says in outcome.err and str(path) in outcome.err
    assert tree(out) == before


def test_a_file_that_is_not_there_has_the_remedy_of_its_own_option(cli: Cli, out: Path, tmp_path: Path) -> None:
    assert "no such file; OUT is the folder that `truecast convert` wrote" in cli("card", tmp_path).err
    for kind in ("verify", "launch", "bench"):
        outcome = cli("card", out, f"--{kind}", tmp_path / "none")
        assert outcome.code == 2 and f"no such file; --{kind} takes truecast.{kind}/1" in outcome.err


def test_infinity_in_a_figure(cli: Cli, out: Path) -> None:
    path = out.parent / "given" / "audit.json"
    document = json.loads(path.read_text())
    for mean in ("1e400", "1" + "0" * 400):
        path.write_text(json.dumps({**document, "kl": {**document["kl"], "mean": "HERE"}}).replace('"HERE"', mean))
        outcome = cli("card", out, "--audit", path)
        assert outcome.code == 2 and "(/kl/mean)" in outcome.err and str(path) in outcome.err


def test_a_record_of_another_checkpoint(cli: Cli, out: Path) -> None:
    given = out.parent / "given"
    outcome = cli("card", out, "--audit", given / "audit.native.json")
    assert outcome.code == 2 and "is not this checkpoint's: name whose audit it is with LABEL=" in outcome.err
    assert cli("card", out, "--audit", f"native={given / 'audit.native.json'}").code == 0


def test_an_audit_of_other_weights_of_the_same_shapes(cli: Cli, out: Path) -> None:
    other = out.parent / "other"
    convert(out.parent / "source", other, Target("w4afp8", method="amax"), card=render_card)
    checkpoint = open_checkpoint(other)
    path = out.parent / "given" / "audit.json"
    document = json.loads(path.read_text())
    assert document["candidate"]["fingerprint"] == checkpoint.fingerprint(), "which alone cannot tell them apart"
    document["candidate"]["weights"] = checkpoint.weights_sha256()
    path.write_text(json.dumps(document))
    outcome = cli("card", out, "--audit", path)
    assert outcome.code == 2 and "(/candidate/weights)" in outcome.err


def test_the_manifest(cli: Cli, out: Path, tmp_path: Path) -> None:
    manifest = out / "truecast.json"
    other = tmp_path / "manifest.json"
    other.write_bytes(manifest.read_bytes().replace(b'"half_blocks": 0', b'"half_blocks": 1'))
    outcome = cli("card", out, "--manifest", other)
    assert outcome.code == 2 and "is damaged" in outcome.err and str(other) in outcome.err
    convert(out.parent / "source", tmp_path / "wide", Target("nvfp4"), card=render_card)
    outcome = cli("card", out, "--manifest", tmp_path / "wide" / "truecast.json")
    assert outcome.code == 2 and "is this another checkpoint?" in outcome.err
    assert cli("card", tmp_path / "none").code == 2 and cli("card", out, "--manifest", tmp_path / "none").code == 2
    kept = tmp_path / "kept.json"
    kept.write_bytes(manifest.read_bytes())
    document = json.loads(kept.read_text())
    del document["sha256"]
    manifest.write_bytes(encode_manifest({**document, "notes": ["another"]}))
    outcome = cli("card", out, "--manifest", kept)
    assert outcome.code == 2 and f"is not {manifest}" in outcome.err
    manifest.unlink()
    assert cli("card", out).code == 2
    assert cli("card", out, "--manifest", kept).code == 0 and manifest.read_bytes() == kept.read_bytes()
    assert cli("verify", out.parent / "source", out).code == 0
    manifest.unlink()
    next(out.glob("*.safetensors")).unlink()
    outcome = cli("card", out, "--manifest", kept)
    assert outcome.code == 2 and "convert again" in outcome.err and not manifest.exists()


@pytest.mark.parametrize(
    "label",
    [
        "",
        "7",
        "7.",
        "this checkpoint",
        "This checkpoint",
        "this checkpoint ",
        "this  checkpoint",
        "<b>",
        "a=b",
        "x" * 41,
        "-a",
        "é",
    ],
)
def test_a_label_that_is_none(cli: Cli, out: Path, label: str) -> None:
    outcome = cli("card", out, "--eval", f"{label}={out.parent / 'given' / 'eval.native.json'}")
    assert outcome.code == 2
