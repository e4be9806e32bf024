"""The fixtures themselves: three releases, each with its own registry of hooks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.conftest import Release


def test_a_release_is_read_by_module_name(release: Release) -> None:
    assert "class ModelRunner" in release.sources("sglang.srt.model_executor.model_runner")
    assert (
        f"Version: {release.version}\n" in release.wheel.read(f"sglang-{release.version}.dist-info/METADATA").decode()
    )
    with pytest.raises(LookupError, match=r"no module sglang\.nowhere"):
        release.sources("sglang.nowhere")


def test_an_edited_release_differs_in_one_place(release: Release) -> None:
    name = "sglang.srt.plugins.hook_registry"
    edited = release.edited(name, "class HookRegistry", "class Gone")
    assert "class Gone" in edited.sources(name) and "class Gone" not in release.sources(name)
    assert release.without(name).sources(name) == ""


def test_the_registry_is_the_release_s_own(hook_registry: Any) -> None:
    import sglang.srt.plugins.hook_registry as module

    assert module.HookRegistry is hook_registry
