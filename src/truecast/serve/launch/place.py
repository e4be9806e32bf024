"""Where servers find a checkpoint."""

from __future__ import annotations

from pathlib import Path

from truecast.errors import UsageError


def server_path(location: str) -> str:
    """A checkpoint's place as SGLang takes it on any node: a whole path; ``hf://owner/name`` is ``owner/name`` there.

    Raises: UsageError for a path that cannot be shown in a script as it is.
    """
    place = location.removeprefix("hf://") if "://" in location else str(Path(location).absolute())
    if not place.isprintable():
        raise UsageError("holds control characters", where=ascii(place), fix="rename the folder")
    return place
