"""The published nano-K3: what is in the repository computes, answers and measures what its pages say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tiktoken")

from examples.nano_k3.demo import DIALOGUES, DOCUMENTS, SOURCE  # noqa: E402
from examples.nano_k3.judge import ask_server, score  # noqa: E402
from tests.models.reference_k3 import Reference, read_tensors  # noqa: E402
from tests.process import Process  # noqa: E402
from truecast.audit.corpus import read_corpus  # noqa: E402
from truecast.checkpoint.source import open_checkpoint  # noqa: E402
from truecast.models import open_model  # noqa: E402
from truecast.models.generate import logits  # noqa: E402
from truecast.models.tokenizer_hash import tokenizer_files, tokenizer_sha256  # noqa: E402


def test_it_fits_the_repository() -> None:
    sizes = [path.stat().st_size for path in SOURCE.glob("*.safetensors")]
    assert len(sizes) <= 5
    assert max(sizes) <= 15 << 20
    assert sum(path.stat().st_size for path in SOURCE.iterdir()) <= 60e6


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_logits_are_those_of_the_independent_float64_version(dtype: torch.dtype, within: float) -> None:
    tokens = read_corpus(DOCUMENTS, 2048, 1).documents[0].tokens[:40]
    text = json.loads((SOURCE / "config.json").read_bytes())["text_config"]
    wanted = Reference(read_tensors(SOURCE), text).logits([int(t) for t in tokens])
    got = logits(open_model(SOURCE, dtype=dtype), torch.from_numpy(tokens).long()).double().numpy()
    assert np.abs(got - wanted).max() < within * np.sqrt(np.mean(wanted**2))


def test_the_corpus_is_of_its_tokenizer() -> None:
    corpus = read_corpus(DOCUMENTS, 2048, None)
    assert corpus.tokenizer_sha256 == tokenizer_sha256(tokenizer_files(open_checkpoint(SOURCE)))
    assert len(corpus.documents) == len({d.id for d in corpus.documents}) == 111


def test_it_answers_held_out_dialogues_through_the_server(
    command: Callable[..., list[str]], environment: dict[str, str]
) -> None:
    items = [json.loads(line) for line in Path(DIALOGUES).read_text().splitlines()][::64]
    assert len({item["id"].split("-")[0] for item in items}) > 2
    arguments = command("serve-reference", SOURCE, "--port", 0, "--device", "cpu", "--json")
    with Process(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        result = score(items, map(ask_server(ready["url"]), items))
        process.terminate()
    assert result["faults"] == []
    assert result["right"]["all"] == 1
