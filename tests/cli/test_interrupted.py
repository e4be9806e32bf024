"""What Ctrl-C says: whether the same command goes on, or starts again."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator

import pytest

from truecast.cli.main import main


@pytest.fixture
def sigint() -> Iterator[None]:
    """The command ignores further signals; the tests do not."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


GOES_ON, AGAIN = "; the same command goes on from here", "; the same command starts again: nothing was kept"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("convert SRC OUT --to nvfp4", GOES_ON),
        ("corpus CKPT --prompts FILE --out FILE", GOES_ON),
        ("audit REF CAND --corpus FILE --out DIR", GOES_ON),
        ("audit REF CAND --corpus FILE", AGAIN),
        ("calibrate CKPT --corpus FILE --out FILE", AGAIN),
        ("verify SRC OUT", AGAIN),
        ("serve-reference CKPT", ""),
    ],
)
def test_interrupted(
    line: str, says: str, sigint: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verb = line.split()[0]

    def run(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module(f"truecast.cli.{verb.replace('-', '_')}"), "run", run)
    assert main(line.split()) == 130
    assert capsys.readouterr().err == f"truecast {verb}: interrupted{says}\n"
