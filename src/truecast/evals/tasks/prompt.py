"""The words around a problem. They decide scores, so they are the harness's own, read where it is installed, never ours.

The templates of NeMo-Skills (Apache-2.0) ship in the package ``sgl-eval``; ``--prompt FILE`` gives another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from inspect_ai.model import ChatMessage, ChatMessageSystem, ChatMessageUser

from truecast.errors import InputError
from truecast.evals.tasks.data import packaged

PACKAGE, FOLDER = "sgl_eval", "_vendored/nemo_skills"


@dataclass(frozen=True, slots=True)
class Prompt:
    """``template`` has ``{problem}`` (or the task's own fields) where it goes, and ``{{`` for a brace.

    ``system``: the message before it; None for none. An empty one is sent too, as NeMo-Skills does.
    """

    name: str
    template: str
    system: str | None = None

    def messages(self, **fields: str) -> list[ChatMessage]:
        """What to send."""
        before: list[ChatMessage] = [] if self.system is None else [ChatMessageSystem(content=self.system)]
        return [*before, ChatMessageUser(content=self.template.format(examples="", **fields))]

    @property
    def identity(self) -> dict[str, str]:
        """Name and SHA-256."""
        text = self.template if self.system is None else f"{self.system}\0{self.template}"
        return {"name": self.name, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def prompt_of(name: str, file: Path | None, fields: Sequence[str] = ("problem",)) -> Prompt:
    """``file`` (plain text, or YAML with ``user`` and perhaps ``system``), else the template ``name`` of NeMo-Skills.

    Raises: InputError where there is none, or it has no place for one of ``fields``.
    """
    path = file if file is not None else packaged(PACKAGE, f"{FOLDER}/prompts/{name}.yaml")
    places = ", ".join(f"{{{field}}}" for field in fields)
    if path is None:
        raise InputError(
            f"the prompt {name} of NeMo-Skills is not here",
            fix=f"pip install --no-deps sgl-eval, or give --prompt FILE with {places} where it goes",
        )
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else {"user": text.rstrip("\n")}
        made = Prompt(name if file is None else path.name, found["user"], found.get("system"))
        marks = {field: f"\0{field}\0" for field in fields}
        sent = str(made.messages(**marks)[-1].content)
        if not all(mark in sent for mark in marks.values()) or not isinstance(made.system, str | None):
            raise ValueError("a field is missing")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, yaml.YAMLError):
        raise InputError(
            f"is no template with {places} in it", where=str(path), fix="double every other brace: {{ and }}"
        ) from None
    return made
