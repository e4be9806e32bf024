"""Loss on held-out documents, and greedy answers to held-out dialogue items, many at once."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from examples.nano_k3 import dialogue, judge
from examples.nano_k3.data import U16
from examples.nano_k3.model import Model
from truecast.models.kimi_k3.tokenizer import K3Tokenizer
from truecast.models.rows import Rows

STEP = 64
"""Lengths of batches are rounded up to multiples of this."""


def _padded(rows: list[list[int]], device: torch.device) -> tuple[torch.Tensor, Rows]:
    """Rows side by side, zeros on the right, which cannot reach back. Shape: ``[B T]``."""
    length = -(-max(map(len, rows)) // STEP) * STEP
    return torch.tensor([row + [0] * (length - len(row)) for row in rows], device=device).flatten(), Rows(
        (length,) * len(rows)
    )


@torch.no_grad()
def documents_loss(model: Model, pieces: list[U16], budget: int) -> dict[str, float]:
    """Mean negative log-likelihood over all predictions, in nats a token. ``budget``: tokens of a batch."""
    device = model.load.device
    ordered = sorted(([int(t) for t in piece] for piece in pieces), key=len)
    total, count = 0.0, 0
    while ordered:
        some = ordered[-max(1, budget // len(ordered[-1])) :]
        del ordered[-len(some) :]
        ids, rows = _padded(some, device)
        scores = model.logits(ids, rows).reshape(len(some), -1, model.config.vocab)
        for row, logits in zip(some, scores, strict=True):
            target = torch.tensor(row[1:], device=device)
            total += functional.cross_entropy(logits[: len(row) - 1].float(), target, reduction="sum").item()
            count += len(row) - 1
    return {"nats_per_token": total / count, "tokens": count}


@torch.no_grad()
def answers(
    model: Model, tokenizer: K3Tokenizer, items: list[dict[str, Any]], limit: int = judge.LIMIT
) -> list[list[int]]:
    """What the model says to each item: ids up to the end of the message, or ``limit`` of them."""
    device, stop = model.load.device, tokenizer.special("<|end_of_msg|>")
    texts = [dialogue.prompt(tokenizer, item) for item in items]
    said: list[list[int]] = [[] for _ in items]
    open_items = list(range(len(items)))
    for _ in range(limit):
        if not open_items:
            break
        lines = [texts[i] + said[i] for i in open_items]
        ids, rows = _padded(lines, device)
        hidden, head = model.hidden(ids, rows)
        last = torch.tensor([n * rows.lengths[0] + len(line) - 1 for n, line in enumerate(lines)], device=device)
        chosen = functional.linear(hidden[last], head).argmax(-1).tolist()
        for i, token in zip(open_items, chosen, strict=True):
            said[i].append(token)
        open_items = [i for i in open_items if said[i][-1] != stop]
    return said


def dialogues_score(model: Model, tokenizer: K3Tokenizer, items: list[dict[str, Any]], batch: int) -> dict[str, Any]:
    """See :func:`examples.nano_k3.judge.score`. Items of similar length are answered together."""
    order = sorted(range(len(items)), key=lambda i: len(dialogue.prompt(tokenizer, items[i])))
    found: dict[int, judge.Answer] = {}
    for start in range(0, len(order), batch):
        some = order[start : start + batch]
        for i, ids in zip(some, answers(model, tokenizer, [items[i] for i in some]), strict=True):
            found[i] = judge.parse(tokenizer, ids, items[i]["thinking"])
    return judge.score(items, [found[i] for i in range(len(items))])
