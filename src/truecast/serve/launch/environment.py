"""Environment variables of every node, the same text on each."""

from __future__ import annotations

from truecast.serve.forecast.ready import load_seconds
from truecast.serve.launch import experts
from truecast.serve.launch.case import CARD_000, CARD_003, Case
from truecast.serve.launch.setting import Setting
from truecast.serve.topology import Topology

BARRIER = 480
"""Seconds that SGLang's ranks wait for each other after loading, fixed in load_model_utils.py."""

_ADDRESS = (
    "${SGLANG_HOST_IP:-$(python3 -c 'import socket,sys"
    "; f,k,p,_,a=socket.getaddrinfo(sys.argv[1],9,type=socket.SOCK_DGRAM)[0]"
    '; s=socket.socket(f,k,p); s.connect(a); print(s.getsockname()[0])\' "$HEAD")}'
)
_INTERFACE = (
    "${NCCL_SOCKET_IFNAME:-$(python3 -c 'import psutil,sys"
    "; print(next(n for n,a in psutil.net_if_addrs().items() if sys.argv[1] in [x.address for x in a]))'"
    ' "$SGLANG_HOST_IP")}'
)


def environment_settings(case: Case) -> list[Setting]:
    """All variables, the network's first."""
    return [*_network(case), *_loading(case), *_kernels(case), *_addresses(case)]


def _network(case: Case) -> list[Setting]:
    if case.split.nodes == 1 or not case.gpu.name.startswith("gh200") or case.split.per_node != 4:
        return []
    channels = f"as measured between nodes of four GH200 ({CARD_003})"
    fabric = f"InfiniBand of nodes of four GH200 ({CARD_003})"
    return [
        Setting("NCCL_MIN_NCHANNELS", "24", channels),
        Setting("NCCL_MAX_NCHANNELS", "24", channels),
        Setting("NCCL_IB_ADAPTIVE_ROUTING", "0", fabric),
        Setting("NCCL_IB_QPS_PER_CONNECTION", "2", fabric),
    ]


def _loading(case: Case) -> list[Setting]:
    split, found = case.split, []
    topology = Topology(case.gpu, split.nodes, split.per_node)
    twice = 2 * load_seconds(case.model, topology, split.tp, split.ep, load_filter=split.ep > 1)
    if split.ep > 1:
        why = "each rank reads its own experts only; read by truecast's plug-in, which stops if the model has another number"
        found.append(Setting("SGLANG_EXPERT_LOAD_FILTER", str(case.model.experts), why))
    if split.tp > 1 and twice > BARRIER:
        wait = -(-round(twice) // 600) * 600
        why = (
            f"the slowest rank may read for {twice:,.0f} s (twice the forecast), and SGLang's ranks wait {BARRIER} s for"
            f" each other; in steps of 600 s; read by truecast's plug-in ({CARD_000}: raise the barrier)"
        )
        found.append(Setting("SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S", str(wait), why))
    return found


def _kernels(case: Case) -> list[Setting]:
    found, format_ = [], case.model.format
    if case.draft is not None:
        why = "every verification has one length, as CUDA graphs and the replay of KDA's states want it (SGLang's default)"
        found.append(Setting("SGLANG_RAGGED_VERIFY_MODE", "static", why))
    if (case.is_k3 and case.hopper) or format_ in ("w4afp8", "fp8"):
        why = "DeepGEMM compiles some 3,000 sizes ahead, not all"
        found.append(Setting("SGLANG_JIT_DEEPGEMM_FAST_WARMUP", "1", why))
    if format_ == "w4afp8" and case.version < (0, 5, 23):
        why = "routes are counted, not sorted, with the same bits; read by truecast's plug-in"
        found.append(Setting("K3_W4_SRC2DST", "count", why))
    if experts.backend(case) == "marlin" and case.split.ep > 1:
        why = "Marlin's tile from all experts, not from this rank's; read by truecast's plug-in"
        found.append(Setting("SGLANG_MARLIN_EP_BLOCK", "1", why))
    return found


def _addresses(case: Case) -> list[Setting]:
    if case.split.nodes == 1:
        return []
    return [
        Setting(
            "SGLANG_HOST_IP",
            _ADDRESS,
            "the address of this node on the route to the head; SGLang's own guess may be another network's, and then"
            f" the ranks never meet and nothing says so ({CARD_000})",
            shell=True,
        ),
        Setting("NCCL_SOCKET_IFNAME", _INTERFACE, "the interface of that address", shell=True),
        Setting("GLOO_SOCKET_IFNAME", "${GLOO_SOCKET_IFNAME:-$NCCL_SOCKET_IFNAME}", "the same for Gloo", shell=True),
    ]
