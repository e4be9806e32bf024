from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.conftest import Release
from truecast.engines.sglang.fixes import fp8_kv_gather
from truecast.engines.sglang.fixes.fp8_kv_gather import BACKEND, FIX, MODULE, PLANNER, gather
from truecast.engines.sglang.situation import Situation

READ = "k_buf = self.token_to_kv_pool.get_key_buffer(layer.layer_id).to(q.dtype)"
MENDED = "k_buf = self.token_to_kv_pool.get_key_buffer(layer.layer_id)[kv_indices].to(q.dtype)"
POOL = 40
REQUESTS = ((3, 9, 1, 30, 31), (7,), (22, 21, 20, 2, 3, 5, 8))  # rows of the pool, cached ones first
PREFIX = (3, 0, 5)
NEW = [30, 31, 7, 5, 8]  # the rows beyond these, which a prefill writes before it reads


def test_the_fault_is_seen(release: Release) -> None:
    assert FIX.faulty(release.sources)
    assert not FIX.faulty(release.edited(MODULE, READ, MENDED).sources)
    assert not FIX.faulty(release.edited(MODULE, READ, READ.removesuffix(".to(q.dtype)")).sources)  # read as FP8
    two_steps = "k_buf = self.token_to_kv_pool.get_key_buffer(layer.layer_id); k_buf = k_buf.to(q.dtype)"
    assert FIX.faulty(release.edited(MODULE, READ, two_steps).sources)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (READ, "k_buf = None"),
        ("def forward_extend(", "def forward_prefill("),
        ("def call_begin_forward(", "def begin_forward("),
        ("wrapper_paged.plan(", "wrapper_paged.prepare("),
        ("wrapper_paged", "wrapper"),
        ("is_in_breakable_cuda_graph", "in_breakable_graph"),
    ],
)
def test_other_code_is_not_guessed_at(release: Release, old: str, new: str) -> None:
    with pytest.raises(LookupError, match=f"{BACKEND}|{PLANNER}|{MODULE}"):
        FIX.faulty(release.edited(MODULE, old, new).sources)


