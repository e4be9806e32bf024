"""Putting a fix's hooks on through SGLang's registry, seeing that each took, and taking them off again.

The registry logs a hook that it cannot apply and goes on; so what it did is looked at afterwards.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from truecast.engines.sglang.fix import Hook, Kind


@dataclass(frozen=True, slots=True)
class Target:
    """Where a hook goes: ``attribute`` of ``owner``, what lay there before, and as which descriptor."""

    path: str
    owner: Any
    attribute: str
    value: Any
    descriptor: Any

    def now(self) -> Any:
        """What lies there at this moment; the function itself of a method."""
        value = getattr(self.owner, self.attribute)
        return getattr(value, "__func__", value)


def resolve(path: str) -> Target:
    """Find a hook's target. Raises: LookupError if it is gone."""
    parent, _, attribute = path.rpartition(".")
    try:
        owner = pkgutil.resolve_name(parent)
        value = getattr(owner, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise LookupError(f"{path} is gone: {error}") from error
    descriptor = vars(owner).get(attribute) if isinstance(owner, type) else value
    if descriptor is None and isinstance(inspect.getattr_static(owner, attribute), staticmethod | classmethod):
        raise LookupError(f"{path} is inherited and no plain method, which SGLang's registry cannot hook")
    return Target(path, owner, attribute, getattr(value, "__func__", value), descriptor)


def put_on(hooks: Sequence[Hook]) -> list[Target]:
    """Apply hooks and verify each; what was put on is taken off again if one did not take.

    Raises: LookupError if a target is gone or a hook is not in place afterwards.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource

    source = HookSource("truecast", "truecast")
    targets = [resolve(hook.target) for hook in hooks]  # all of them, before the first is touched
    for hook, target in zip(hooks, targets, strict=True):
        if hook.kind is Kind.REPLACE and target.path in HookRegistry._patched:
            raise LookupError(f"{hook.target} is hooked by another plug-in, and to replace it would undo that")
    try:
        for hook in hooks:
            HookRegistry.register(hook.target, hook.function, _registry_kind(hook.kind), source=source)
        HookRegistry.apply_hooks()
        for hook, target in zip(hooks, targets, strict=True):
            _verify(hook, target)
    except BaseException:
        take_off(targets, hooks)
        raise
    return targets


def put_over(hooks: Sequence[Hook]) -> None:
    """Apply these hooks and no other that the registry may hold, over whatever is there; verify each.

    Raises: LookupError if a target is gone or a hook is not in place afterwards.
    """
    for hook, target in [(hook, resolve(hook.target)) for hook in hooks]:
        _verify(hook, target)


def _verify(hook: Hook, target: Target) -> None:
    if not _is_in_place(hook, target):  # the registry leaves alone what it has patched before
        _put_over(hook)
    if not _is_in_place(hook, target):
        raise LookupError(f"the hook on {hook.target} did not take")
    if stale := list(_bindings(target.value)):
        raise LookupError(f"{stale[0][0].__name__}.{stale[0][1]} still is what {hook.target} was")


def take_off(targets: Sequence[Target], hooks: Sequence[Hook]) -> None:
    """Put back what lay at the targets, and forget the hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    functions = [hook.function for hook in hooks]
    for target in reversed(targets):
        wrapped = target.now()
        if target.descriptor is None:  # inherited: there was nothing of its own
            if target.attribute in vars(target.owner):
                delattr(target.owner, target.attribute)
        else:
            setattr(target.owner, target.attribute, target.descriptor)
        for module, name in _bindings(wrapped):
            setattr(module, name, target.value)
        kept = [entry for entry in HookRegistry._hooks.pop(target.path, []) if entry[1] not in functions]
        if kept:
            HookRegistry._hooks[target.path] = kept
        else:
            HookRegistry._patched.discard(target.path)


def _registry_kind(kind: Kind) -> Any:
    from sglang.srt.plugins.hook_registry import HookType

    return HookType.AROUND if kind is Kind.AROUND else HookType.REPLACE


def _put_over(hook: Hook) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource

    try:
        source = HookSource("truecast", "truecast")
        HookRegistry._apply_target(hook.target, [(_registry_kind(hook.kind), hook.function, source)])
    except (AttributeError, TypeError, ValueError) as error:
        raise LookupError(f"the hook on {hook.target} did not take: {error}") from error


def _is_in_place(hook: Hook, target: Target) -> bool:
    here: Any = target.now()
    while here is not None:
        if here is hook.function or any(value is hook.function for value in _captured(here)):
            return True
        here = vars(here).get("__wrapped__") if hasattr(here, "__dict__") else None
    return False


def _captured(wrapper: Callable[..., Any]) -> list[Any]:
    found = []
    for cell in getattr(wrapper, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a cell that is still empty
            continue
    return found


def _bindings(value: object) -> Iterator[tuple[ModuleType, str]]:
    """Modules' names for an object: where it was imported with ``from x import y``."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, bound in list(vars(module).items()):
                if bound is value:
                    yield module, name
