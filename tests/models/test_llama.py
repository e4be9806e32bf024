"""The Llama reference model against transformers, whose code it shares nothing with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from truecast.errors import InputError
from truecast.models import open_model
from truecast.models.generate import Resident, logits

LLAMA3 = {  # under theta 500,000 the four pairs of 8 channels turn 81, 3.1, 0.1 and 0.004 times in 512 tokens
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "grouped": {**SMALL, "tie_word_embeddings": True},
    "own-head": {**SMALL, "num_key_value_heads": 6, "rope_theta": 1e6, "head_dim": 16},
    "llama3": {**SMALL, "rope_scaling": {**LLAMA3}, "rope_theta": 500000.0},
    "smollm2": {
        **SMALL,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
}


def save(folder: Path, settings: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """A random model of transformers, saved, with its norms away from one. Returns it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(initializer_range=0.2, **settings)).eval().to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_same_logits_as_transformers(tmp_path: Path, name: str) -> None:
    peer = save(tmp_path, CONFIGS[name]).double()
    tokens = torch.randint(97, (150,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = peer(tokens[None]).logits[0]
    assert wanted.std() > 0.3
    ours = logits(open_model(tmp_path, dtype=torch.float64), tokens)
    # the peer keeps its angles and the statistics of its norms in float32
    torch.testing.assert_close(ours, wanted, rtol=0, atol=2e-4 * float(wanted.std()))
    single = logits(open_model(tmp_path), tokens)
    torch.testing.assert_close(single, ours.float(), rtol=0, atol=1e-4 * float(wanted.std()))


def test_a_config_as_older_versions_write_it(tmp_path: Path) -> None:
    save(tmp_path, CONFIGS["llama3"])
    config = json.loads((tmp_path / "config.json").read_text())
    tokens = torch.arange(60)
    wanted = logits(open_model(tmp_path), tokens)
    del config["rope_parameters"]
    config |= {"rope_theta": 500000.0, "rope_scaling": LLAMA3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits(open_model(tmp_path), tokens), wanted)


def test_steps_with_a_cache_are_the_whole(tmp_path: Path) -> None:
    save(tmp_path, CONFIGS["grouped"])
    model, tokens = open_model(tmp_path, dtype=torch.float64), torch.arange(40)
    wanted, session = logits(model, tokens), Resident(model).session()
    parts = [session.logits_all(range(7)), session.extend([7])[None], session.logits_all(range(8, 40))]
    torch.testing.assert_close(torch.cat(parts), wanted, rtol=0, atol=1e-12)
    assert session.length == 40


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"sliding_window": 64}, "sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"num_key_value_heads": 4}, "key-value heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"head_dim": 1 << 40}, "head_dim"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}}, "rope_theta"),
        ({"rope_parameters": {**LLAMA3, "factor": 0}}, "factor"),
        ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"intermediate_size": 81}, "81 x 48|81, 48"),
        ({"model_type": "gpt2"}, "gpt2"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    save(tmp_path, CONFIGS["grouped"])
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=word):
        open_model(tmp_path).load_layer(0)


@pytest.mark.parametrize("tokens", [[97], [-1], []])
def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path, tokens: list[int]) -> None:
    save(tmp_path, CONFIGS["grouped"])
    with pytest.raises(InputError, match=r"vocabulary of 97|no tokens"):
        logits(open_model(tmp_path), torch.tensor(tokens, dtype=torch.int64))
