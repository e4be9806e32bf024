"""Each rank reads its own experts, through each release's own iterators, loader method and expert layer."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.conftest import Release
from truecast.engines.sglang import hooking
from truecast.engines.sglang.expert_shards import EXPERT, Reading, Shard
from truecast.engines.sglang.fixes import expert_load_filter as fix
from truecast.engines.sglang.situation import Situation
from truecast.errors import UsageError

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
tqdm = pytest.importorskip("tqdm").tqdm

EXPERTS, ROWS, COLUMNS = 8, 256, 2048
HANDLE = "CheckpointFilePrefetchHandle"
LOCATION = "sglang.srt.eplb.expert_location"
Tensors = dict[str, Any]


def situation(**changes: Any) -> Situation:
    return Situation(**{"version": "0.5.17", "model": "m", "config": {"num_experts": 8}, "ep_size": 2, **changes})


def layer_class(release: Release) -> type:
    """The release's own placing of experts on ranks, in a module that holds nothing else."""
    place = release.cut(fix.LAYER, {fix._PLACE}, {})[fix._PLACE]

    class Layer(torch.nn.Module):
        layer_id = 0
        _has_fused_shared = False
        _num_global_routed = EXPERTS

        def __init__(self, rank: int, ranks: int):
            super().__init__()
            self._expert_storage_rank = self.moe_ep_rank = rank
            self._num_local_routed = EXPERTS // ranks
            self.w13_weight = torch.nn.Parameter(torch.zeros(1))

    setattr(Layer, fix._PLACE, place)
    return Layer


@pytest.fixture
def sglang(release: Release, hook_registry: Any, place: Any) -> SimpleNamespace:
    """The modules that the hooks go to, with the release's own functions in them; no GPU, nothing else of SGLang."""
    utils: dict[str, Any] = {
        "torch": torch, "safetensors": safetensors, "tqdm": tqdm, "os": os, "collections": collections,
        "itertools": itertools, "concurrent": concurrent, "BAR_FORMAT": "{desc}",
        "threading": threading, "logger": logging.getLogger("sglang"), "_get_prefetch_block_size": lambda: 1 << 20,
    }  # fmt: skip
    utils["safetensors"] = SimpleNamespace(safe_open=safetensors.safe_open, torch=safetensors)
    functions = {*fix.ITERATORS, "_drop_file_cache_after_load", fix.PREFETCH, "_prefetch_all_checkpoints"}
    handle = {HANDLE, "_PREFETCH_STOP_TIMEOUT_SECONDS"} if f"class {HANDLE}" in release.sources(fix.UTILS) else set()
    release.cut(fix.UTILS, functions | handle, utils)
    module = place(fix.UTILS, utils)
    for name in functions:  # their globals are the module's own, as they would be
        function = getattr(module, name)
        setattr(module, name, type(function)(function.__code__, vars(module), name, function.__defaults__))

    class DefaultModelLoader:
        Source = SimpleNamespace(init_new=lambda config, model: config)
        iterator, options = fix.ITERATORS[0], {}

        def _get_weights_iterator(self, files: Any, resolved_source: Any = None, **startup: bool) -> Any:
            return getattr(loader, self.iterator)(
                files if resolved_source is None else resolved_source.files, **self.options
            )

        def load_weights_and_postprocess(self, model: Any, weights: Any, device: Any) -> None:
            self.loaded = dict(weights)

    names = {"DefaultModelLoader": DefaultModelLoader, "cast": lambda kind, x: x, "Iterable": collections.abc.Iterable}
    names |= {"set_default_torch_dtype": lambda dtype: contextlib.nullcontext(), "time": time}
    names["_prefetch_all_checkpoints"] = module._prefetch_all_checkpoints
    methods = {"_get_all_weights"}
    if f"def {fix.COMMIT}" in release.sources(fix.LOADER):
        methods |= {fix.COMMIT, "start_checkpoint_prefetch"}
    release.cut(fix.LOADER, methods, names)
    for name in methods:
        setattr(DefaultModelLoader, name, names[name])
    loader = place(
        fix.LOADER, {**{n: getattr(module, n) for n in fix.ITERATORS}, "DefaultModelLoader": DefaultModelLoader}
    )
    place(LOCATION, {"get_global_expert_location_metadata": lambda: None})
    return SimpleNamespace(
        loader=loader, utils=module, layer=layer_class(release), DefaultModelLoader=DefaultModelLoader
    )


