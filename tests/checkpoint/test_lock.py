from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from truecast.audit.resume import Folder
from truecast.checkpoint.journal import Journal
from truecast.checkpoint.lock import lock_folder
from truecast.errors import RefusedError


def test_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    held = lock_folder(tmp_path, tmp_path / ".own", "audit")
    with pytest.raises(RefusedError, match="another audit is writing this folder; wait for it to end"):
        lock_folder(tmp_path, tmp_path / ".own", "audit")
    os.close(held)
    os.close(lock_folder(tmp_path, tmp_path / ".own", "audit"))


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Folder(tmp_path / "audited", {}, {}):
        assert "audited cannot be locked (No locks available): make sure that only one audit writes it" in caplog.text
    with Journal(tmp_path / "converted", {}):
        assert "converted cannot be locked (No locks available): make sure that only one run writes it" in caplog.text
