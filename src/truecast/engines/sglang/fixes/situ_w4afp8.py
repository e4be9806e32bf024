"""SiTU in W4AFP8. SGLang's W4AFP8 experts run SiLU whatever the model asks for, and nothing complains.

``W4AFp8MoEMethod`` never looks at ``moe_runner_config.activation``. Three of its kernels fuse SiLU and FP8 quantization,
and the path of DeepEP's normal mode calls SGLang's ``silu_and_mul`` for itself. So: while one of the method's three
``apply`` runs for a layer whose activation is ``situ``, those kernels are ours, with that layer's own two numbers.
Everything else that calls them gets SGLang's.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.situation import Situation

METHOD = "sglang.srt.layers.quantization.w4afp8"
EXPERTS = "sglang.srt.layers.moe.cutlass_w4a8_moe"
KERNELS = "sglang.kernels.ops.moe.ep_moe_kernels"
STATIC = "silu_mul_static_tensorwise_quant_for_cutlass_moe"
DYNAMIC = "silu_mul_dynamic_tensorwise_quant_for_cutlass_moe"
MASKED = "silu_and_mul_masked_post_per_tensor_quant_fwd"
CALLS = {
    "apply": ("cutlass_w4a8_moe", {STATIC, DYNAMIC}),
    "apply_deepep_normal": ("cutlass_w4a8_moe_deepep_normal", {"silu_and_mul", "per_tensor_quant_fp8"}),
    "apply_deepep_ll": ("cutlass_w4a8_moe_deepep_ll", {MASKED}),
}
"""Each way into the method, the function it calls, and what that one calls to activate and quantize."""

_running: Any = None
"""The :class:`~..kernels.situ_fp8_plain.Situ` of the layer that is being computed; None outside of one."""


def need(situation: Situation) -> Need | None:
    """Every W4AFP8 model whose activation is SiTU, for nothing else would be answered by the model."""
    if situation.quantization != "w4afp8" or situation.activation != "situ":
        return None
    return Need("the experts' activation is SiTU, and SGLang's W4AFP8 computes SiLU", required=True)


def faulty(sources: Sources) -> bool:
    """Does no way into the method look at the activation? Raises: LookupError where the calls are others."""
    method = _functions(sources(METHOD), METHOD, "W4AFp8MoEMethod")
    experts = _functions(sources(EXPERTS), EXPERTS)
    kernels = _functions(sources(KERNELS), KERNELS)
    for name in (STATIC, DYNAMIC, MASKED):
        _found(kernels, name, KERNELS)
    looks = []
    for apply, (function, called) in CALLS.items():
        body = _found(method, apply, f"{METHOD}.W4AFp8MoEMethod")
        inner = _found(experts, function, EXPERTS)
        if {"activation", "situ", "gemm1_alpha"} & (_words(body) | _words(inner)):
            looks.append(apply)
        elif function not in _words(body):
            raise LookupError(f"{METHOD}.W4AFp8MoEMethod.{apply} calls no {function}")
        elif missing := called - _words(inner):
            raise LookupError(f"{EXPERTS}.{function} calls no {', '.join(sorted(missing))}")
    return len(looks) < len(CALLS)


def hooks(situation: Situation) -> Sequence[Hook]:
    """Raises: LookupError where the model's config.json does not give SiTU's numbers."""
    if situation.config.get("activation_situ_beta") is None:
        raise LookupError(f"{situation.model}: config.json has no activation_situ_beta")
    return [
        *(Hook(f"{METHOD}.W4AFp8MoEMethod.{name}", _apply) for name in CALLS),
        Hook(f"{KERNELS}.{STATIC}", _static),
        Hook(f"{KERNELS}.{DYNAMIC}", _dynamic),
        Hook(f"{KERNELS}.{MASKED}", _masked),
        Hook(f"{EXPERTS}.cutlass_w4a8_moe_deepep_normal", _deepep_normal),
    ]


def _apply(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the method's three ways in: the kernels below see the layer's activation."""
    global _running
    config = self.moe_runner_config
    before = _running
    _running = _form(config.gemm1_alpha, config.gemm1_clamp_limit) if config.activation == "situ" else None
    try:
        return original(self, *args, **kwargs)
    finally:
        _running = before


