"""A recorded JSON document as the card reads it: untrusted, every value checked, every value traced."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from truecast.errors import InputError
from truecast.report.card.content import Figure, Label, Value, Words
from truecast.report.words import figure as rounded

THIS = "this checkpoint"
LONGEST = 600
"""Characters of a text that the card shows."""
_LARGEST = 1e15
"""No figure on a card is larger: counts of elements of the largest models are 1e13."""

_MADE_BY = {
    "manifest": "truecast convert",
    "verify": "truecast verify SOURCE THIS_FOLDER --json",
    "audit": "truecast audit",
    "bench": "truecast bench",
    "eval": "truecast eval",
    "compare": "truecast compare A B --json",
    "launch": "truecast launch THIS_FOLDER --json",
}


@dataclass(frozen=True)
class Record:
    """``file``: its name beside the card; ``where``: as the user named it, for messages. ``label``: whose figures these
    are, empty for this checkpoint. ``kind``: ``manifest``, ``verify``, ``audit``, ``bench``, ``eval``, ``compare`` or
    ``launch``.

    A path is keys of objects and places in arrays, from the top. Methods raise InputError with file, key and remedy.
    """

    kind: str
    file: str
    where: str
    document: Mapping[str, Any]
    sha256: str = ""
    label: str = ""

    def get(self, *path: str | int) -> Any:
        """What stands there; None where nothing does."""
        value: Any = self.document
        for key in path:
            if isinstance(value, dict) and isinstance(key, str):
                value = value.get(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            else:
                return None
        return value

    def number(self, *path: str | int, low: float = -_LARGEST, high: float = _LARGEST) -> float:
        """A finite number within bounds."""
        value = self.get(*path)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.bad("is no number", *path)
        if not low <= value <= high or not math.isfinite(value):
            raise self.bad(f"is {str(value)[:40]}, no number from {low:g} to {high:g}", *path)
        return value

    def share(self, *path: str | int) -> float:
        """A number from 0 to 1."""
        return self.number(*path, low=0.0, high=1.0)

    def count(self, *path: str | int) -> int:
        """A whole number of at least 0."""
        value = self.number(*path, low=0)
        if not isinstance(value, int):
            raise self.bad("is no whole number", *path)
        return value

    def string(self, *path: str | int) -> str:
        """A text that is not empty."""
        value = self.get(*path)
        if not isinstance(value, str) or not value:
            raise self.bad("is no text", *path)
        return value

    def object(self, *path: str | int) -> dict[str, Any]:
        """An object."""
        value = self.get(*path)
        if not isinstance(value, dict):
            raise self.bad("is no object", *path)
        return value

    def array(self, *path: str | int) -> list[Any]:
        """An array."""
        value = self.get(*path)
        if not isinstance(value, list):
            raise self.bad("is no array", *path)
        return value

    def figure(self, *path: str | int, words: Callable[[float], str] = rounded) -> Figure:
        """A number as the card prints it."""
        value = self.number(*path)
        return Figure(words(value), value, self.file, pointer(path))

    def counted(self, *path: str | int) -> Figure:
        """A count with its thousands apart."""
        value = self.count(*path)
        return Figure(f"{value:,}", value, self.file, pointer(path))

    def text(self, *path: str | int, code: bool = False) -> Figure:
        """A text, which may be shortened; characters that cannot be seen become escapes."""
        value = self.string(*path)
        return Figure(visible(value), value, self.file, pointer(path), code=code)

    def scalar(self, *path: str | int, code: bool = False) -> Figure:
        """A text, number or truth value as it stands."""
        value = self.get(*path)
        if isinstance(value, bool):
            return Figure("yes" if value else "no", value, self.file, pointer(path), code=code)
        if isinstance(value, str) and value:
            return self.text(*path, code=code)
        number = self.number(*path)
        return Figure(
            f"{number:,}" if isinstance(number, int) else f"{number:g}", number, self.file, pointer(path), code=code
        )

    def derived(self, text: str, value: Value, how: str, *path: str | int, code: bool = False) -> Figure:
        """A value made from what stands at the path; ``how`` says how."""
        return Figure(visible(text), value, self.file, pointer(path), how=how, code=code)

    def text_key(self, *path: str | int) -> Figure:
        """The last key of a path itself."""
        key = str(path[-1])
        return Figure(visible(key), key, self.file, pointer(path), how="the key")

    def interval(self, *path: str | int, words: Callable[[float], str] = rounded) -> Words | None:
        """``low to high``; None where the record has none. Raises: InputError where they are in the wrong order."""
        if self.get(*path) is None:
            return None
        if len(self.array(*path)) != 2 or self.number(*path, 0) > self.number(*path, 1):
            raise self.bad("is no interval from low to high", *path)
        return self.figure(*path, 0, words=words), " to ", self.figure(*path, 1, words=words)

    def estimate(
        self,
        mean: Sequence[str | int],
        interval: Sequence[str | int],
        *,
        low: float = -_LARGEST,
        high: float = _LARGEST,
    ) -> None:
        """Raises: InputError where a mean or an end of its interval is out of bounds, or the mean outside of its interval."""
        value = self.number(*mean, low=low, high=high)
        if self.interval(*interval) is None:
            return
        ends = [self.number(*interval, i, low=low, high=high) for i in (0, 1)]
        slack = 1e-9 * max(abs(value), *map(abs, ends))
        if not ends[0] - slack <= value <= ends[1] + slack:
            raise self.bad(f"is {value:.12g}, outside of its interval", *mean)

    def same(self, expected: float, *path: str | int) -> None:
        """Raises: InputError where a number is not what the rest of the record gives."""
        value = self.number(*path)
        if not math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12):
            raise self.bad(f"is {value:.12g}, and the rest of the record gives {expected:.12g}", *path)

    @property
    def name(self) -> Label:
        """The label that the user gave, or that this checkpoint has."""
        return Label(self.label or THIS)

    def bad(self, problem: str, *path: str | int) -> InputError:
        """The error for what stands at a path."""
        return InputError(
            f"{problem} ({pointer(path) or 'the whole'})",
            where=self.where,
            fix=f"give the file that `{_MADE_BY[self.kind]}` wrote, unchanged",
        )


def pointer(path: Sequence[str | int]) -> str:
    """RFC 6901."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)


def visible(text: str) -> str:
    """One line of characters that can be seen, shortened in the middle of nowhere else than its end."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:LONGEST])
    return shown + "..." if len(text) > LONGEST else shown