def checkpoint(folder: Path) -> tuple[list[str], Tensors]:
    """Three shards in the names of several layouts; experts of all ranks are mixed in each."""
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int) -> Any:
        return torch.randint(0, 255, shape, dtype=torch.uint8, generator=generator)

    tensors: Tensors = {"model.layers.0.mlp.gate.weight": values(EXPERTS, 64).float()}
    for e in range(EXPERTS):
        stem = f"model.layers.{e % 2}.mlp.experts.{e}"
        tensors[f"{stem}.w1.weight_packed"] = values(ROWS, COLUMNS)
        tensors[f"{stem}.w1.weight_scale"] = values(ROWS, COLUMNS // 16)
        tensors[f"{stem}.w2.weight"] = values(ROWS, COLUMNS).view(torch.int8)
        tensors[f"{stem}.w1.weight_scale_2"] = torch.tensor(float(e))
        tensors[f"{stem}.w1.input_scale"] = torch.full((1,), float(e))
    tensors["model.layers.0.mlp.shared_experts.w1.weight"] = values(ROWS, COLUMNS)
    tensors["model.layers.1.mlp.experts.gate_up_proj"] = values(EXPERTS, 4, 8).bfloat16()
    tensors["model.mtp.layers.0.mlp.experts.7.w1.weight"] = values(ROWS, 64)
    files = []
    for i in range(3):
        files.append(str(folder / f"model-{i}.safetensors"))
        safetensors.save_file({n: t for j, (n, t) in enumerate(tensors.items()) if j % 3 == i}, files[-1])
    return files, tensors


def small(tensor: Any) -> bool:
    return bool(tensor.numel() <= 16)


def wanted(tensors: Tensors, rank: int, ranks: int) -> set[str]:
    here = range(rank * EXPERTS // ranks, (rank + 1) * EXPERTS // ranks)
    return {n for n, t in tensors.items() if not (m := EXPERT.search(n)) or int(m[1]) in here or small(t)}


WAYS: list[tuple[str, dict[str, Any]]] = [
    (fix.ITERATORS[0], {}),
    (fix.ITERATORS[0], {"disable_mmap": True, "drop_cache_after_load": True}),
    (fix.ITERATORS[1], {"max_workers": 2}),
    (fix.ITERATORS[1], {"max_workers": 8, "disable_mmap": True}),
    (fix.ITERATORS[1], {"max_workers": 1, "prefetch": True, "drop_cache_after_load": True}),
]


@pytest.mark.parametrize(("iterator", "options"), WAYS)
def test_a_rank_reads_its_own_experts(
    sglang: SimpleNamespace, tmp_path: Path, iterator: str, options: dict[str, Any]
) -> None:
    files, tensors = checkpoint(tmp_path)
    mine = sglang.DefaultModelLoader()
    mine.iterator, mine.options = iterator, {**options, "prefetch": False}
    model = torch.nn.ModuleDict({"a": sglang.layer(0, 2), "b": sglang.layer(0, 2)})
    assert set(dict(mine._get_all_weights(files, model))) == set(tensors), "stock reads all"

    hooking.put_on(fix.FIX.hooks(situation()))
    assert fix.FIX.hooks(situation()) == fix.FIX.hooks(situation(is_draft=True))
    fix.FIX.selftest(situation())
    mine.options = options
    for rank, ranks in ((0, 2), (1, 2), (3, 4)):
        model = torch.nn.ModuleDict({"a": sglang.layer(rank, ranks), "b": sglang.layer(rank, ranks)})
        found = dict(mine._get_all_weights(files, model))
        assert set(found) == wanted(tensors, rank, ranks)
        assert all(t.dtype == tensors[n].dtype and t.shape == tensors[n].shape for n, t in found.items())
        assert all(torch.equal(t, tensors[n]) for n, t in found.items())
    assert fix._reading is None
    again = list(getattr(sglang.loader, iterator)(files, **{**options, "prefetch": False}))
    assert {n for n, _ in again} == set(tensors), "outside a model's loading all is read"


def test_nothing_is_prefetched(sglang: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the iterators, and not by the thread that 0.5.20 may start before the model is loaded."""
    files, _ = checkpoint(tmp_path)
    blocks: list[int] = []
    monkeypatch.setattr(sglang.utils, "_get_prefetch_block_size", lambda: blocks.append(1) or 1 << 30)

    def prefetch() -> int:
        blocks.clear()
        handle = sglang.utils._prefetch_all_checkpoints(files)
        for thread in threading.enumerate():
            if "_run_prefetch" in thread.name:
                thread.join()
        if handle is not None:
            handle.wait(10)
            assert handle.done and not handle.failed, "who waits for the prefetch finds it done"
        return len(blocks)

    assert prefetch() == 2 * len(files)  # each a block, and an end
    hooking.put_on(fix.FIX.hooks(situation()))
    assert prefetch() == 0
    list(sglang.loader.safetensors_weights_iterator(files, prefetch=True))
    assert not blocks


def test_loading_that_waited_for_graphs_is_filtered_too(sglang: SimpleNamespace, tmp_path: Path) -> None:
    if not hasattr(sglang.DefaultModelLoader, fix.COMMIT):  # 0.5.17
        assert fix.COMMIT not in " ".join(hook.target for hook in fix.FIX.hooks(situation()))
        return
    files, tensors = checkpoint(tmp_path)
    mine, model = sglang.DefaultModelLoader(), torch.nn.ModuleDict({"a": sglang.layer(1, 2)})

    def commit() -> set[str]:
        mine.commit_model_weights(
            model=model, model_config=SimpleNamespace(dtype=torch.bfloat16), target_device="cpu",
            resolved_sources=(SimpleNamespace(source=None, files=files),), startup_prefetch_active=True,
        )  # fmt: skip
        return set(mine.loaded)

    assert commit() == set(tensors)
    hooking.put_on(fix.FIX.hooks(situation()))
    assert commit() == wanted(tensors, 1, 2) and fix._reading is None


def test_order_is_stock(sglang: SimpleNamespace, tmp_path: Path) -> None:
    files, tensors = checkpoint(tmp_path)
    stock = [n for n, _ in sglang.utils.safetensors_weights_iterator(files)]
    everything = Reading(lambda number: True)
    ours = []
    for file in files:
        with everything.open(file) as shard:
            ours += shard.keys()
    assert ours == stock and everything.skipped == 0
    assert everything.read == sum(t.numel() * t.element_size() for t in tensors.values())


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_by_count_and_by_the_system(
    sglang: SimpleNamespace,
    tmp_path: Path,
    ranks: int,
    caplog: pytest.LogCaptureFixture,
    resident: Callable[[Path], int],
) -> None:
    files, tensors = checkpoint(tmp_path)
    experts = sum(t.numel() * t.element_size() for n, t in tensors.items() if EXPERT.search(n))
    others = sum(t.numel() * t.element_size() for n, t in tensors.items() if not EXPERT.search(n))
    hooking.put_on(fix.FIX.hooks(situation()))
    loader = sglang.DefaultModelLoader()
    for rank in range(ranks):
        for file in files:
            forget(Path(file))
        cold = sum(resident(Path(f)) for f in files)
        with caplog.at_level("INFO"):
            list(loader._get_all_weights(files, torch.nn.ModuleList([sglang.layer(rank, ranks)])))
        mine = fix.reading(torch.nn.ModuleList([sglang.layer(rank, ranks)]))
        assert mine is not None
        for file in files:
            with mine.open(file):
                pass
        assert mine.experts == experts
        assert mine.experts - mine.skipped <= experts * (1 / ranks + 0.02)
        assert mine.read + mine.skipped == experts + others
        assert f"{mine.skipped / 1e6:,.1f} MB" in caplog.text
        if cold == 0:  # the file system can forget pages
            pages = 4096 * 3 * len(tensors)  # each tensor's ends, and headers
            assert sum(resident(Path(f)) for f in files) <= mine.read + pages


def forget(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def resident() -> Callable[[Path], int]:
    """Bytes of a file that are in memory, by the kernel's own account."""
    import ctypes
    import mmap

    libc = ctypes.CDLL(None)

    def count(path: Path) -> int:
        size = path.stat().st_size
        with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as pages:
            first = ctypes.addressof(there := ctypes.c_char.from_buffer(pages))
            flags = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            assert libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(size), flags) == 0
            del there
        return sum(f & 1 for f in flags) * mmap.PAGESIZE

    return count


def test_what_is_skipped_is_not_touched(sglang: SimpleNamespace, tmp_path: Path) -> None:
    """Rank 0 loads from a file whose end, where rank 1's experts lie, is missing."""
    tensors = {f"a.experts.{e}.w1.weight": torch.full((4096,), e, dtype=torch.uint8) for e in range(EXPERTS)}
    safetensors.save_file(tensors, path := tmp_path / "m.safetensors")
    os.truncate(path, path.stat().st_size - 4 * 4096)
    loader = sglang.DefaultModelLoader()
    model = torch.nn.ModuleList([sglang.layer(0, 2)])
    with pytest.raises(Exception):  # noqa: B017  (what safetensors raises differs from version to version)
        list(loader._get_all_weights([str(path)], model))
    hooking.put_on(fix.FIX.hooks(situation()))
    found = dict(loader._get_all_weights([str(path)], model))
    assert {n: int(t[0]) for n, t in found.items()} == {f"a.experts.{e}.w1.weight": e for e in range(4)}
    with pytest.raises(ValueError, match=r"m\.safetensors is cut short in tensor a\.experts\.4"):
        list(loader._get_all_weights([str(path)], torch.nn.ModuleList([sglang.layer(1, 2)])))
    assert fix._reading is None


def test_what_no_name_tells_apart_is_read_whole(sglang: SimpleNamespace) -> None:
    assert fix.reading(torch.nn.Linear(1, 1)) is None
    plain = torch.nn.ModuleDict({"experts": torch.nn.ModuleList([torch.nn.Linear(1, 1)]), "moe": sglang.layer(0, 2)})
    assert fix.reading(plain) is None, "experts that are modules of their own are all here"


def test_layers_that_differ(sglang: SimpleNamespace) -> None:
    """An expert is read if one layer holds it; parameters that want all experts are read of all."""
    first, second = sglang.layer(0, 2), sglang.layer(0, 8)
    second.w13_block_scale = torch.nn.Parameter(torch.zeros(1))
    second.w13_block_scale._sglang_require_global_experts = True
    found = fix.reading(torch.nn.ModuleList([first, second]))
    assert found is not None
    assert [e for e in range(EXPERTS) if found.wants(f"x.experts.{e}.w1.weight", 100)] == [0, 1, 2, 3]
    assert found.wants("x.experts.7.w1.block_scale", 100) and not found.wants("x.experts.7.w1.weight", 100)
    second._has_fused_shared = True
    assert found.wants("x.experts.8.w1.weight", 100), "a shared expert fused behind the routed ones"


def test_places_of_a_location_map(sglang: SimpleNamespace, place: Any) -> None:
    swapped = SimpleNamespace(num_logical_experts=EXPERTS, logical_to_all_physical=lambda layer, e: [EXPERTS - 1 - e])
    place(LOCATION, {"get_global_expert_location_metadata": lambda: swapped})
    found = fix.reading(torch.nn.ModuleList([sglang.layer(0, 2)]))
    assert found is not None
    assert [e for e in range(EXPERTS) if found.wants(f"x.experts.{e}.w1.weight", 100)] == [4, 5, 6, 7]


def test_fault_is_recognised(release: Release) -> None:
    assert fix.FIX.faulty(release.sources)
    loop, indent = "for name in f.keys():", "\n                    "
    read = "yield name, f.get_tensor(name)"
    chosen = f"{loop}{indent}if wanted(name):{indent}    {read}"
    single = release.edited(fix.UTILS, f"{loop}{indent}{read}", chosen)
    assert fix.FIX.faulty(single.sources), "the other iterator still reads all"
    both = single.edited(fix.UTILS, "for k in f.keys()}", "for k in f.keys() if wanted(k)}")
    assert not fix.FIX.faulty(both.sources)
    with pytest.raises(LookupError, match="safe_open"):
        fix.FIX.faulty(release.edited(fix.UTILS, "safetensors.safe_open(", "other_open(").sources)
    for module in (fix.LOADER, fix.UTILS, fix.LAYER) if release.version == "0.5.23" else (fix.UTILS,):
        with pytest.raises(LookupError, match=module):
            fix.FIX.faulty(release.without(module).sources)


def test_when_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(fix.SETTING, raising=False)
    need = fix.FIX.need(situation())
    assert need is not None and not need.required
    for changes in ({"ep_size": 1}, {"expert_places_fixed": False}, {"config": {}}):
        assert fix.FIX.need(situation(**changes)) is None
    for text, on in (("off", False), ("0", False), ("on", True), ("1", True), ("8", True)):
        monkeypatch.setenv(fix.SETTING, text)
        assert (fix.FIX.need(situation()) is not None) == on
    monkeypatch.setenv(fix.SETTING, "896")
    with pytest.raises(UsageError, match=r"896.*8 experts"):
        fix.FIX.need(situation())
    assert fix.FIX.need(situation(is_draft=True)) is not None
    for text in ("yes", "-3", "8.0", ""):
        with pytest.raises(ValueError, match="number of experts"):
            fix.FIX.settings[fix.SETTING](text)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x08\0\0\0\0\0\0\0{}", (1 << 60).to_bytes(8, "little") + b"{}", b"\x02\0\0\0\0\0\0\0[]"],
)
def test_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.safetensors is no safetensors file"):
        Shard(str(path), Reading(lambda number: True))


def test_a_type_of_the_future_is_left_to_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors.save_file({"a": torch.arange(40, dtype=torch.int16)}, path := tmp_path / "m.safetensors")
    monkeypatch.setattr("truecast.engines.sglang.expert_shards._TYPES", {})
    with Reading(lambda number: True).open(str(path)) as shard:
        assert torch.equal(shard.get_tensor("a"), torch.arange(40, dtype=torch.int16))


def test_header_like_the_published_one(tmp_path: Path) -> None:
    """Metadata and empty tensors are no trouble."""
    header = {"__metadata__": {"format": "pt"}, "e": {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    (path := tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with Reading(lambda number: True).open(str(path)) as shard:
        assert shard.get_tensor("e").shape == (0, 4)
