"""Where a corpus's text comes from, and whether servers and checkpoint have one tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from truecast.audit.corpus import Corpus
from truecast.audit.served_client import PROBE, Server, probe_tokens
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.models.text import tokenizer_of


def origin(corpus: Corpus, checkpoint: Mapping[str, str] | None = None, server: str | None = None) -> dict[str, Any]:
    """Was the text drawn from the reference? By what `truecast corpus` wrote into the file.

    ``checkpoint``: fingerprint and weights of the reference; or ``server``: the name of the model of its server.
    Keys: ``from_reference`` (None: not known), ``how`` (a sentence).
    """
    source = corpus.source if isinstance(corpus.source, Mapping) else {}
    if "temperature" not in source:
        return _told(None, "the corpus does not say where its text comes from")
    if source["temperature"] != 1:
        return _told(False, f"its text was drawn at temperature {source['temperature']!s:.20}, not 1")
    made_by = source.get("server")
    through = "" if made_by is None else f" through the server of {made_by!s:.100}"
    if checkpoint is not None:
        same = (source.get("checkpoint"), source.get("weights")) == (checkpoint["fingerprint"], checkpoint["weights"])
        if same:
            return _told(True, f"its text was drawn from the reference{through}, at temperature 1")
        return _told(False, "its text was drawn from another checkpoint than the reference")
    if made_by is None:
        return _told(None, "its text was drawn from a checkpoint, and whether the server has the same is not known")
    if made_by == server:
        return _told(
            True, f"its text was drawn at temperature 1 from a server whose model is called {made_by!s:.100} too"
        )
    return _told(False, f"its text was drawn from a server of another name: {made_by!s:.100}")


def check_probe(servers: Mapping[str, Server], checkpoint: Checkpoint | None) -> str:
    """Let all cut one text into tokens. Returns what was found, in words.

    Raises: InputError where a server cuts it otherwise than the checkpoint, or than the other server.
    """
    found = {side: tokens for side, server in servers.items() if (tokens := probe_tokens(server)) is not None}
    silent = [side for side in servers if side not in found]
    ours = None if checkpoint is None else tokenizer_of(checkpoint).encode(PROBE)
    if ours is None:
        ours = found.get("reference")
    for side, tokens in found.items():
        if ours is not None and tokens != ours:
            raise InputError(
                "cuts a text into other tokens than the reference",
                where=f"{servers[side].root}/tokenize",
                fix="does it serve the same model, with the same tokenizer?",
            )
    if silent or ours is None:
        return f"not checked: /tokenize is not answered by the {' and the '.join(silent)}"
    return "a text is cut into the same tokens by all"


def _told(from_reference: bool | None, how: str) -> dict[str, Any]:
    return {"from_reference": from_reference, "how": how}
