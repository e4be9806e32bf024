"""A small model with the interface of the reference models, on a checkpoint of its own; and what it should compute."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from truecast.checkpoint.header import TensorInfo, encode_header
from truecast.checkpoint.source import Checkpoint, open_checkpoint
from truecast.models.hidden import Hidden
from truecast.models.linear import Dense
from truecast.models.rows import Rows
from truecast.models.taps import PLAIN, Taps
from truecast.models.tokenizer_hash import tokenizer_files, tokenizer_sha256

VOCAB, WIDTH, LAYERS = 37, 16, 5


def mix(x: Tensor) -> Tensor:
    """Mean over the tokens so far. Shape: ``[..., T, width]``."""
    return x.cumsum(-2) / torch.arange(1, x.shape[-2] + 1, dtype=x.dtype)[:, None]


@dataclass(frozen=True)
class ToyLayer:
    """x + tanh(W (x + A mean(x))) + a tenth of every snapshot; the even ones take one."""

    index: int
    attention: Dense
    expert: Dense

    @property
    def nbytes(self) -> int:
        return self.attention.nbytes + self.expert.nbytes

    def __call__(self, hidden: Hidden, rows: Rows, taps: Taps = PLAIN, cache: object = None) -> Hidden:
        x, snapshots = hidden.stream, hidden.snapshots
        if self.index % 2 == 0:
            snapshots = (*snapshots, x)
        kept = taps.kv(self.index, x)
        inside = x + self.attention(rows.flat(mix(rows.pad(kept))), taps)
        inside = taps.input(f"model.layers.{self.index}.experts.0.w1", inside, None)
        return Hidden(x + torch.tanh(self.expert(inside, taps)) + 0.1 * sum(snapshots), snapshots)


@dataclass(frozen=True)
class ToyHead:
    weight: Tensor

    def final(self, hidden: Hidden) -> Tensor:
        x = hidden.stream + sum(hidden.snapshots)
        return x / x.square().mean(1, keepdim=True).sqrt()


class ToyModel:
    family = "toy"

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float64) -> None:
        self.checkpoint: Checkpoint = open_checkpoint(folder)
        self.vocab, self.hidden = self.checkpoint.tensors["model.embed_tokens.weight"].shape
        self.layers, self.dtype = self.checkpoint.config["num_hidden_layers"], dtype
        self.loaded: list[int] = []

    def tensor(self, name: str) -> Tensor:
        info = self.checkpoint.tensors[name]
        file = self.checkpoint.opener(info.file)
        data = torch.frombuffer(bytearray(file.read(info.start, info.end)), dtype=torch.float32)
        file.close()
        return data.reshape(info.shape).to(self.dtype)

    def embed(self, tokens: Tensor) -> Hidden:
        return Hidden(self.load_embedding()[tokens])

    def embedding_tensor(self) -> TensorInfo:
        return self.checkpoint.tensors["model.embed_tokens.weight"]

    def load_embedding(self) -> Tensor:
        return self.tensor("model.embed_tokens.weight")

    def layer_tensors(self, i: int) -> list[TensorInfo]:
        return [self.checkpoint.tensors[f"model.layers.{i}.{part}.weight"] for part in ("attention", "experts.0.w1")]

    def load_layer(self, i: int) -> ToyLayer:
        self.loaded.append(i)
        attention, expert = (self.tensor(t.name) for t in self.layer_tensors(i))
        return ToyLayer(i, Dense(attention), Dense(expert))

    def head_tensors(self) -> list[TensorInfo]:
        return [self.checkpoint.tensors["lm_head.weight"]]

    def load_head(self) -> ToyHead:
        return ToyHead(self.tensor("lm_head.weight"))

    def new_cache(self) -> list[object]:
        return []

    def document(self, tokens: list[int]) -> Tensor:
        """Log-probabilities of the next token, of one document, in float64 and without tiles. Shape: ``[T, V]``."""
        self.dtype = torch.float64
        x, blocks = self.tensor("model.embed_tokens.weight")[tokens], []
        for i in range(self.layers):
            blocks += [x] if i % 2 == 0 else []
            attention, expert = (self.tensor(t.name) for t in self.layer_tensors(i))
            x = x + torch.tanh((x + mix(x) @ attention.T) @ expert.T) + 0.1 * torch.stack(blocks).sum(0)
        x = x + torch.stack(blocks).sum(0)
        x = x / x.square().mean(1, keepdim=True).sqrt()
        return torch.log_softmax(x @ self.tensor("lm_head.weight").T, 1)


def write_toy(folder: Path, seed: int = 0, changed: dict[str, float] | None = None, tokenizer: str = "{}") -> Path:
    """A toy checkpoint; ``changed``: size of the noise on some of its tensors."""
    rng, noise = np.random.default_rng(seed), np.random.default_rng(99)
    tensors = {"model.embed_tokens.weight": rng.standard_normal((VOCAB, WIDTH)).astype(np.float32)}
    for i in range(LAYERS):
        for part in ("attention", "experts.0.w1"):
            tensors[f"model.layers.{i}.{part}.weight"] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4
    tensors["lm_head.weight"] = rng.standard_normal((VOCAB, WIDTH)).astype(np.float32) / 2
    for name, size in (changed or {}).items():
        tensors[name] = (tensors[name] * (1 + size * noise.standard_normal(tensors[name].shape))).astype(np.float32)
    folder.mkdir(parents=True)
    header = encode_header([(n, "F32", t.shape) for n, t in tensors.items()], {"format": "pt"})
    (folder / "model.safetensors").write_bytes(header + b"".join(t.tobytes() for t in tensors.values()))
    config = {"model_type": "toy", "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "attn_res_block_size": 2}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer)
    return folder


def toy_documents(lengths: list[int], seed: int = 1) -> list[dict[str, object]]:
    """Documents of random tokens; of every other one only the second half is scored."""
    rng = np.random.default_rng(seed)
    return [
        {"id": f"doc-{i}", "tokens": rng.integers(0, VOCAB, n).tolist(), "scored_from": n // 2 if i % 2 else 0}
        for i, n in enumerate(lengths)
    ]


def write_corpus(path: Path, checkpoint: Path, documents: list[dict[str, object]]) -> Path:
    """A corpus made with the tokenizer of ``checkpoint``."""
    files = tokenizer_files(open_checkpoint(checkpoint))
    header = {"schema": "truecast.corpus/1", "tokenizer_sha256": tokenizer_sha256(files), "tokenizer_files": files}
    path.write_text("".join(json.dumps(line) + "\n" for line in ({**header, "vocab": VOCAB}, *documents)))
    return path
