"""SiTU experts in NVFP4 on Marlin: SGLang stops at an assertion in front of a kernel that has SiTU.

``ModelOptNvFp4FusedMoEMethod.apply`` asserts an activation out of a list without ``situ`` and only then looks for Marlin,
whose runner has SiTU and its own assertion. The list also guards an FP8 kernel without SiTU, so it stays as it is: the
hook goes round the method and hands SiTU on Marlin to the runner as the method's own next lines do.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.guard import holds
from truecast.engines.sglang.nvfp4 import modelopt_on_marlin
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.source import function

MODULE = "sglang.srt.layers.quantization.modelopt_quant"
METHOD = "ModelOptNvFp4FusedMoEMethod.apply"
LIST = "_SUPPORTED_ACT_STRS"


class _Backend:
    """Marlin, and no other backend that SGLang may ask for."""

    def __getattr__(self, name: str) -> Callable[[], bool]:
        return lambda: name == "is_marlin"


def _need(situation: Situation) -> Need | None:
    if situation.activation == "situ" and modelopt_on_marlin(situation):
        return Need("the experts are NVFP4 with SiTU, on Marlin", required=True)
    return None


def _faulty(sources: Sources) -> bool:
    return not accepts(sources, "situ", "marlin")


def accepts(sources: Sources, activation: str, backend: str) -> bool:
    """Would SGLang's own assertion let this activation pass on this MoE backend? Raises: LookupError if it is another."""
    body = ast.parse(function(sources, MODULE, METHOD)).body
    guards = [n.test for n in ast.walk(body[0]) if isinstance(n, ast.Assert) and "activation" in ast.unparse(n.test)]
    if not guards:
        raise LookupError(f"{METHOD} asserts no activation")
    names = {"activation": activation, LIST: _listed(sources)}
    return all(holds(guard, names, "moe_runner_backend", backend) for guard in guards)


def _listed(sources: Sources) -> tuple[str, ...]:
    for node in ast.parse(sources(MODULE)).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == LIST for t in node.targets):
            return tuple(ast.literal_eval(node.value))
    raise LookupError(f"{MODULE} has no {LIST}")


def _apply(original: Callable[..., Any], self: Any, layer: Any, dispatch_output: Any) -> Any:
    backend = getattr(self, "_moe_runner_backend", None)
    if self.moe_runner_config.activation == "situ" and backend is not None and backend.is_marlin():
        return self.runner.run(dispatch_output, self.get_marlin_quant_info(layer))
    return original(self, layer, dispatch_output)


def _selftest(situation: Situation) -> None:
    from sglang.srt.layers.quantization import modelopt_quant

    method = SimpleNamespace(
        moe_runner_config=SimpleNamespace(activation="situ"),
        _moe_runner_backend=_Backend(),
        runner=SimpleNamespace(run=lambda dispatched, info: (dispatched, info)),
        get_marlin_quant_info=lambda layer: ("info", layer),
    )
    layer = SimpleNamespace(_mega_moe_nvfp4=False)
    got = modelopt_quant.ModelOptNvFp4FusedMoEMethod.apply(method, layer, "dispatched")
    assert got == ("dispatched", ("info", layer)), "SiTU on Marlin does not reach Marlin's runner"
    assert "situ" not in modelopt_quant._SUPPORTED_ACT_STRS, "the FP8 kernel's list of activations was loosened"


FIX = Fix(
    name="situ-nvfp4",
    summary="SiTU in NVFP4 experts on Marlin",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=lambda situation: [Hook(f"{MODULE}.{METHOD}", _apply)],
    selftest=_selftest,
    settings={},
)
