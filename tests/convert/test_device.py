"""Where INT4 codes are computed, and what is told where a GPU is there but of no use."""

from __future__ import annotations

import logging

import pytest

from truecast.convert.device import devices
from truecast.errors import UsageError

pytest.importorskip("torch")
int4_cuda = pytest.importorskip("truecast.casts.int4_cuda")


def test_a_device_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """torch for the CPU stands for it: it raises at the first tensor, as one without driver or compiler does."""
    if int4_cuda.device_count():
        pytest.skip("there is a device that works")
    monkeypatch.setattr(int4_cuda, "device_count", lambda: 2)
    with caplog.at_level(logging.WARNING):
        assert devices("auto", "w4afp8") == ["cpu"]
    assert "INT4 codes are computed on the CPU: " in caplog.text
    with pytest.raises(UsageError, match=r"--device cuda: \w+: .+; install torch for CUDA"):
        devices("cuda", "w4afp8")


def test_a_broken_installation_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise OSError("libcudart.so.13: cannot open shared object file\nmore")

    monkeypatch.setattr(int4_cuda, "device_count", broken)
    assert devices("auto", "w4afp8") == ["cpu"]
    with pytest.raises(UsageError, match=r"--device cuda: OSError: libcudart.so.13: cannot open shared object file;"):
        devices("cuda", "w4afp8")


@pytest.mark.parametrize("target", ["nvfp4", "fp8", "bf16", "mxfp4"])
def test_other_targets_never_ask(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(int4_cuda, "device_count", lambda: pytest.fail("asked"))
    assert devices("auto", target) == devices("cuda", target) == ["cpu"]
