"""SiTU in NVFP4 on Marlin, on ``ModelOptNvFp4FusedMoEMethod.apply`` as it is released."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.conftest import Release
from tests.engines.sglang.conftest import Place
from truecast.engines.sglang import hooking
from truecast.engines.sglang.fixes.situ_nvfp4 import FIX, LIST, MODULE, _Backend
from truecast.engines.sglang.situation import Situation

K3 = Situation(
    version="0.5.17",
    model="k3",
    quantization="modelopt_fp4",
    config={"hidden_act": "situ", "num_experts": 896},
    moe_backend="marlin",
)


def test_it_is_required_for_situ_in_nvfp4_on_marlin() -> None:
    need = FIX.need(K3)
    assert need is not None and need.required
    for changes in ({"config": {"hidden_act": "silu", "num_experts": 8}}, {"quantization": "mxfp4"}):
        assert FIX.need(Situation(**{**{f: getattr(K3, f) for f in K3.__slots__}, **changes})) is None  # type: ignore[attr-defined]


def test_the_fault_is_recognised(release: Release) -> None:
    assert FIX.faulty(release.sources)
    old = "activation in _SUPPORTED_ACT_STRS"
    mended = release.edited(MODULE, old, f"(activation == 'situ' and moe_runner_backend.is_marlin()) or {old}")
    assert not FIX.faulty(mended.sources)
    loosened = release.edited(MODULE, '("silu", "relu2", "gelu")', '("silu", "relu2", "gelu", "situ")')
    assert not FIX.faulty(loosened.sources)
    for gutted in (
        release.without(MODULE),
        release.edited(MODULE, "activation in _SUPPORTED_ACT_STRS", "supported(self)"),
        release.edited(MODULE, "class ModelOptNvFp4FusedMoEMethod", "class Other"),
        release.edited(MODULE, f"{LIST} = (", f"{LIST}_ = ("),
    ):
        with pytest.raises(LookupError):
            FIX.faulty(gutted.sources)


@pytest.fixture
def method(release: Release, hook_registry: Any, place: Place) -> Any:
    """The class with the released ``apply``, and an instance on Marlin."""
    scope: dict[str, Any] = {"get_moe_runner_backend": lambda: None}
    release.cut(MODULE, {LIST}, scope)
    import ast

    tree = ast.parse(release.sources(MODULE))
    (cls,) = [n for n in tree.body if getattr(n, "name", None) == "ModelOptNvFp4FusedMoEMethod"]
    (apply,) = [n for n in cls.body if getattr(n, "name", None) == "apply"]  # type: ignore[attr-defined]
    future = "from __future__ import annotations\n"
    exec(compile(future + ast.unparse(apply), MODULE, "exec"), scope)
    made = type("ModelOptNvFp4FusedMoEMethod", (), {"apply": scope["apply"]})
    scope["ModelOptNvFp4FusedMoEMethod"] = made
    place(MODULE, scope)
    instance = made()
    instance.moe_runner_config = SimpleNamespace(activation="situ")
    instance._moe_runner_backend = _Backend()
    instance.runner = SimpleNamespace(run=lambda dispatched, info: (dispatched, info))
    instance.get_marlin_quant_info = lambda layer: ("info", layer)
    return instance


def test_situ_reaches_marlin_only_with_the_hook(method: Any) -> None:
    layer = SimpleNamespace(_mega_moe_nvfp4=False)
    with pytest.raises(AssertionError):
        method.apply(layer, "dispatched")
    hooking.put_on(FIX.hooks(K3))
    FIX.selftest(K3)
    assert method.apply(layer, "dispatched") == ("dispatched", ("info", layer))


def test_the_assertion_stands_for_everything_else(method: Any) -> None:
    layer = SimpleNamespace(_mega_moe_nvfp4=False)
    hooking.put_on(FIX.hooks(K3))
    method.moe_runner_config.activation = "swish"
    with pytest.raises(AssertionError):
        method.apply(layer, "dispatched")
    method.moe_runner_config.activation = "situ"
    method._moe_runner_backend = SimpleNamespace(
        **dict.fromkeys(("is_marlin", "is_flashinfer_trtllm", "is_flashinfer_megamoe"), lambda: False)
    )
    with pytest.raises(AssertionError):
        method.apply(layer, "dispatched")
    method.moe_runner_config.activation = "silu"
    method._moe_runner_backend = _Backend()
    assert method.apply(layer, "dispatched") == ("dispatched", ("info", layer))


def test_the_selftest_sees_a_loosened_list(method: Any) -> None:
    import sglang.srt.layers.quantization.modelopt_quant as module

    with pytest.raises(AssertionError):
        FIX.selftest(K3)
    hooking.put_on(FIX.hooks(K3))
    setattr(module, LIST, ("silu", "situ"))
    with pytest.raises(AssertionError, match="loosened"):
        FIX.selftest(K3)