def _form(beta: float | None, linear_beta: float | None) -> Any:
    from truecast.engines.sglang.kernels.situ_fp8_plain import Situ

    if beta is None:
        raise RuntimeError("a W4AFP8 layer wants SiTU, but was built without gemm1_alpha (activation_situ_beta)")
    return Situ(beta, linear_beta)


def _static(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs) if _running is None else _quantize_rows(*args, **kwargs)


def _dynamic(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs) if _running is None else _quantize_rows_dynamic(*args, **kwargs)


def _masked(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs) if _running is None else _quantize_masked(*args, **kwargs)


# These three have the parameters of the functions that they stand in for, by SGLang's names.


def _quantize_rows(
    input: Any, output: Any, scale: Any, num_tokens_tensor: Any, expected_num_tokens: int, intermediate_size: int
) -> None:
    from truecast.engines.sglang.kernels import situ_fp8

    rows = input.view(1, expected_num_tokens, 2 * intermediate_size)
    situ_fp8.quantize(
        rows, output.view(1, expected_num_tokens, intermediate_size), scale, num_tokens_tensor.view(1), _running
    )


def _quantize_rows_dynamic(
    input: Any, output: Any, scale: Any, num_tokens_tensor: Any, expected_num_tokens: int, intermediate_size: int
) -> None:
    from truecast.engines.sglang.kernels import situ_fp8

    rows = input.view(1, expected_num_tokens, 2 * intermediate_size)
    situ_fp8.dynamic_scale(rows, scale, num_tokens_tensor.view(1), _running)
    _quantize_rows(input, output, scale, num_tokens_tensor, expected_num_tokens, intermediate_size)


def _quantize_masked(input: Any, output: Any, masked_m: Any, scale: Any) -> Any:
    from truecast.engines.sglang.kernels import situ_fp8

    situ_fp8.quantize(input, output, scale, masked_m, _running)
    return output


