"""Which checkpoint is served, under which name, and whether its own code may run."""

from __future__ import annotations

import re

from truecast.serve.launch.case import Case
from truecast.serve.launch.place import server_path
from truecast.serve.launch.setting import Setting
from truecast.serve.stored_model import StoredModel

_RELEASED = (93, 896)
"""Layers and experts of the released Kimi-K3, which clients ask for by its name on the Hub."""


def path_settings(model: StoredModel) -> list[Setting]:
    """``--model-path``. Raises: UsageError for a path that no script can hold."""
    place = server_path(model.location)
    if not model.location.startswith("hf://"):
        return [Setting("--model-path", place, "the checkpoint, in the same place on every node")]
    repository, _, revision = place.partition("@")
    found = [Setting("--model-path", repository, "the repository on the Hub")]
    return [*found, Setting("--revision", revision, "as named with the repository")] if revision else found


def fault_notes(model: StoredModel) -> list[str]:
    """A place that SGLang may not read; packed tensors and scales that fit no layout."""
    if "://" in model.location and not model.location.startswith("hf://"):
        return [
            f"{model.location}: whether SGLang reads this URL by itself is not known here; a folder on every node is sure"
        ]
    if not model.problems:
        return []
    return [f"the checkpoint has {len(model.problems)} faults, the first: {model.problems[0]}; see truecast check"]


def name_settings(case: Case) -> list[Setting]:
    """``--served-model-name``: what clients ask for."""
    if case.is_k3 and (case.model.layers, case.model.experts) == _RELEASED:
        return [Setting("--served-model-name", "moonshotai/Kimi-K3", "the model's own name, whatever its format")]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", server_path(case.model.location).rpartition("/")[2]).strip("-.") or "model"
    return [Setting("--served-model-name", name, "the checkpoint's name, without its path")]


def remote_code_settings(trusted: bool) -> list[Setting]:
    """``--trust-remote-code``, if the user said so."""
    return [Setting("--trust-remote-code", None, "as asked for")] if trusted else []


def remote_code_notes(model: StoredModel, trusted: bool) -> list[str]:
    """Which Python files the checkpoint wants run, and what becomes of them."""
    if not model.remote_code:
        return []
    named = ", ".join(model.remote_code)
    if trusted:
        return [
            f"--trust-remote-code lets SGLang run the checkpoint's own Python on every node: {named}. Read it first"
        ]
    return [
        f"the checkpoint names Python files that could be run: {named}. They are not, unless you say --trust-remote-code;"
        " SGLang may refuse tokenizer or processor without"
    ]
