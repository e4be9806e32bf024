"""Stop strings: text is held back as long as it could be the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Feed pieces of text; each call gives what may be shown. ``hit`` is true once a stop string has come.

    The text ends before the earliest stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.hit = False
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> str:
        """What can be shown by now."""
        if self.hit:
            return ""
        text = self._held + text
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self.hit, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, where the text ends."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` with which ``stop`` begins, ``stop`` itself excepted."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
