"""Asking a server for the log-probabilities of a document's tokens: teacher forcing over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from truecast.audit.completions_client import MAX_LIST_BYTES, TIMEOUT_S, ask
from truecast.audit.corpus import Document
from truecast.audit.served_answers import Answer, from_completion, from_generate
from truecast.errors import InputError

PROBE = "The quick brown fox — 3.14159, naïve café;\n\tdef f(x): return x**2  # 你好, мир"
"""A text that two tokenizers are unlikely to cut alike."""
PROBE_TIMEOUT_S = 60.0
ANSWER_BYTES_OF_ENTRY = 256
"""More than JSON takes for one log-probability with its id, rank and text."""

_OF_A_START = ("port", "host", "seed", "addr", "url", "log", "watchdog", "time", "file")
"""Parts of names of arguments that differ from start to start and leave the figures as they are."""
_SECRET = ("key", "password", "secret")
"""Parts of names of arguments that go into no document."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask, and what the server says of itself.

    ``base``: address with OpenAI's paths; ``root``: without ``/v1``. ``engine``: ``sglang``, ``vllm`` or ``unknown``.
    ``context``: tokens of prompt and answer together, None where it does not say. ``arguments``: as it resolved them.
    """

    base: str
    root: str
    engine: str
    model: str
    version: str | None = None
    context: int | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    key: str = ""

    def document(self) -> dict[str, Any]:
        """As an audit's document tells it; ``location`` is its address."""
        return {
            "location": self.root,
            "engine": self.engine,
            "version": self.version,
            "model": self.model,
            "context": self.context,
            "arguments": {k: v for k, v in self.arguments.items() if not _parts(k) & set(_SECRET)},
        }

    @property
    def identity(self) -> str:
        """What must not change while it is asked; addresses, seeds and the like may."""
        aside = {*_OF_A_START, *_SECRET}
        told = " ".join(f"{name}={value}" for name, value in sorted(self.arguments.items()) if not _parts(name) & aside)
        return f"{self.engine} {self.version} {self.model} {told}"


def score_document(server: Server, document: Document, top: int) -> Answer:
    """Log-probabilities at the scored positions of ``document``. Raises: InputError naming server and document.

    One token is generated, which the engines ask for at least; it is not looked at. No part of the prompt is taken from a
    cache: SGLang reuses none after ``logprob_start_len``, vLLM none with ``prompt_logprobs``.
    """
    tokens = document.tokens.tolist()
    most = MAX_LIST_BYTES + ANSWER_BYTES_OF_ENTRY * len(tokens) * (top + 3)
    if server.engine == "sglang":
        url = f"{server.root}/generate"
        sampling = {"temperature": 1.0, "max_new_tokens": 1}
        body: dict[str, Any] = {"input_ids": tokens, "sampling_params": sampling, "return_logprob": True}
        body |= {"logprob_start_len": 0, "top_logprobs_num": top}
        read = from_generate
    else:
        url = f"{server.base}/completions"
        body = {"model": server.model, "prompt": tokens, "max_tokens": 1, "prompt_logprobs": top}
        body |= {"return_token_ids": True}
        read = from_completion
    answer = ask(url, body, most, TIMEOUT_S, server.key)
    return read(answer, tokens, document.scored_from, top, f"{url}, document {document.id!r}")


def probe_tokens(server: Server) -> list[int] | None:
    """Ids that the server makes of :data:`PROBE`; None where it has no such path."""
    body = {"model": server.model, "prompt": PROBE, "add_special_tokens": False}
    try:
        answer = ask(f"{server.root}/tokenize", body, MAX_LIST_BYTES, PROBE_TIMEOUT_S, server.key)
    except InputError:
        return None
    found = answer.get("tokens") if isinstance(answer, dict) else None
    return found if isinstance(found, list) and all(type(t) is int for t in found) else None


def _parts(name: str) -> set[str]:
    return set(name.strip("-").split("-"))
