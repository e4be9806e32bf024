"""A draft model as the user names it: a folder, or a repository that the servers will fetch."""

from __future__ import annotations

import re
from pathlib import Path

from truecast.checkpoint.source import open_checkpoint
from truecast.errors import UsageError
from truecast.serve.launch.case import Draft
from truecast.serve.launch.place import server_path
from truecast.serve.stored_model import StoredModel, stored_model

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def draft_of(model: StoredModel) -> Draft:
    """A draft model that was read. Raises: UsageError for a path that no script can hold."""
    return Draft(server_path(model.location), model.config, model.weights.total)


def read_draft(text: str) -> Draft:
    """Its config and size where it is a folder here. Raises: UsageError for what is neither folder nor repository."""
    if Path(text).is_dir():
        return draft_of(stored_model(open_checkpoint(text)))
    if not _REPOSITORY.fullmatch(text):
        raise UsageError("no such draft model", where=text, fix="name a folder, or a repository such as owner/name")
    return Draft(text)
