"""Reading numbers out of config.json with messages that name file and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any

from truecast.errors import InputError

MAX = 1 << 24
"""No dimension is larger: what is computed from one alone, before any tensor is looked at, stays small."""

MAX_FACTOR = 3e38
"""No number is larger in magnitude: activations are float32 or narrower."""

_NEEDED = object()


@dataclass(frozen=True, slots=True)
class Settings:
    """One JSON object of a config file. Every reader raises InputError for a missing key or a wrong type."""

    document: Mapping[str, Any]
    where: str

    def error(self, name: str, problem: str) -> InputError:
        """An error about one key."""
        return InputError(f"{name} {problem}", where=self.where, fix="is this the model's own config.json?")

    def block(self, name: str) -> Settings:
        """A nested object."""
        value = self._get(name, _NEEDED)
        if not isinstance(value, Mapping):
            raise self.error(name, "is no JSON object")
        return Settings(value, f"{self.where} ({name})")

    def natural(self, name: str, default: object = _NEEDED, least: int = 1) -> int:
        """A whole number of at least ``least``."""
        value = self._get(name, default)
        if type(value) is not int or not least <= value <= MAX:
            raise self.error(name, f"is {short(value)}; a whole number from {least} to {MAX} is needed")
        return value

    def naturals(self, name: str) -> list[int]:
        """A list of whole numbers of at least 1."""
        value = self._get(name, _NEEDED)
        if not isinstance(value, list) or not all(type(v) is int and 1 <= v <= MAX for v in value):
            raise self.error(name, "is no list of whole numbers")
        return value

    def number(self, name: str, default: float | None) -> float | None:
        """A finite number, or ``default`` where the key is missing or null."""
        value = self._get(name, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MAX_FACTOR:
            raise self.error(name, f"is {short(value)}; a number is needed, and one that float32 can hold")
        return float(value)

    def needed(self, name: str) -> float:
        """A finite number that must be there."""
        value = self.number(name, None)
        if value is None:
            raise self.error(name, "is missing")
        return value

    def positive(self, name: str) -> float:
        """A number above zero that must be there."""
        value = self.needed(name)
        if not value > 0:
            raise self.error(name, f"is {value}; a number above zero is needed")
        return value

    def flag(self, name: str, default: object = _NEEDED) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"is {short(value)}; true or false is needed")
        return value

    def require(self, name: str, only: object, *, absent_is_fine: bool = False) -> None:
        """Refuse any value but the one that is computed here."""
        value = self.document.get(name)
        if (value is None and absent_is_fine) or (value == only and type(value) is type(only)):
            return
        raise self.error(name, f"is {short(value)}; the reference model computes {only!r} only")

    def _get(self, name: str, default: object) -> Any:
        value = self.document.get(name)
        if value is not None:
            return value
        if default is _NEEDED:
            raise self.error(name, "is missing")
        return default
