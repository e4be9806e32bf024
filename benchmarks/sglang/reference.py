"""What truecast's own model says to the same prompts, in float32.

``python -m benchmarks.sglang.reference WORK NAME [cuda]``: reads WORK/prompts.json, writes WORK/reference-NAME.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.sglang.client import Prompts, Scores
from truecast.audit import rounding
from truecast.audit.activations import Emulation, emulation
from truecast.layouts.recognise import recognise
from truecast.models.base import Decoder
from truecast.models.generate import Resident
from truecast.models.open import open_model
from truecast.models.rows import Rows
from truecast.models.taps import Taps

KINDS = {
    "mxfp4": ("mxfp4", "none", "none"),
    "fp8-kv": ("mxfp4", "none", "fp8"),
    "w4afp8": ("w4afp8", "fp8-tensor", "none"),
    "w4afp8-fp8-attention": ("w4afp8-fp8-attention", "fp8-tensor", "none"),
}
"""Reference -> checkpoint, and what an engine rounds besides: activations, KV cache."""
GROUP = 128
"""Columns of an FP8 weight block, and elements of a token that SGLang rounds under one scale before such a matrix."""


class Blocks:
    """An emulation in which what enters matrices without a static scale, FP8 blocks here, is rounded in groups.

    Source: SGLang 0.5.17, layers/quantization/fp8_utils.py, ``triton_w8a8_block_fp8_linear``: E4M3, each token's groups of
    128 elements under their largest magnitude / 448.
    """

    def __init__(self, engine: Emulation) -> None:
        self.engine = engine

    def input(self, module: str, x: Tensor, scale: Tensor | None) -> Tensor:
        """See :class:`truecast.models.taps.Taps`."""
        if module in self.engine.scales:
            return self.engine.input(module, x, scale)
        return rounding.fp8_token(x.reshape(-1, GROUP)).reshape(x.shape).to(x.dtype)

    def kv(self, layer: int, x: Tensor) -> Tensor:
        """See :class:`truecast.models.taps.Taps`."""
        return self.engine.kv(layer, x)


def of(location: str, activations: str, kv: str, prompts: Prompts, device: str = "cpu") -> Scores:
    """Score the prompts; greedy answers only where nothing is rounded besides."""
    model = open_model(location, device, torch.float32)
    matrices = recognise(model.checkpoint.tensors).matrices.values()
    engine = emulation(activations, kv, model.checkpoint, matrices)
    taps: Taps = Blocks(engine) if activations == "fp8-tensor" else engine
    scores, start = Scores(), time.time()
    documents = [*prompts.scored, *prompts.full]
    rows = _distributions(model, documents, taps, device)
    for tokens, row in zip(prompts.scored, rows, strict=False):
        scores.scored.append(row.gather(1, torch.tensor(tokens[1:], device=device)[:, None])[:, 0].tolist())
    scores.full = [row.tolist() for row in rows[len(prompts.scored) :]]
    if engine.plain:
        resident = Resident(model)
        for tokens in prompts.asked:
            session, answer, new = resident.session(), list[int](), list(tokens)
            for _ in range(prompts.new):
                new = [int(session.extend(new).argmax())]
                answer += new
            scores.answers.append(answer)
    scores.first_seconds = time.time() - start
    return scores


@torch.no_grad()
def _distributions(model: Decoder, documents: Sequence[Sequence[int]], taps: Taps, device: str) -> list[torch.Tensor]:
    """``[T - 1, V]`` log-probabilities for each document; one pass over the layers for all of them."""
    lengths = tuple(map(len, documents))
    hidden = model.embed(torch.tensor([token for tokens in documents for token in tokens], device=device))
    for i in range(model.layers):
        hidden = model.load_layer(i)(hidden, Rows(lengths), taps)
    head = model.load_head()
    whole = functional.linear(head.final(hidden), head.weight.to(hidden.stream.dtype))
    return [torch.log_softmax(part[:-1].double(), -1) for part in whole.split(lengths)]


def main() -> None:
    """For one reference of :data:`KINDS`."""
    work, name = Path(sys.argv[1]), sys.argv[2]
    document = json.loads((work / "prompts.json").read_text())
    checkpoint, activations, kv = KINDS[name]
    prompts = Prompts(**document["prompts"])
    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    scores = of(document["checkpoints"][checkpoint], activations, kv, prompts, device)
    (work / f"reference-{name}.json").write_text(json.dumps(scores.document()))
    print(f"reference {name}: {scores.first_seconds:.1f} s on {device}", flush=True)


if __name__ == "__main__":
    main()
