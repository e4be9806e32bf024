"""The audit on a GPU, where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models import k3_checkpoint
from truecast.audit.audit import audit
from truecast.audit.options import Options
from truecast.audit.positions import load_positions
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert
from truecast.models.tokenizer_hash import tokenizer_files, tokenizer_sha256

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_a_gpu_gives_the_figures_of_the_cpu(tmp_path: Path) -> None:
    source = k3_checkpoint.make(tmp_path / "k3")
    for target in ("nvfp4", "w4afp8"):
        convert(source, tmp_path / target, Target(target))
    sha = tokenizer_sha256(tokenizer_files(open_checkpoint(source)))
    lines: list[object] = [{"schema": "truecast.corpus/1", "tokenizer_sha256": sha}]
    rng = np.random.default_rng(0)
    lines += [{"id": str(i), "tokens": rng.integers(0, 320, 40 + i).tolist()} for i in range(8)]
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for device in ("cpu", "cuda"):
        options = Options(device=device, dtype=torch.float64)
        audit(str(source), str(tmp_path / "w4afp8"), corpus, tmp_path / device, options)
    cpu, cuda = (load_positions(tmp_path / device / "positions") for device in ("cpu", "cuda"))
    np.testing.assert_allclose(cuda.kl, cpu.kl, rtol=1e-7, atol=1e-12)
    for dtype in (torch.float32, torch.bfloat16):
        options = Options(device="cuda", dtype=dtype, force=True)
        document = audit(str(source), str(tmp_path / "nvfp4"), corpus, tmp_path / str(dtype), options)
        assert document["kl"]["mean"] == 0
        assert document["floor"]["mean"] > 0
