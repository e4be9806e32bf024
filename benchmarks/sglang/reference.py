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

from benchmarks.sglang.client import Prompts, Scores
from truecast.audit.activations import emulation
from truecast.layouts.recognise import recognise
from truecast.models.generate import Resident, logits
from truecast.models.open import open_model

KINDS = {
    "mxfp4": ("mxfp4", "none", "none"),
    "fp8-kv": ("mxfp4", "none", "fp8"),
    "w4afp8": ("w4afp8", "fp8-tensor", "none"),
    "w4afp8-fp8-attention": ("w4afp8-fp8-attention", "fp8-tensor", "none"),
}
"""Reference -> checkpoint, and what an engine rounds besides: activations, KV cache."""


def of(location: str, activations: str, kv: str, prompts: Prompts, device: str = "cpu") -> Scores:
    """Score the prompts; greedy answers only where nothing is rounded besides."""
    model = open_model(location, device, torch.float32)
    matrices = recognise(model.checkpoint.tensors).matrices.values()
    taps = emulation(activations, kv, model.checkpoint, matrices)
    scores, start = Scores(), time.time()

    def rows(tokens: Sequence[int]) -> torch.Tensor:
        return torch.log_softmax(logits(model, torch.tensor(tokens, device=device), taps)[:-1].double(), -1)

    for tokens in prompts.scored:
        at = torch.tensor(tokens[1:], device=device)
        scores.scored.append(rows(tokens).gather(1, at[:, None])[:, 0].tolist())
    scores.full = [rows(tokens).tolist() for tokens in prompts.full]
    if taps.plain:
        resident = Resident(model)
        for tokens in prompts.asked:
            session, answer, new = resident.session(), list[int](), list(tokens)
            for _ in range(prompts.new):
                new = [int(session.extend(new).argmax())]
                answer += new
            scores.answers.append(answer)
    scores.first_seconds = time.time() - start
    return scores


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
