"""The audit of a Llama checkpoint against logits of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.test_llama import CONFIGS, save
from truecast.audit.audit import audit
from truecast.audit.options import Options
from truecast.audit.positions import load_positions
from truecast.checkpoint.source import open_checkpoint
from truecast.models.tokenizer_hash import tokenizer_files, tokenizer_sha256


@pytest.mark.parametrize("name", ["grouped", "own-head"])
def test_same_kl_as_transformers(tmp_path: Path, name: str) -> None:
    reference, candidate = (save(tmp_path / side, CONFIGS[name]) for side in ("ref", "cand"))
    with torch.no_grad():
        for name, parameter in candidate.named_parameters():
            if name.endswith("down_proj.weight"):
                parameter.mul_(1.1)
    candidate.save_pretrained(tmp_path / "cand")
    documents = [torch.randint(97, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (3, 40, 17)]
    sha = tokenizer_sha256(tokenizer_files(open_checkpoint(tmp_path / "ref")))
    lines = [{"schema": "truecast.corpus/1", "tokenizer_sha256": sha}]
    lines += [{"id": str(i), "tokens": tokens} for i, tokens in enumerate(documents)]  # type: ignore[dict-item]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = Options(device="cpu", dtype=torch.float64, seeds=())
    document = audit(str(tmp_path / "ref"), str(tmp_path / "cand"), tmp_path / "docs.jsonl", tmp_path / "out", options)
    wanted: list[float] = []
    for tokens in documents:
        with torch.no_grad():
            p, q = (
                model.double()(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
                for model in (reference, candidate)
            )
        wanted += (p.exp() * (p - q)).sum(-1).tolist()
    assert min(wanted) > 1e-5
    np.testing.assert_allclose(load_positions(tmp_path / "out" / "positions").kl, wanted, rtol=2e-3)
    assert document["kl"]["mean"] == pytest.approx(np.mean(wanted), rel=1e-3)
