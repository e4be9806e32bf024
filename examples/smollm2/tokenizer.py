"""The tokenizer of SmolLM2 in the files transformers reads, rebuilt from what the GGUF file says of it.

Byte-level BPE: vocabulary and merges are in the metadata; that digits are split one by one before the byte-level split
is what llama.cpp calls the pre-tokenizer ``smollm``.

Source: huggingface/tokenizers, the JSON form of its components; ggml-org/llama.cpp, ``LLAMA_VOCAB_PRE_TYPE_SMOLLM``.
"""

from __future__ import annotations

import json
from typing import Any

from examples.smollm2.source import PACKAGE, Source
from truecast.errors import InputError

_CONTROL = 3  # token type of llama.cpp


def tokenizer_files(source: Source) -> dict[str, bytes]:
    """File name -> content: ``tokenizer.json`` and ``tokenizer_config.json``.

    Raises: InputError if the file describes another kind of tokenizer.
    """
    kind = source.field("tokenizer.ggml.model"), source.field("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise InputError(f"has the tokenizer {kind}, not ('gpt2', 'smollm')", where=PACKAGE)
    tokens: list[str] = source.field("tokenizer.ggml.tokens")
    types: list[int] = source.field("tokenizer.ggml.token_type")
    special = [index for index, kind_of in enumerate(types) if kind_of == _CONTROL]
    return {
        "tokenizer.json": _json(_tokenizer(tokens, source.field("tokenizer.ggml.merges"), special)),
        "tokenizer_config.json": _json(_config(source, tokens)),
    }


def _tokenizer(tokens: list[str], merges: list[str], special: list[int]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": tokens[index], **added} for index in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def _config(source: Source, tokens: list[str]) -> dict[str, Any]:
    def token(role: str) -> str:
        return tokens[int(source.field(f"tokenizer.ggml.{role}_token_id"))]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "model_max_length": source.field("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": source.field("tokenizer.chat_template"),
    }


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
