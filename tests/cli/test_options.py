from __future__ import annotations

import importlib
import sys

import pytest

from truecast.cli.options import needing
from truecast.errors import InputError


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError) as told, needing("torch", "audit"):
        importlib.import_module("torch")
    assert str(told.value) == "audit needs the package torch; pip install 'truecast[torch]'"


def test_a_fault_of_our_own_keeps_its_traceback() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"truecast\.absent"), needing("torch", "audit"):
        importlib.import_module("truecast.absent")
