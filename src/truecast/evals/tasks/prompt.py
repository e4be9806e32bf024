"""The words around a problem. They decide scores, so they are the harness's own, read where it is installed, never ours.

The templates of NeMo-Skills (Apache-2.0) ship in the package ``sgl-eval``; ``--prompt FILE`` gives another one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from truecast.errors import InputError
from truecast.evals.tasks.data import packaged

PACKAGE, FOLDER = "sgl_eval", "_vendored/nemo_skills"


@dataclass(frozen=True, slots=True)
class Prompt:
    """``template`` has ``{problem}`` where the problem goes, and ``{{`` for a brace."""

    name: str
    template: str

    def filled(self, problem: str) -> str:
        """The message to send."""
        return self.template.format(problem=problem, examples="")

    @property
    def identity(self) -> dict[str, str]:
        """Name and SHA-256."""
        return {"name": self.name, "sha256": hashlib.sha256(self.template.encode()).hexdigest()}


def prompt_of(name: str, file: Path | None) -> Prompt:
    """``file`` (plain text, or YAML with ``user``), else the template ``name`` of NeMo-Skills.

    Raises: InputError where there is none, or it has no place for the problem.
    """
    path = file if file is not None else packaged(PACKAGE, f"{FOLDER}/prompts/{name}.yaml")
    if path is None:
        raise InputError(
            f"the prompt {name} of NeMo-Skills is not here",
            fix="pip install --no-deps sgl-eval, or give --prompt FILE with {problem} where the problem goes",
        )
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else {"user": text.rstrip("\n")}
        template = found["user"]
        made = Prompt(name if file is None else path.name, template)
        if "\0" not in made.filled("\0"):
            raise ValueError("no {problem}")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, yaml.YAMLError):
        raise InputError(
            "is no template with {problem} in it", where=str(path), fix="double every other brace: {{ and }}"
        ) from None
    return made
