"""W4AFP8's routing map: counting against SGLang's sort. ``python -m benchmarks.sglang_routing [--device cpu]``

SGLang (0.5.17 to 0.5.20) must be importable on a GPU: its own ``cutlass_w4_run_moe_ep_preproess`` is what is compared
with. Times are per call, from a CUDA graph and from Python. ``--device cpu`` is a dry run with few routes, where
``torch.sort`` stands for SGLang (set TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch

from benchmarks.cuda_graph_time import eager_microseconds, microseconds
from truecast.engines.sglang.kernels import routing

TOPK, EXPERTS = 16, 896
BINS = 1024


def sort_path(device: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """SGLang's own function."""
    if device == "cuda":
        from sglang.kernels.ops.moe.ep_moe_kernels import cutlass_w4_run_moe_ep_preproess

        return cutlass_w4_run_moe_ep_preproess  # type: ignore[no-any-return]

    def stand_in(ids: torch.Tensor) -> torch.Tensor:
        order = torch.sort(ids.view(-1), stable=True).indices
        return torch.empty_like(order).scatter_(0, order, torch.arange(order.numel())).int()

    return stand_in


def routes(tokens: int, ranks: int, device: str) -> torch.Tensor:
    """Each token's experts as ``cutlass_w4a8_moe`` sees them: this rank's own numbers, one past the last for others."""
    chosen = torch.rand(tokens, EXPERTS, device=device).topk(TOPK, dim=1).indices.int()
    local = EXPERTS // ranks
    return torch.where(chosen < local, chosen, local).contiguous()


def main() -> int:
    """Print the table and one line of JSON. Returns 1 if a map differs or one of the three sizes is below 3 times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    device = parser.parse_args().device
    torch.manual_seed(0)
    stock = sort_path(device)
    if device == "cuda":
        print(torch.cuda.get_device_name(), "torch", torch.__version__)
    sizes = (640, 1600, 3072, 4096, 8192, 16_384, 65_536, 262_144) if device == "cuda" else (32, 640)
    forms = {"compare": routing.by_comparison, "count": lambda ids: routing.by_counting(ids, BINS)}
    rows, bad = [], 0
    print(f"{'routes':>8} {'ranks':>5} | graph, us: sort  compare    count  chosen  speed-up | eager, us: sort  chosen")
    for n in sizes:
        for ranks in (32, 1):
            ids = routes(n // TOPK, ranks, device)
            wanted = stock(ids).view(-1)
            # the compare form is quadratic: not tried far above its limit
            used = {k: f for k, f in forms.items() if k == "count" or n <= 4 * routing.SHORT}
            same = all(torch.equal(f(ids), wanted) for f in used.values())
            graph = {"sort": microseconds(lambda ids=ids: stock(ids), device)}
            graph |= {k: microseconds(lambda f=f, ids=ids: f(ids), device) for k, f in used.items()}
            graph["chosen"] = microseconds(lambda ids=ids: routing.places(ids.view(-1), BINS), device)
            eager = {
                "sort": eager_microseconds(lambda ids=ids: stock(ids), device),
                "chosen": eager_microseconds(lambda ids=ids: routing.places(ids.view(-1), BINS), device),
            }
            ratio = graph["sort"] / graph["chosen"]
            bad += not same or (n in (640, 1600, 65_536) and ratio < 3)
            rows.append(
                {"routes": n, "ranks": ranks, "equal": same, "graph_us": graph, "eager_us": eager, "ratio": ratio}
            )
            shown = " ".join(f"{graph.get(k, float('nan')):8.1f}" for k in ("sort", "compare", "count", "chosen"))
            print(
                f"{n:8} {ranks:5} | {'' if same else 'WRONG'}{shown} {ratio:8.1f}x | {eager['sort']:8.1f} {eager['chosen']:8.1f}"
            )
    print(json.dumps({"benchmark": "sglang_routing", "device": device, "rows": rows}))
    return 1 if bad and device == "cuda" else 0


if __name__ == "__main__":
    raise SystemExit(main())
