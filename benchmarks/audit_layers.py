"""Kimi-K3's layers at full size on a GPU: ``python -m benchmarks.audit_layers FOLDER``.

Writes a checkpoint with one KDA layer and one MLA layer of Kimi-K3's own dimensions, 896 random MXFP4 experts each (36 GB;
``--experts`` for fewer), and loads them as the audit does. Then, for 16k, 64k and 355k tokens in documents of 4,096:

1. tokens/s and TFLOP/s of a whole layer, decoding of the experts included, against the rate of a plain BF16 matrix
   product in the same run;
2. the same layer with the experts as transformers runs them: decoded to BF16 beforehand, a one-hot mask, a loop over the
   experts (16k tokens; the mask takes 4.5 GB for 355k);
3. where the time goes, block by block and kernel by kernel; what loading a layer takes;
4. the projected time of all 93 layers, read once at a stated bandwidth, and the term that binds.

FLOPs are those of the matrices and of causal attention's products; what else there is (convolutions, gates, the state of
KDA, norms, routing, decoding) counts as time only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from truecast.models import open_model
from truecast.models.hidden import Hidden
from truecast.models.kimi_k3 import kda, mla
from truecast.models.kimi_k3.activation import situ
from truecast.models.kimi_k3.attn_res import mix
from truecast.models.kimi_k3.config import K3Config
from truecast.models.kimi_k3.kda import Kda
from truecast.models.kimi_k3.layer import K3Layer
from truecast.models.kimi_k3.moe import Moe, mlp, moe, route
from truecast.models.norm import rms_norm
from truecast.models.rows import Rows
from truecast.models.taps import PLAIN

DOCUMENT = 4096
SIZES = (16_384, 65_536, 355_000)
K3_LAYERS = {"kda": 69, "mla": 24}
K3_BYTES = 1.56e12
BANDWIDTHS = (3.5e9, 7e9, 14e9)
"""Bytes a second read: one, and two and four NVMe drives' worth."""
SNAPSHOTS = 4
"""Blocks that AttnRes mixes: the mean over Kimi-K3's layers."""


