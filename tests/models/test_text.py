from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.k3_vocabulary import VOCABULARY
from tests.models.tiny_k3 import make_tiny_k3
from truecast.checkpoint.source import open_checkpoint
from truecast.errors import InputError
from truecast.models.kimi_k3.tokenizer import K3Tokenizer
from truecast.models.text import context_length, stop_ids, tokenizer_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_k3(tmp_path_factory.mktemp("text") / "tiny")


def test_kimi_k3s_tokenizer_and_its_end_of_a_message(folder: Path) -> None:
    tokenizer = tokenizer_of(open_checkpoint(folder))
    assert isinstance(tokenizer, K3Tokenizer)
    assert tokenizer.vocab == VOCABULARY
    end = tokenizer.special("<|end_of_msg|>")
    assert stop_ids({"eos_token_id": 7, "text_config": {"eos_token_id": [8, True, "9"]}}, tokenizer) == {end, 7, 8}
    assert stop_ids({}, tokenizer) == {end}


def test_a_checkpoint_without_one(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    checkpoint.auxiliary = {}
    with pytest.raises(InputError, match=r"neither tiktoken\.model nor tokenizer\.json"):
        tokenizer_of(checkpoint)


def test_context_length() -> None:
    nested: dict[str, Any] = {"max_position_embeddings": 5, "text_config": {"max_position_embeddings": 9}}
    assert context_length(nested, "x") == 9
    assert context_length({"max_position_embeddings": 5, "text_config": None}, "x") == 5
    for bad in ({}, {"max_position_embeddings": "5"}, {"max_position_embeddings": 0}):
        with pytest.raises(InputError, match="max_position_embeddings"):
            context_length(bad, "x")
