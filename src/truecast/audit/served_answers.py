"""What a server said of the tokens of a document, from the forms in which SGLang and vLLM say it.

SGLang, ``POST /generate`` with ``return_logprob``: ``meta_info.input_token_logprobs`` holds ``[logprob, id, text or null]``
of each token of the prompt, ``input_top_logprobs`` a list of such for each, null for the first token (managers/
tokenizer_manager.py of 0.5.17, 0.5.20 and 0.5.23: add_logprob_to_meta_info, detokenize_logprob_tokens).

vLLM, ``POST /v1/completions`` with ``prompt_logprobs``: ``prompt_logprobs`` of the choice maps ids to ``{"logprob", "rank",
"decoded_token"}`` for each token, null for the first; the token itself comes in addition where it is not among the
most probable (vllm/logprobs.py, entrypoints/openai/completion/protocol.py). A log-probability of minus infinity is
written as -9999 there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.errors import InputError

LEAST = -1000.0
"""A log-probability below stands for a probability of 0."""

ABOVE_ONE = 1e-3
"""How far above 0 rounding may take a log-probability."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of ``n`` scored positions: ``follows`` ``[n]``, log-probability of the token that follows; the ``k`` most probable
    tokens, ``ids`` and ``logprobs`` ``[n, k]``, in no order. Natural logarithms, float64."""

    follows: NDArray[np.float64]
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float64]


def from_generate(document: Any, tokens: Sequence[int], scored_from: int, top: int, where: str) -> Answer:
    """SGLang's answer. Raises: InputError naming ``where`` and the position for what is missing or no number."""
    meta = document.get("meta_info") if isinstance(document, Mapping) else None
    own = _list(meta, "input_token_logprobs", where)
    most = _list(meta, "input_top_logprobs", where)
    _check_tokens([_entry(e, where, i)[1] for i, e in enumerate(own)], tokens, where)
    if len(most) != len(tokens):
        raise InputError(f"input_top_logprobs has {len(most):,} entries for {len(tokens):,} tokens", where=where)
    found = _Rows(top, where)
    for position in range(scored_from, len(tokens) - 1):
        row = most[position + 1]
        if not isinstance(row, list):
            raise InputError("input_top_logprobs is missing", where=f"{where}, position {position}")
        best = [_entry(e, where, position) for e in row]
        found.add(position, _entry(own[position + 1], where, position)[0], {token: p for p, token in best})
    return found.answer()


def from_completion(document: Any, tokens: Sequence[int], scored_from: int, top: int, where: str) -> Answer:
    """vLLM's answer, and that of ``truecast serve-reference``. Raises: as :func:`from_generate`."""
    choices = document.get("choices") if isinstance(document, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    rows = _list(choice, "prompt_logprobs", where)
    if isinstance(choice, Mapping) and (read := choice.get("prompt_token_ids")) is not None:
        _check_tokens(read, tokens, where)
    if len(rows) != len(tokens):
        raise InputError(f"prompt_logprobs has {len(rows):,} entries for {len(tokens):,} tokens", where=where)
    found = _Rows(top, where)
    for position in range(scored_from, len(tokens) - 1):
        row, follows = rows[position + 1], tokens[position + 1]
        if not isinstance(row, Mapping):
            raise InputError("prompt_logprobs is missing", where=f"{where}, position {position}")
        each = {_token(t): e.get("logprob") if isinstance(e, Mapping) else None for t, e in row.items()}
        if follows not in each:
            raise InputError(f"leaves out token {follows}, which follows", where=f"{where}, position {position}")
        own = each[follows]
        if len(each) > top:
            del each[follows]  # given in addition
        found.add(position, own, each)
    return found.answer()


class _Rows:
    """Collects positions, and checks each number."""

    def __init__(self, top: int, where: str) -> None:
        self._top, self._where = top, where
        self._follows: list[float] = []
        self._ids: list[list[int]] = []
        self._logprobs: list[list[float]] = []

    def add(self, position: int, follows: Any, best: Mapping[int, Any]) -> None:
        where = f"{self._where}, position {position}"
        if len(best) != self._top:
            raise InputError(
                f"gives {len(best):,} of the {self._top:,} most probable tokens",
                where=where,
                fix="a smaller --top, or a server that gives as many",
            )
        self._follows.append(_number(follows, where))
        self._ids.append(list(best))
        self._logprobs.append([_number(p, where) for p in best.values()])

    def answer(self) -> Answer:
        ids = np.array(self._ids, dtype=np.int32).reshape(-1, self._top)
        return Answer(np.array(self._follows), ids, np.array(self._logprobs).reshape(-1, self._top))


def _list(holder: Any, name: str, where: str) -> list[Any]:
    found = holder.get(name) if isinstance(holder, Mapping) else None
    if not isinstance(found, list) or not found:
        raise InputError(
            f"answers without {name}", where=where, fix="does this server give log-probabilities of a prompt?"
        )
    return found


def _check_tokens(read: Any, sent: Sequence[int], where: str) -> None:
    if read != list(sent):
        length = f" ({len(read):,} tokens of {len(sent):,})" if isinstance(read, list) else ""
        raise InputError(
            f"scored other tokens than were sent{length}", where=where, fix="does it cut prompts off, or add to them?"
        )


def _entry(entry: Any, where: str, position: int) -> tuple[Any, int]:
    if not isinstance(entry, list | tuple) or len(entry) < 2 or type(entry[1]) is not int:
        raise InputError("gives no pair of log-probability and token id", where=f"{where}, position {position}")
    return entry[0], entry[1]


def _token(name: Any) -> int:
    return int(name) if isinstance(name, str) and name.isascii() and name.isdecimal() and len(name) < 10 else -1


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value > ABOVE_ONE:
        said = "null" if value is None else repr(value)[:40]
        raise InputError(f"gives a log-probability of {said}", where=where, fix="its weights or kernels give NaN?")
    if value < LEAST:
        raise InputError("gives a token a probability of 0: the divergence has no bound", where=where)
    return min(float(value), 0.0)