@dataclass
class Wrapper:
    """The paged kernel's place: it remembers which rows were read, in order, and how large its buffer was."""

    _use_cuda_graph: bool = False
    planned: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    indptr: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    read: list[torch.Tensor] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)

    def plan(self, qo_indptr: Any, kv_indptr: torch.Tensor, kv_indices: torch.Tensor, kv_len: Any, *rest: Any) -> None:
        self.planned, self.indptr = kv_indices.clone(), kv_indptr.clone()

    def run(
        self, q: torch.Tensor, rope: Any, latent: torch.Tensor, key: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        rows = self.planned[: int(self.indptr[-1])].long()
        self.read.append(torch.cat([latent[rows], key[rows]], -1))
        self.buffers.append(len(latent))
        return out.fill_(1)


class Pool:
    def __init__(self, dtype: torch.dtype) -> None:
        self.size, self.dtype = POOL, dtype
        raw = torch.randint(
            0, 120, (2, POOL + 1, 1, 576), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
        )
        self.buffer = raw.view(dtype) if dtype.itemsize == 1 else raw.to(dtype)

    def get_key_buffer(self, layer: int) -> torch.Tensor:
        return self.buffer[layer]

    def set_kv_buffer(self, layer: Any, rows: list[int], key: torch.Tensor, value: Any) -> None:
        self.buffer[layer.layer_id, rows] = key.to(self.dtype)


def fill(ids: torch.Tensor, of: torch.Tensor, lengths: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor) -> None:
    for row, length, start in zip(of.tolist(), lengths.tolist(), indptr.tolist(), strict=False):
        out[start : start + length] = ids[row, :length]


class Launch:
    """``create_flashinfer_kv_indices_triton[grid](...)`` without Triton."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda ids, of, lengths, indptr, start, out, stride: fill(ids, of, lengths, indptr, out)


class Translator:
    is_translating = False

    def __init__(self, ids: torch.Tensor) -> None:
        self.ids = ids

    def fill_packed_read_stream(
        self, *, req_pool_indices: Any, seq_lens: Any, indptr: Any, total_tokens: int, out: Any
    ) -> None:
        fill(self.ids, req_pool_indices, seq_lens, indptr, out)

    def pack_read_stream(self, plan: Any, *, req_pool_indices: Any, seq_lens: Any, indptr: Any, out: Any) -> None:
        fill(self.ids, req_pool_indices, seq_lens, indptr, out)


@dataclass
class Engine:
    """SGLang's own backend and planner classes from the wheel, with what they call on a GPU replaced."""

    release: Release
    module: Any
    pool: Pool
    wrapper: Wrapper = field(default_factory=Wrapper)

    def __post_init__(self) -> None:
        ids = torch.zeros((len(REQUESTS), 16), dtype=torch.int32)
        for i, rows in enumerate(REQUESTS):
            ids[i, : len(rows)] = torch.tensor(rows)
        self.backend = object.__new__(getattr(self.module, BACKEND))
        self.backend.token_to_kv_pool = self.pool
        self.backend.kv_index_translator = Translator(ids)
        self.planner = object.__new__(getattr(self.module, PLANNER))
        fields = {
            "num_local_heads": 2,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        }
        fields |= {
            "data_type": torch.bfloat16,
            "q_data_type": torch.bfloat16,
            "scaling": 0.1,
            "attn_backend": self.backend,
        }
        fields |= {"req_to_token": ids, "_translate_kv_loc_dense": None}
        vars(self.planner).update(fields)

    def prefill(self, layers: int = 2, **more: Any) -> torch.Tensor:
        """Plan and run the paged kernel for :data:`REQUESTS`; returns what it read, layer by layer."""
        lengths = torch.tensor([len(r) for r in REQUESTS])
        arguments = {
            "wrapper_ragged": SimpleNamespace(begin_forward=lambda **_: None),
            "wrapper_paged": self.wrapper,
            "req_pool_indices": torch.arange(len(REQUESTS)),
            "paged_kernel_lens": lengths,
            "paged_kernel_lens_sum": int(lengths.sum()),
            "seq_lens": lengths,
            "prefix_lens": torch.tensor(PREFIX),
            "kv_indptr": torch.zeros(9, dtype=torch.int32),
            "qo_indptr": torch.zeros(9, dtype=torch.int32),
            "use_ragged": False,
        }
        if self.release.version == "0.5.23":
            arguments["plan"] = None
        self.planner.call_begin_forward(**{**arguments, **more})
        self.backend.forward_metadata = SimpleNamespace(prefill_wrapper=self.wrapper, use_ragged=False)
        batch = SimpleNamespace(
            attn_attend_prefix_cache=None, out_cache_loc=NEW, attn_dcp_metadata=more.get("attn_dcp_metadata")
        )
        q = torch.zeros(8, 2 * 576, dtype=torch.bfloat16)
        new = torch.linspace(-1, 1, len(NEW) * 576).bfloat16().view(len(NEW), 1, 576)
        for i in range(layers):
            layer = SimpleNamespace(layer_id=i, logit_cap=0.0, tp_q_head_num=2, head_dim=576, v_head_dim=512)
            self.backend.forward_extend(q, new, new, layer, batch)
        return torch.stack(self.wrapper.read[-layers:])


@pytest.fixture
def module(release: Release, hook_registry: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(MODULE)
    for parent in ("sglang.srt.layers", "sglang.srt.layers.attention"):
        package = ModuleType(parent)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, parent, package)
    names = {
        "torch": torch,
        "AttentionBackend": object,
        "SpecInput": SpecInput,
        "create_flashinfer_kv_indices_triton": Launch(),
    }
    names["KVWriteLoc"] = SimpleNamespace(for_batch=lambda batch: batch.out_cache_loc)
    names |= {flag: lambda: False for flag in fp8_kv_gather.FLAGS}
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, MODULE, made)
    release.cut(MODULE, {BACKEND, PLANNER}, vars(made))
    return made


class SpecInput:
    """A verification of drafts, whose list of rows is longer than what it uses."""

    def generate_attn_arg_prefill(self, *args: Any, **kwargs: Any) -> Any:
        rows = torch.tensor([4, 6, 1, -7, 2**30], dtype=torch.int32)
        return rows, torch.tensor([0, 1, 3], dtype=torch.int32), torch.tensor([0, 1, 2], dtype=torch.int32), None


