"""What two models and a corpus ask of memory and disk, from headers alone."""

from __future__ import annotations

import torch

from truecast.audit.corpus import Corpus
from truecast.audit.memory import Needs, bytes_of_token, loaded_bytes
from truecast.checkpoint.source import Checkpoint
from truecast.models.base import Decoder


def needs_of(ref: Decoder, cand: Decoder, corpus: Corpus, dtype: torch.dtype, device: torch.device) -> Needs:
    """For :func:`truecast.audit.memory.fit`."""
    pairs = [[*ref.layer_tensors(i), *cand.layer_tensors(i)] for i in range(ref.layers)]
    plain = [t for pair in pairs for t in pair if len(t.shape) == 2 and t.dtype in ("BF16", "F16", "F32")]
    widest = max([ref.hidden, *(t.shape[0] for t in plain)])
    largest = max(t.nbytes for pair in pairs for t in pair)
    on_host = device.type == "cpu"
    heads = [*ref.head_tensors(), *cand.head_tensors()]
    whole = [*heads, ref.embedding_tensor(), cand.embedding_tensor()]
    return Needs(
        layer=max(loaded_bytes(pair, dtype) for pair in pairs) if on_host else 0,
        reading=largest * 3,
        token=bytes_of_token(ref.hidden, widest, snapshots(ref.checkpoint), dtype),
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


def text_bytes(ref: Decoder, cand: Decoder) -> int:
    """Bytes of both sides' text models as stored: every tensor that an audit needs, once."""
    total = 0
    for model in (ref, cand):
        tensors = [t for i in range(model.layers) for t in model.layer_tensors(i)]
        tensors += [model.embedding_tensor(), *model.head_tensors()]
        total += sum(t.nbytes for t in {t.name: t for t in tensors}.values())
    return total
