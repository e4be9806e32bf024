"""What models and a corpus ask of memory and disk, from headers alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from truecast.audit.corpus import Corpus
from truecast.audit.memory import Needs, bytes_of_token, loaded_bytes
from truecast.checkpoint.source import Checkpoint
from truecast.models.base import Decoder


def needs_of(models: Sequence[Decoder], corpus: Corpus, dtype: torch.dtype, device: torch.device) -> Needs:
    """For :func:`truecast.audit.memory.fit`; ``models`` are those that move together."""
    first = models[0]
    pairs = [[t for model in models for t in model.layer_tensors(i)] for i in range(first.layers)]
    plain = [t for pair in pairs for t in pair if len(t.shape) == 2 and t.dtype in ("BF16", "F16", "F32")]
    widest = max([first.hidden, *(t.shape[0] for t in plain)])
    largest = max(t.nbytes for pair in pairs for t in pair)
    on_host = device.type == "cpu"
    heads = [t for model in models for t in model.head_tensors()]
    whole = [*heads, *(model.embedding_tensor() for model in models)]
    return Needs(
        layer=max(loaded_bytes(pair, dtype) for pair in pairs) if on_host else 0,
        reading=largest * 3,
        token=bytes_of_token(first.hidden, widest, snapshots(first.checkpoint), dtype),
        head=loaded_bytes(heads, dtype) if on_host else max(t.nbytes for t in whole),
        longest=max(len(d.tokens) for d in corpus.documents),
        tokens=corpus.tokens,
        on_device=0 if on_host else max(loaded_bytes(pair, dtype) for pair in pairs),
    )


def snapshots(checkpoint: Checkpoint) -> int:
    """How many block residuals the model keeps by the end: none without AttnRes."""
    text = checkpoint.config.get("text_config", checkpoint.config)
    size, layers = text.get("attn_res_block_size"), text.get("num_hidden_layers")
    return -(-layers // size) if isinstance(size, int) and isinstance(layers, int) and size > 0 else 0


def text_bytes(models: Sequence[Decoder]) -> int:
    """Bytes of the text models as stored: every tensor that an audit needs, once."""
    total = 0
    for model in models:
        tensors = [t for i in range(model.layers) for t in model.layer_tensors(i)]
        tensors += [model.embedding_tensor(), *model.head_tensors()]
        total += sum(t.nbytes for t in {t.name: t for t in tensors}.values())
    return total