def apply(registry: Any) -> None:
    hooks = FIX.hooks(Situation("0.5.17", "m"))
    types = {t.value: t for t in sys.modules["sglang.srt.plugins.hook_registry"].HookType}
    for hook in hooks:
        registry.register(hook.target, hook.function, types[hook.kind.value])
    registry.apply_hooks()
    assert {h.target for h in hooks} <= registry._patched


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_the_kernel_reads_the_same_from_the_batch_alone(
    release: Release, module: Any, hook_registry: Any, dtype: torch.dtype
) -> None:
    stock = Engine(release, module, Pool(dtype))
    wanted = stock.prefill()
    assert set(stock.wrapper.buffers) == {POOL + 1}  # the fault: the whole pool was converted
    rows = [r for request in REQUESTS for r in request]
    assert torch.equal(wanted, stock.pool.buffer.bfloat16()[:, rows])

    apply(hook_registry)
    ours = Engine(release, module, pool := Pool(dtype))
    assert torch.equal(ours.prefill().view(torch.int16), wanted.view(torch.int16))
    assert set(ours.wrapper.buffers) == {len(rows)}
    assert ours.backend.token_to_kv_pool is pool
    assert torch.equal(pool.buffer.view(torch.uint8), stock.pool.buffer.view(torch.uint8))


@pytest.mark.parametrize("case", ["bf16", "dcp", "unified", "captured verify", "recorded", "shared prefix"])
def test_left_alone(release: Release, module: Any, hook_registry: Any, case: str) -> None:
    apply(hook_registry)
    engine = Engine(release, module, Pool(torch.bfloat16 if case == "bf16" else torch.float8_e4m3fn))
    more: dict[str, Any] = {}
    if case == "dcp":
        more["attn_dcp_metadata"] = SimpleNamespace(dcp_kv_indptr=None, dcp_kv_indices=None, dcp_kv_buffer=None)
    if case == "unified":
        engine.planner._translate_kv_loc_dense = lambda ids: ids
        engine.backend.kv_index_translator.is_translating = True
    if case == "captured verify":
        engine.wrapper._use_cuda_graph, more["spec_info"] = True, SpecInput()
    if case == "recorded":
        setattr(module, fp8_kv_gather.FLAGS[1], lambda: True)
    if case == "shared prefix":
        engine.pool.size = sum(map(len, REQUESTS))
    engine.prefill(**more)
    assert set(engine.wrapper.buffers) == {POOL + 1}


def test_an_eager_verification_is_gathered_without_its_unused_tail(
    release: Release, module: Any, hook_registry: Any
) -> None:
    apply(hook_registry)
    engine = Engine(release, module, Pool(torch.float8_e4m3fn))
    read = engine.prefill(spec_info=SpecInput())
    assert torch.equal(read, engine.pool.buffer.bfloat16()[:, [4, 6, 1]])
    assert set(engine.wrapper.buffers) == {5}


def test_the_next_plan_forgets_the_rows(release: Release, module: Any, hook_registry: Any) -> None:
    apply(hook_registry)
    engine = Engine(release, module, Pool(torch.float8_e4m3fn))
    engine.prefill()
    setattr(module, fp8_kv_gather.FLAGS[0], lambda: True)
    engine.prefill()
    assert engine.wrapper.buffers == [sum(map(len, REQUESTS))] * 2 + [POOL + 1] * 2


@given(st.integers(1, 9), st.lists(st.integers(0, 8), max_size=20), st.integers(1, 41), st.sampled_from([1, 2, 4]))
def test_gather_moves_bytes(size: int, rows: list[int], width: int, itemsize: int) -> None:
    kind = {1: torch.float8_e4m3fn, 2: torch.bfloat16, 4: torch.float32}[itemsize]
    raw = torch.randint(0, 256, (size, 1, width * itemsize), dtype=torch.uint8)
    index = torch.tensor([r % size for r in rows], dtype=torch.int32)
    got = gather(raw.view(kind), index)
    assert got.dtype == kind and got.shape == (len(rows), 1, width)
    assert torch.equal(got.view(torch.uint8), raw[index.long()])


def test_need() -> None:
    base = {"version": "0.5.17", "model": "m", "config": {"kv_lora_rank": 512}, "prefill_attention": "flashinfer"}
    assert FIX.need(Situation(**base)) is None
    need = FIX.need(Situation(**base, kv_cache_dtype="fp8_e4m3"))
    assert need is not None and not need.required
    assert FIX.need(Situation(**{**base, "prefill_attention": "triton"}, kv_cache_dtype="fp8_e4m3")) is None
    assert FIX.need(Situation(**{**base, "config": {}}, kv_cache_dtype="fp8_e4m3")) is None


def test_selftest(monkeypatch: pytest.MonkeyPatch) -> None:
    FIX.selftest(Situation("0.5.17", "m"))
    monkeypatch.setattr(fp8_kv_gather, "gather", lambda buffer, rows: buffer[rows.long()].flip(0))
    with pytest.raises(AssertionError, match="rows differ"):
        FIX.selftest(Situation("0.5.17", "m"))