def config(experts: int) -> dict[str, Any]:
    """Kimi-K3's config.json, but for three layers of which the first is never read, and the vocabulary."""
    linear = {
        "num_heads": 96, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
        "use_full_rank_gate": True, "kda_layers": [1, 2], "full_attn_layers": [3],
    }  # fmt: skip
    return {
        "model_type": "kimi_linear", "hidden_size": 7168, "num_hidden_layers": 3, "vocab_size": 64,
        "intermediate_size": 33792, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_attention_heads": 96,
        "num_key_value_heads": 96, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True, "mla_use_output_gate": True,
        "linear_attn_config": linear, "attn_res_block_size": 12, "num_experts": experts,
        "num_experts_per_token": 16, "num_shared_experts": 2, "moe_intermediate_size": 3072,
        "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True, "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 1.0, "hidden_act": "situ",
        "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }  # fmt: skip


def write(folder: Path, experts: int, device: torch.device) -> None:
    """The checkpoint: layers 1 (KDA) and 2 (MLA), one file each, and a small third for the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, gain: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return (torch.randn(shape, generator=generator, device=device) * gain / shape[-1] ** 0.5).to(dtype).cpu()

    def random_bytes(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, device=device, dtype=torch.uint8).cpu()

    inner, hidden, latent, width = 96 * 128, 7168, 3584, 3072
    packed: dict[str, Tensor] = {}
    places: dict[str, str] = {}
    for e in range(experts):
        for name, rows, cols in (("w1", width, latent), ("w2", latent, width), ("w3", width, latent)):
            packed[f"{e}.{name}.weight_packed"] = random_bytes(0, 256, rows, cols // 2)
            packed[f"{e}.{name}.weight_scale"] = random_bytes(119, 122, rows, cols // 32)
    for index, linear in ((1, True), (2, False)):
        stem = f"model.layers.{index}."
        tensors = {f"{stem}{n}.weight": torch.ones(hidden, dtype=torch.bfloat16) for n in (
            "input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm")}  # fmt: skip
        tensors |= {f"{stem}{n}.weight": normal(1, hidden) for n in ("self_attention_res_proj", "mlp_res_proj")}
        a = f"{stem}self_attn."
        shapes = {"g_proj": (inner, hidden), "o_proj": (hidden, inner)}
        if linear:
            shapes |= {f"{n}_proj": (inner, hidden) for n in "qkv"}
            shapes |= {"f_a_proj": (128, hidden), "f_b_proj": (inner, 128), "b_proj": (96, hidden)}
            tensors |= {f"{a}{n}_conv1d.weight": normal(inner, 1, 4, dtype=torch.float32) for n in "qkv"}
            tensors |= {f"{a}A_log": torch.zeros(128), f"{a}dt_bias": torch.zeros(inner)}
            tensors[f"{a}o_norm.weight"] = torch.ones(128)
        else:
            shapes |= {"q_a_proj": (1536, hidden), "q_b_proj": (96 * 192, 1536)}
            shapes |= {"kv_a_proj_with_mqa": (576, hidden), "kv_b_proj": (96 * 256, 512)}
            tensors |= {f"{a}q_a_layernorm.weight": torch.ones(1536, dtype=torch.bfloat16)}
            tensors |= {f"{a}kv_a_layernorm.weight": torch.ones(512, dtype=torch.bfloat16)}
        tensors |= {f"{a}{n}.weight": normal(*shape) for n, shape in shapes.items()}
        b = f"{stem}block_sparse_moe."
        tensors[f"{b}gate.weight"] = normal(experts, hidden)
        tensors[f"{b}gate.e_score_correction_bias"] = torch.zeros(experts)
        tensors[f"{b}routed_expert_norm.weight"] = torch.ones(latent, dtype=torch.bfloat16)
        tensors[f"{b}routed_expert_down_proj.weight"] = normal(latent, hidden)
        tensors[f"{b}routed_expert_up_proj.weight"] = normal(hidden, latent)
        for n in ("gate", "up"):
            tensors[f"{b}shared_experts.{n}_proj.weight"] = normal(2 * width, hidden)
        tensors[f"{b}shared_experts.down_proj.weight"] = normal(hidden, 2 * width)
        tensors |= {f"{b}experts.{name}": value for name, value in packed.items()}
        file = f"model-0000{index}-of-00003.safetensors"
        save_file(tensors, folder / file)
        places |= dict.fromkeys(tensors, file)
    rest = {"model.embed_tokens.weight": normal(64, hidden), "lm_head.weight": normal(64, hidden)}
    save_file(rest, folder / "model-00003-of-00003.safetensors")
    places |= dict.fromkeys(rest, "model-00003-of-00003.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps(config(experts)))


def flops_of_token(c: K3Config, kda: bool) -> float:
    """FLOPs of one token's matrix products in a layer; attention's at the mean depth of a document."""
    inner = c.heads * c.v_dim
    if kda:
        attention = 5 * c.hidden * inner + c.kda_head_dim * (c.hidden + inner) + c.hidden * c.kda_heads
    else:
        query, pair = c.nope_dim + c.rope_dim, c.nope_dim + c.v_dim
        attention = c.hidden * (c.q_lora + c.kv_lora + c.rope_dim + 2 * inner)
        attention += c.heads * (c.q_lora * query + c.kv_lora * pair + DOCUMENT / 2 * (query + c.v_dim))
    experts = c.experts_per_token * 3 * c.latent * c.expert_width
    shared = 3 * c.hidden * c.shared_experts * c.expert_width
    return 2 * (attention + experts + shared + 2 * c.hidden * c.latent + c.hidden * c.experts)


def timed(function: Callable[[], object], runs: int) -> float:
    """Median seconds of a run, after one that warms up."""
    times = []
    for _ in range(runs + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def rows_of(tokens: int) -> Rows:
    """Documents of 4,096 tokens and one with the rest."""
    whole, rest = divmod(tokens, DOCUMENT)
    return Rows((DOCUMENT,) * whole + ((rest,) if rest else ()))


def hidden_of(tokens: int, width: int, device: torch.device) -> Hidden:
    """Random rows and snapshots."""
    streams = [torch.randn(tokens, width, dtype=torch.bfloat16, device=device) for _ in range(1 + SNAPSHOTS)]
    return Hidden(streams[0], tuple(streams[1:]))


def dense_loop(x: Tensor, w: Moe, c: K3Config, matrices: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The mixture as transformers writes it: a one-hot mask over all experts, and a loop with a ``where`` in it."""
    ids, shares = route(x, w, c)
    z = w.down(x, PLAIN)
    sums = torch.zeros_like(z)
    mask = torch.nn.functional.one_hot(ids, c.experts).permute(2, 1, 0)
    hit = (mask.sum(dim=(-1, -2)) > 0).nonzero()
    for (e,) in hit.tolist():
        slot, token = torch.where(mask[e])
        w1, w3, w2 = matrices[e]
        y = situ(z[token] @ w1.T, z[token] @ w3.T, c.situ_beta, c.situ_linear_beta) @ w2.T
        sums.index_add_(0, token, (y * shares[token, slot, None]).to(z.dtype))
    return w.up(rms_norm(sums, w.norm, c.eps), PLAIN) + mlp(x, w.shared, c, PLAIN)


def peer(layer: K3Layer, tokens: int, device: torch.device) -> dict[str, float]:
    """Our mixture against the dense loop, the loop's weights decoded beforehand and not timed."""
    w, c = layer.feed_forward, layer.config
    assert isinstance(w, Moe)
    bank = w.experts.bank
    matrices = [(bank.w1(e).weight(), bank.w3(e).weight(), bank.w2(e).weight()) for e in range(bank.count)]
    x = torch.randn(tokens, c.hidden, dtype=torch.bfloat16, device=device)
    ours = timed(lambda: moe(x, w, c, PLAIN), 3)
    theirs = timed(lambda: dense_loop(x, w, c, matrices), 3)
    apart = (moe(x, w, c, PLAIN).float() - dense_loop(x, w, c, matrices).float()).abs().max().item()
    return {"tokens": tokens, "ours_s": ours, "dense_loop_s": theirs, "ratio": theirs / ours, "max_difference": apart}


def blocks(layer: K3Layer, tokens: int, device: torch.device) -> dict[str, float]:
    """Seconds of a layer's blocks, each by itself."""
    rows, hidden, c = rows_of(tokens), hidden_of(tokens, layer.config.hidden, device), layer.config
    attention, mixture, x = layer.attention, layer.feed_forward, hidden.stream
    assert isinstance(mixture, Moe)

    def attend() -> Tensor:
        if isinstance(attention, Kda):
            return kda.attention(x, attention, c, rows, PLAIN, None)
        return mla.attention(x, attention, c, layer.index, rows, PLAIN, None)

    return {
        "attention": timed(attend, 2),
        "mix": timed(lambda: mix(x, hidden.snapshots, layer.mlp_res, c.eps), 2),
        "norm": timed(lambda: rms_norm(x, layer.mlp_norm, c.eps), 2),
        "router": timed(lambda: route(x, mixture, c), 2),
        "shared experts": timed(lambda: mlp(x, mixture.shared, c, PLAIN), 2),
        "whole mixture": timed(lambda: moe(x, mixture, c, PLAIN), 2),
    }


def parts(layer: K3Layer, tokens: int, device: torch.device) -> dict[str, float]:
    """Seconds of kernels by kind, as the profiler sees them, for one call."""
    rows, hidden = rows_of(tokens), hidden_of(tokens, layer.config.hidden, device)
    layer(hidden, rows)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        layer(hidden, rows)
        torch.cuda.synchronize()
    found = {event.key[:90]: event.device_time_total / 1e6 for event in profile.key_averages()}
    return dict(sorted(found.items(), key=lambda item: -item[1])[:16])


def main() -> int:
    """Run all parts; prints a table, then one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit_layers", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experts", type=int, default=896)
    given = parser.parse_args()
    device = torch.device("cuda")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    began = time.perf_counter()
    if not (given.folder / "config.json").exists():
        write(given.folder, given.experts, device)
    print(f"checkpoint: {time.perf_counter() - began:.0f} s", flush=True)
    square = torch.randn(8192, 8192, dtype=torch.bfloat16, device=device)
    peak = 2 * 8192**3 / timed(lambda: square @ square, 20) / 1e12
    print(f"BF16 product of 8192 x 8192: {peak:.0f} TFLOP/s", flush=True)
    model = open_model(str(given.folder), device="cuda")
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "peak_tflops": peak}
    seconds: dict[str, float] = {}
    for index, kind in ((1, "kda"), (2, "mla")):
        began = time.perf_counter()
        layer = model.load_layer(index)
        torch.cuda.synchronize()
        loading = time.perf_counter() - began
        assert isinstance(layer, K3Layer) and isinstance(layer.attention, Kda) == (kind == "kda")
        print(f"{kind}: {layer.nbytes / 1e9:.2f} GB loaded in {loading:.2f} s", flush=True)
        result[f"{kind}_load_gb_s"] = layer.nbytes / loading / 1e9
        flops = flops_of_token(layer.config, kind == "kda")
        for tokens in SIZES:
            rows, hidden = rows_of(tokens), hidden_of(tokens, layer.config.hidden, device)
            began = time.perf_counter()
            layer(hidden, rows)
            torch.cuda.synchronize()
            first = time.perf_counter() - began
            took = timed(partial(layer, hidden, rows), 2 if tokens > 100_000 else 3)
            rate, tflops = tokens / took, flops * tokens / took / 1e12
            line = f"{kind} {tokens:7,d} tokens {took:7.3f} s {rate:9,.0f} tokens/s {tflops:4.0f} TFLOP/s"
            print(f"{line} {tflops / peak:.0%} of the product (first call {first:.1f} s)", flush=True)
            result[f"{kind}_{tokens}"] = {"seconds": took, "tokens_s": rate, "tflops": tflops}
            seconds[kind] = took
            del hidden
        print(f"memory {torch.cuda.max_memory_allocated() / 1e9:.0f} GB", flush=True)
        result[f"{kind}_blocks"] = blocks(layer, SIZES[-1], device)
        for key, value in result[f"{kind}_blocks"].items():
            print(f"    {value:8.3f} s {key}, {SIZES[-1]:,d} tokens", flush=True)
        result[f"{kind}_parts"] = parts(layer, 65_536, device)
        for key, value in result[f"{kind}_parts"].items():
            print(f"    {value * 1e3:8.1f} ms {key}", flush=True)
        if kind == "kda":
            result["peer"] = peer(layer, 16_384, device)
            print("dense loop:", result["peer"], flush=True)
        del layer
        torch.cuda.empty_cache()
    compute = sum(K3_LAYERS[kind] * seconds[kind] for kind in K3_LAYERS)
    result["all_layers_compute_s"] = compute
    for bandwidth in BANDWIDTHS:
        reading = K3_BYTES / bandwidth
        binds = "reading" if reading > compute else "compute"
        print(
            f"93 layers, {SIZES[-1]:,} tokens, one side, reading at {bandwidth / 1e9:.1f} GB/s: compute {compute:.0f} s,"
            f" reading {reading:.0f} s: {max(compute, reading) / 60:.1f} min, bound by {binds}",
            flush=True,
        )
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
