"""The same tokens through the server and through truecast's own model of the checkpoint: the same log-probabilities?"""

from __future__ import annotations

import math
from typing import Any

from truecast.errors import InputError
from truecast.models.generate import Session
from truecast.models.open import open_model
from truecast.models.sampling import scored
from truecast.models.text import tokenizer_of
from truecast.serve.smoke.finding import Finding, failed, passed, skipped, warned
from truecast.serve.smoke.http import Refused, Server, ServerFault

SAMPLE = """The river had risen in the night, and by morning the lower field was under water. Anna counted the sheep
from the wall: 17 on the hill, 23 by the gate, 40 in all. "None is lost," she said, and wrote the number down.

def area(width: float, height: float) -> float:
    return width * height

A list of what we need: 3 ropes, 12 nails, a lamp. If x = 5 and y = 2 * x, then x + y = 15. The train leaves at 08:45
from platform 6 and arrives before noon. Water boils at 100 degrees, ice melts at 0.
"""
TOLERANCE = 0.04
"""Mean distance of log-probabilities, nats. Measured for nano-K3 in SGLang 0.5.17 (docs/benchmarks.md): MXFP4, NVFP4,
BF16 and FP8 KV cache 0.012 to 0.013, W4AFP8 0.021; with a wrong activation 0.055, with scales misread 0.9."""


class Reference:
    """The checkpoint's own log-probabilities of :data:`SAMPLE`. Raises: InputError where it cannot be read."""

    def __init__(self, location: str) -> None:
        model = open_model(location)
        self.tokens = tokenizer_of(model.checkpoint).encode(SAMPLE)
        rows = Session(model).logits_all(self.tokens)
        self.values = [scored(rows[i], token, 0).logprob for i, token in enumerate(self.tokens[1:])]
        self.vocabulary = int(rows.shape[1])


def compare(server: Server, reference: Reference) -> Finding:
    """Score the sample on the server and compare. Raises: ServerFault."""
    name = "reference"
    try:
        given = _by_sglang(server, reference.tokens) if server.sglang else _by_echo(server, reference.tokens)
    except Refused as error:
        if error.status >= 500:
            raise
        return skipped(name, f"the server scores no prompt: {error}")
    if len(given) != len(reference.values) or not all(isinstance(v, int | float) for v in given):
        return skipped(name, f"the server gives {len(given)} log-probabilities for {len(reference.values)} tokens")
    far = [abs(a - b) for a, b in zip(given, reference.values, strict=True)]
    mean, worst = math.fsum(far) / len(far), max(far)
    seen = f"{len(far)} tokens: mean distance {mean:.4f} nats, largest {worst:.3f}; tolerance of the mean {TOLERANCE}"
    if not mean <= TOLERANCE:  # NaN too
        return failed(
            name, seen,
            "the server does not run this checkpoint as it is: another checkpoint, an activation or scales its kernels"
            " misread, a quantization on top. truecast doctor names the known ones",
        )  # fmt: skip
    if mean > TOLERANCE / 2:
        return warned(name, seen, "more than 4-bit kernels and BF16 give: right for FP8 activations, look at others")
    return passed(name, seen)


def _by_echo(server: Server, tokens: list[int]) -> list[Any]:
    body = {"model": server.model, "prompt": tokens, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    document = server.post("/completions", body).document()
    try:
        return list(document["choices"][0]["logprobs"]["token_logprobs"][1 : len(tokens)])
    except (KeyError, IndexError, TypeError):
        raise ServerFault("completions give no log-probabilities of an echoed prompt") from None


def _by_sglang(server: Server, tokens: list[int]) -> list[Any]:
    sampling = {"temperature": 0, "max_new_tokens": 1}
    body = {"input_ids": tokens, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
    document = server.post(f"{server.root}/generate", body).document()
    try:
        entries = document["meta_info"]["input_token_logprobs"]
        if [entry[1] for entry in entries] != tokens:
            raise ServerFault("scored other tokens than were sent")
        return [entry[0] for entry in entries[1:]]
    except (KeyError, IndexError, TypeError):
        raise ServerFault("/generate gives no log-probabilities of its input") from None


def check_fits(server: Server, reference: Reference, where: str) -> None:
    """Raises: InputError where the server's context has no room for the sample."""
    if server.context is not None and server.context <= len(reference.tokens):
        raise InputError(
            f"needs {len(reference.tokens)} tokens of context, the server has {server.context}", where=where
        )
