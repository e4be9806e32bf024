"""One test's Ctrl-C is no other's."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from tests.process import Process


@pytest.mark.parametrize("turn", [1, 2])
def test_ctrl_c_is_heard_again_after_a_test_that_ignored_it(turn: int) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_a_program_does_not_outlive_a_failure() -> None:
    before = time.monotonic()
    with pytest.raises(ZeroDivisionError), Process([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGKILL and time.monotonic() - before < 30
