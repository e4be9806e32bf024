"""Kimi-K3 in NumPy and float64, written from the formulas with loops over tokens, heads and experts.

Slow on purpose, and independent: it shares no code with the package, reads safetensors files itself and decodes MXFP4
itself. Everything the package's model computes is judged by it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def read_tensors(folder: Path) -> dict[str, NDArray[Any]]:
    """Every tensor of a folder's safetensors files: floats as float64, bytes as they are."""
    tensors: dict[str, NDArray[Any]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        for name, entry in json.loads(raw[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            data, shape = raw[start:end], entry["shape"]
            if entry["dtype"] == "BF16":
                wide = np.frombuffer(data, "<u2").astype("<u4") << 16
                tensors[name] = wide.view("<f4").astype(np.float64).reshape(shape)
            elif entry["dtype"] == "F32":
                tensors[name] = np.frombuffer(data, "<f4").astype(np.float64).reshape(shape)
            elif entry["dtype"] == "U8":
                tensors[name] = np.frombuffer(data, np.uint8).reshape(shape)
    return tensors


def mxfp4(packed: NDArray[np.uint8], scales: NDArray[np.uint8]) -> F64:
    """``[out, in/2]`` and ``[out, in/32]`` -> ``[out, in]``."""
    rows, half = packed.shape
    values = np.zeros((rows, 2 * half))
    for column in range(half):
        values[:, 2 * column] = E2M1[packed[:, column] % 16]
        values[:, 2 * column + 1] = E2M1[packed[:, column] // 16]
    for group in range(scales.shape[1]):
        values[:, 32 * group : 32 * group + 32] *= 2.0 ** (scales[:, group : group + 1].astype(np.float64) - 127)
    return values


def sigmoid(x: F64) -> F64:
    return 1 / (1 + np.exp(-x))


def rms(x: F64, weight: F64, eps: float) -> F64:
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def situ(gate: F64, up: F64, beta: float, linear_beta: float) -> F64:
    return beta * np.tanh(gate / beta) * sigmoid(gate) * linear_beta * np.tanh(up / linear_beta)


class Reference:
    """A checkpoint's text model. ``text`` is its text_config."""

    def __init__(self, tensors: Mapping[str, NDArray[Any]], text: Mapping[str, Any], prefix: str = "language_model."):
        self.tensors, self.text, self.prefix = tensors, text, prefix
        self.eps = text["rms_norm_eps"]
        self.linear = text["linear_attn_config"]

    def layer_tensor(self, layer: int, name: str) -> F64:
        return self.tensors[f"{self.prefix}model.layers.{layer}.{name}"]

    def is_kda(self, layer: int) -> bool:
        return layer + 1 in self.linear["kda_layers"]

    def kda(self, layer: int, x: F64) -> F64:
        """One document, ``[T, hidden]`` both ways."""

        def w(name: str) -> F64:
            return self.layer_tensor(layer, f"self_attn.{name}")

        heads, width = self.linear["num_heads"], self.linear["head_dim"]
        taps = self.linear["short_conv_kernel_size"]
        projected = []
        for which in "qkv":
            before = x @ w(f"{which}_proj.weight").T
            kernel = w(f"{which}_conv1d.weight")[:, 0]
            after = np.zeros_like(before)
            for t in range(len(x)):
                for tap in range(taps):
                    if (source := t - (taps - 1) + tap) >= 0:
                        after[t] += kernel[:, tap] * before[source]
            projected.append((after * sigmoid(after)).reshape(len(x), heads, width))
        q, k, v = projected
        raw = (x @ w("f_a_proj.weight").T @ w("f_b_proj.weight").T).reshape(len(x), heads, width)
        bias = w("dt_bias").reshape(heads, width)
        beta = sigmoid(x @ w("b_proj.weight").T)
        gate = (x @ w("g_proj.weight").T).reshape(len(x), heads, width)
        y = np.zeros((len(x), heads, width))
        for h in range(heads):
            rate, state = np.exp(w("A_log").reshape(-1)[h]), np.zeros((width, width))
            for t in range(len(x)):
                bound = self.linear.get("gate_lower_bound")
                if bound is None:
                    decay = -rate * np.log1p(np.exp(raw[t, h] + bias[h]))
                else:
                    decay = bound * sigmoid(rate * (raw[t, h] + bias[h]))
                key = k[t, h] / np.sqrt((k[t, h] ** 2).sum() + 1e-6)
                query = q[t, h] / np.sqrt((q[t, h] ** 2).sum() + 1e-6) / np.sqrt(width)
                state = np.exp(decay)[:, None] * state
                state = state + np.outer(key, beta[t, h] * (v[t, h] - state.T @ key))
                y[t, h] = rms(state.T @ query, w("o_norm.weight"), self.eps) * sigmoid(gate[t, h])
        return y.reshape(len(x), -1) @ w("o_proj.weight").T

    def mla(self, layer: int, x: F64) -> F64:
        """One document, ``[T, hidden]`` both ways."""

        def w(name: str) -> F64:
            return self.layer_tensor(layer, f"self_attn.{name}.weight")

        text, length = self.text, len(x)
        heads, lora = text["num_attention_heads"], text["kv_lora_rank"]
        nope, rope, v_dim = text["qk_nope_head_dim"], text["qk_rope_head_dim"], text["v_head_dim"]
        q = (rms(x @ w("q_a_proj").T, w("q_a_layernorm"), 1e-6) @ w("q_b_proj").T).reshape(length, heads, nope + rope)
        joint = x @ w("kv_a_proj_with_mqa").T
        kv = (rms(joint[:, :lora], w("kv_a_layernorm"), 1e-6) @ w("kv_b_proj").T).reshape(length, heads, nope + v_dim)
        out = np.zeros((length, heads, v_dim))
        for h in range(heads):
            for t in range(length):
                keys = np.concatenate([kv[: t + 1, h, :nope], joint[: t + 1, lora:]], axis=1)
                scores = keys @ q[t, h] / np.sqrt(nope + rope)
                shares = np.exp(scores - scores.max())
                out[t, h] = shares @ kv[: t + 1, h, nope:] / shares.sum()
        return (out.reshape(length, -1) * sigmoid(x @ w("g_proj").T)) @ w("o_proj").T

    def mix(self, stream: F64, blocks: list[F64], norm: F64, proj: F64) -> F64:
        sources = np.stack([*blocks, stream])
        scores = np.zeros(sources.shape[:2])
        for j, source in enumerate(sources):
            for t, row in enumerate(source):
                scores[j, t] = (rms(row, norm, self.eps) * proj[0]).sum()
        shares = np.exp(scores - scores.max(0))
        shares /= shares.sum(0)
        return (shares[:, :, None] * sources).sum(0)

    def mlp(self, layer: int, name: str, x: F64) -> F64:
        def w(which: str) -> F64:
            return self.layer_tensor(layer, f"{name}.{which}_proj.weight")

        return self.act(x @ w("gate").T, x @ w("up").T) @ w("down").T

    def act(self, gate: F64, up: F64) -> F64:
        return situ(gate, up, self.text["activation_situ_beta"], self.text["activation_situ_linear_beta"])

    def route(self, layer: int, x: F64) -> list[list[tuple[int, float]]]:
        """For each token, its experts in ascending order and their weights."""
        scores = sigmoid(x @ self.layer_tensor(layer, "block_sparse_moe.gate.weight").T)
        bias = self.layer_tensor(layer, "block_sparse_moe.gate.e_score_correction_bias")
        routed = []
        for row in scores:
            chosen = sorted(np.argsort(-(row + bias))[: self.text["num_experts_per_token"]].tolist())
            total = sum(row[e] for e in chosen) + 1e-20 if self.text["moe_renormalize"] else 1.0
            routed.append([(e, row[e] / total * self.text["routed_scaling_factor"]) for e in chosen])
        return routed

    def expert(self, layer: int, e: int, which: str) -> F64:
        stem = f"block_sparse_moe.experts.{e}.{which}.weight"
        packed, scales = (self.layer_tensor(layer, f"{stem}_{part}") for part in ("packed", "scale"))
        return mxfp4(packed, scales)

    def moe(self, layer: int, x: F64) -> F64:
        def w(name: str) -> F64:
            return self.layer_tensor(layer, f"block_sparse_moe.{name}.weight")

        z = x @ w("routed_expert_down_proj").T
        total = np.zeros_like(z)
        routed = self.route(layer, x)
        for e in sorted({e for row in routed for e, _ in row}):
            w1, w2, w3 = (self.expert(layer, e, which) for which in ("w1", "w2", "w3"))
            for t, row in enumerate(routed):
                for chosen, share in row:
                    if chosen == e:
                        total[t] += share * (w2 @ self.act(w1 @ z[t], w3 @ z[t]))
        latent = rms(total, w("routed_expert_norm"), self.eps)
        return latent @ w("routed_expert_up_proj").T + self.mlp(layer, "block_sparse_moe.shared_experts", x)

    def layer(self, i: int, stream: F64, blocks: list[F64]) -> tuple[F64, list[F64]]:
        def w(name: str) -> F64:
            return self.layer_tensor(i, f"{name}.weight")

        x = stream
        if blocks:
            x = self.mix(stream, blocks, w("self_attention_res_norm"), w("self_attention_res_proj"))
        x = rms(x, w("input_layernorm"), self.eps)
        y = self.kda(i, x) if self.is_kda(i) else self.mla(i, x)
        if i % self.text["attn_res_block_size"] == 0:
            blocks, stream = [*blocks, stream], y
        else:
            stream = stream + y
        x = rms(self.mix(stream, blocks, w("mlp_res_norm"), w("mlp_res_proj")), w("post_attention_layernorm"), self.eps)
        dense = i < self.text["first_k_dense_replace"]
        return stream + (self.mlp(i, "mlp", x) if dense else self.moe(i, x)), blocks

    def logits(self, tokens: list[int]) -> F64:
        """``[T, V]`` of one document."""

        def w(name: str) -> F64:
            return self.tensors[f"{self.prefix}model.{name}.weight"]

        stream, blocks = w("embed_tokens")[tokens], []
        for i in range(self.text["num_hidden_layers"]):
            stream, blocks = self.layer(i, stream, blocks)
        mixed = self.mix(stream, blocks, w("output_attn_res_norm"), w("output_attn_res_proj"))
        return rms(mixed, w("norm"), self.eps) @ self.tensors[f"{self.prefix}lm_head.weight"].T