def _deepep_normal(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """SGLang's own function, with its two names for activation and quantization bound to ours for this call.

    It rounds the activation to BF16 and quantizes every row that there might be; here both happen in the one pass, over
    the real rows. No other module's ``silu_and_mul`` is touched.
    """
    if _running is None:
        return original(*args, **kwargs)
    function = inspect.unwrap(original)
    names = CALLS["apply_deepep_normal"][1]
    if not isinstance(function, FunctionType) or not names <= set(function.__code__.co_names):
        raise RuntimeError(f"{EXPERTS}.cutlass_w4a8_moe_deepep_normal no longer calls {', '.join(sorted(names))}")
    offsets = inspect.signature(function).bind(*args, **kwargs).arguments["expert_offsets"]
    quantize = function.__globals__["per_tensor_quant_fp8"]
    waiting: list[tuple[Any, Any]] = []

    def activate(gate_up: Any, activated: Any) -> None:
        waiting.append((gate_up, activated))

    def activate_and_quantize(input: Any, output: Any, scale: Any, is_static: bool) -> Any:
        if not waiting or waiting[-1][1] is not input:
            return quantize(input, output, scale, is_static)
        gate_up, _ = waiting.pop()
        return _quantize_rows(gate_up, output, scale, offsets[-1:], gate_up.shape[0], gate_up.shape[1] // 2)

    ours = {"silu_and_mul": activate, "per_tensor_quant_fp8": activate_and_quantize}
    bound = FunctionType(function.__code__, function.__globals__ | ours, function.__name__, function.__defaults__)
    bound.__kwdefaults__ = function.__kwdefaults__
    result = bound(*args, **kwargs)
    if waiting:
        raise RuntimeError(f"{EXPERTS}.cutlass_w4a8_moe_deepep_normal did not quantize what SiTU gave")
    return result


def selftest(situation: Situation) -> None:
    """The kernels as the hooks leave them, called by SGLang's names as a SiTU layer calls them, against the plain form.

    Raises: AssertionError with what came out wrong.
    """
    from importlib import import_module
    from types import SimpleNamespace

    import torch

    from truecast.engines.sglang.kernels import situ_fp8_plain

    kernels = import_module(KERNELS)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    beta, linear_beta = situation.config["activation_situ_beta"], situation.config.get("activation_situ_linear_beta")
    runner = SimpleNamespace(activation="situ", gemm1_alpha=beta, gemm1_clamp_limit=linear_beta)
    layer = SimpleNamespace(moe_runner_config=runner)
    form = situ_fp8_plain.Situ(beta, linear_beta)
    x = (torch.randn(4, 8, 2 * 512, generator=torch.Generator().manual_seed(0)) * 4).bfloat16()
    counts = torch.tensor([8, 3, 0, 5], dtype=torch.int32)
    scale = torch.full((1,), 0.05)

    def check(what: str, call: Callable[[Any, Any, Any], Any], given: Any, real: Any, dynamic: bool) -> None:
        wanted = torch.zeros(*given.shape[:2], 512).to(torch.float8_e4m3fn)
        ours, factor = wanted.clone().to(device), scale.clone().to(device)
        _apply(lambda _: call(given.to(device), ours, factor), layer)
        if dynamic:
            plain = torch.zeros(1)
            situ_fp8_plain.dynamic_scale(given, plain, real, form)
            assert abs(float(factor.cpu() / plain) - 1) < 2e-3, f"{what}: scale {float(factor)} is not {float(plain)}"
        situ_fp8_plain.quantize(given, wanted, factor.cpu(), real, form)
        apart = (ours.cpu().float() - wanted.float()).abs()
        step = wanted.float().abs() / 8 + 2.0**-9
        assert bool((apart <= step).all()), f"{what}: off by {float((apart / step).max()):.1f} steps of E4M3"

    rows, some = x[:1], torch.tensor([6], dtype=torch.int32)
    end = some.to(device)
    check("static", lambda a, o, s: getattr(kernels, STATIC)(a[0], o[0], s, end, 8, 512), rows, some, False)
    check("dynamic", lambda a, o, s: getattr(kernels, DYNAMIC)(a[0], o[0], s, end, 8, 512), rows, some, True)
    check("masked", lambda a, o, s: getattr(kernels, MASKED)(a, o, counts.to(device), s), x, counts, False)


def _functions(source: str, module: str, owner: str | None = None) -> dict[str, ast.FunctionDef]:
    body = ast.parse(source).body
    if owner is not None:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == owner]
        if not classes:
            raise LookupError(f"{module} has no class {owner}")
        body = classes[0].body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def _found(functions: dict[str, ast.FunctionDef], name: str, where: str) -> ast.FunctionDef:
    if name not in functions:
        raise LookupError(f"{where} has no {name}")
    return functions[name]


def _words(function: ast.FunctionDef) -> set[str]:
    """Names, attributes, arguments and one-word texts of a function: what it can look at or call."""
    words = set()
    for node in ast.walk(function):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.keyword(arg=str(word)):
                words.add(word)
            case ast.Constant(value=str(word)):
                words.add(word)
            case ast.alias(name=word):
                words.add(word)
    return words


FIX = Fix(
    name="situ-w4afp8",
    summary="W4AFP8 experts run the model's SiTU instead of SiLU, fused with the FP8 quantization",
    versions=("0.5.17", "0.5.24"),
    need=need,
    faulty=faulty,
    hooks=hooks,
    selftest=selftest,
    settings={},
)
