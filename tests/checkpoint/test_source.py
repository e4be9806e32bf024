from __future__ import annotations

import functools
import http.server
import json
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.checkpoint.making import json_file, tensor_file, two_shards, write_checkpoint
from truecast.checkpoint.files import stream
from truecast.checkpoint.source import Checkpoint, open_checkpoint, open_shards
from truecast.errors import InputError

ONE, TWO = two_shards()
INDEX = "model.safetensors.index.json"


def contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Every tensor's bytes, read through the checkpoint's own opener."""
    result = {}
    for name, tensor in checkpoint.tensors.items():
        file = checkpoint.opener(tensor.file)
        try:
            result[name] = bytes(file.read(tensor.start, tensor.end))
            assert b"".join(bytes(p) for p in stream(file, tensor.start, tensor.end)) == result[name]
        finally:
            file.close()
    return result


EXPECTED = {name: data for tensors in two_shards().values() for name, (_, _, data) in tensors.items()}


def refuses(location: str | os.PathLike[str], *words: str) -> InputError:
    with pytest.raises(InputError) as caught:
        open_checkpoint(location)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.exit_code == 2
    return caught.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_checkpoint(tmp_path / "model", two_shards())
    (folder / "config.json").write_text('{"model_type": "kimi_k3"}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


# ---- where a checkpoint can lie --------------------------------------------------------------------------------------


def test_a_folder(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert contents(checkpoint) == EXPECTED
    assert list(checkpoint.tensors) == ["a.weight", "b.weight", "c.weight", "d.weight"]
    assert checkpoint.config == {"model_type": "kimi_k3"}
    assert checkpoint.total_bytes == sum(map(len, EXPECTED.values()))
    assert checkpoint.shards == {n: (folder / n).stat().st_size for n in (ONE, TWO)}
    assert checkpoint.auxiliary == {"config.json": 25, "tokenizer.json": 2}


def test_a_relative_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert contents(open_checkpoint("model")) == EXPECTED


def test_a_single_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(tensor_file(two_shards()[ONE]))
    (tmp_path / "other.safetensors").write_bytes(b"not looked at")
    checkpoint = open_checkpoint(path)
    assert contents(checkpoint) == {n: EXPECTED[n] for n in ("a.weight", "b.weight")}
    assert checkpoint.config == {}
    assert checkpoint.auxiliary == {}
    assert list(checkpoint.stamps()) == ["x.safetensors"]


def test_a_folder_with_one_shard_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(tensor_file(two_shards()[ONE]))
    assert open_checkpoint(tmp_path).index is None


def test_a_hub_cache_is_a_farm_of_symlinks(folder: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for i, file in enumerate(sorted(folder.iterdir())):
        (blobs / f"blob{i}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/blob{i}")
    linked, plain = open_checkpoint(snapshot), open_checkpoint(folder)
    assert contents(linked) == EXPECTED
    assert linked.auxiliary == plain.auxiliary
    assert linked.fingerprint() == plain.fingerprint()


def test_a_memory_url(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    for file in folder.iterdir():
        memory.pipe_file(f"/source-test/{file.name}", file.read_bytes())
    try:
        checkpoint = open_checkpoint("memory://source-test")
        assert contents(checkpoint) == EXPECTED
        assert checkpoint.fingerprint() == open_checkpoint(folder).fingerprint()
        assert checkpoint.auxiliary == open_checkpoint(folder).auxiliary
        assert checkpoint.stamps() == {}
        single = open_checkpoint(f"memory://source-test/{ONE}")
        assert set(contents(single)) == {"a.weight", "b.weight"}
        memory.pipe_file(f"/source-test/{TWO}", b"")
        refuses("memory://source-test", TWO, "too few")
    finally:
        memory.rm("/source-test", recursive=True)


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Python's file server, which lacks ranges, with ranges. ``failing`` maps a file name to a status to answer with."""

    protocol_version = "HTTP/1.1"
    ranges = True
    failing: ClassVar[dict[str, int]] = {}
    served: ClassVar[list[tuple[str, int]]] = []

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[-1]
        if name in self.failing:
            self.send_error(self.failing[name])
            return
        path = Path(self.translate_path(self.path))
        if path.is_dir() or not path.exists():
            super().do_GET()
            return
        data, status = path.read_bytes(), 200
        header = self.headers.get("Range")
        if header and self.ranges:
            start, _, end = header.removeprefix("bytes=").partition("-")
            total, data, status = len(data), data[int(start) : int(end) + 1], 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(data) - 1}/{total}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.served.append((name, len(data)))

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[str, type[RangeHandler]]]:
    pytest.importorskip("aiohttp", reason="fsspec reads http through aiohttp")

    class Handler(RangeHandler):
        failing: ClassVar[dict[str, int]] = {}
        served: ClassVar[list[tuple[str, int]]] = []

    handler = functools.partial(Handler, directory=str(folder.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}/model/", Handler
        httpd.shutdown()
        thread.join()


def test_an_http_server(server: tuple[str, type[RangeHandler]], folder: Path) -> None:
    url, _ = server
    checkpoint = open_checkpoint(url)
    assert contents(checkpoint) == EXPECTED
    assert checkpoint.config == {"model_type": "kimi_k3"}
    assert checkpoint.fingerprint() == open_checkpoint(folder).fingerprint()
    assert set(contents(open_checkpoint(url + TWO))) == {"c.weight", "d.weight"}


def test_over_http_only_headers_are_read(server: tuple[str, type[RangeHandler]], folder: Path) -> None:
    big = {"big": ("U8", [1 << 20], bytes(1 << 20))}
    write_checkpoint(folder, {ONE: big}, {"big": ONE})
    (folder / TWO).unlink()
    url, handler = server
    open_checkpoint(url)
    assert sum(n for name, n in handler.served if name == ONE) < 1000


def test_an_http_server_without_ranges_is_refused(server: tuple[str, type[RangeHandler]]) -> None:
    url, handler = server
    handler.ranges = False
    refuses(url, ONE, "range 0..8 gave")


@pytest.mark.parametrize("status", [403, 404, 500, 503])
@pytest.mark.parametrize("name", [ONE, INDEX, "config.json"])
def test_an_http_server_that_fails(server: tuple[str, type[RangeHandler]], name: str, status: int) -> None:
    url, handler = server
    handler.failing[name] = status
    refuses(url, name)


def test_an_http_server_that_is_not_there(server: tuple[str, type[RangeHandler]]) -> None:
    url, _ = server
    refuses(url.replace("/model/", "/none/"))
    refuses("http://127.0.0.1:1/model/", "127.0.0.1:1")


@pytest.mark.parametrize("url", ["nosuchprotocol://x/y", "memory://nothing-here", "file:///nothing/here"])
def test_urls_that_lead_nowhere(url: str) -> None:
    refuses(url, url)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    refuses(tmp_path / "none", "no such file")
    refuses(
        "moonshotai/Kimi-K3", "no such file or folder", "for the Hub: hf://moonshotai/Kimi-K3, or download it first"
    )
    (tmp_path / "x.bin").write_bytes(b"")
    refuses(tmp_path / "x.bin", "neither a folder nor a .safetensors file")


# ---- index and headers -----------------------------------------------------------------------------------------------

WHERE = {"a.weight": ONE, "b.weight": ONE, "c.weight": TWO, "d.weight": TWO}


@pytest.mark.parametrize(
    "shard",
    [
        "../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..\\x.safetensors", "x\0.safetensors",
        "./" + ONE, "pytorch_model.bin", "config.json", "", None, 3, [ONE], {"a": ONE},
    ],
)  # fmt: skip
def test_weight_map_may_name_nothing_but_a_shard_of_the_folder(tmp_path: Path, shard: Any) -> None:
    write_checkpoint(tmp_path / "m", two_shards(), WHERE | {"a.weight": shard})
    (tmp_path / "x.safetensors").write_bytes(tensor_file(two_shards()[ONE]))
    refuses(tmp_path / "m", INDEX, "a.weight", "no shard of this folder")


def test_index_names_a_tensor_that_no_header_has(tmp_path: Path) -> None:
    refuses(write_checkpoint(tmp_path, two_shards(), WHERE | {"e.weight": ONE}), INDEX, "e.weight", ONE)


def test_a_header_has_a_tensor_that_the_index_does_not_name(tmp_path: Path) -> None:
    weight_map = {n: s for n, s in WHERE.items() if n != "d.weight"}
    refuses(write_checkpoint(tmp_path, two_shards(), weight_map), "d.weight", TWO, "the index does not")


def test_index_sends_a_tensor_to_the_wrong_shard(tmp_path: Path) -> None:
    refuses(write_checkpoint(tmp_path, two_shards(), WHERE | {"a.weight": TWO}), "a.weight", ONE, TWO)


def test_a_missing_shard(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, two_shards()) / TWO).unlink()
    refuses(tmp_path, TWO, "missing", "finish the download")


def test_a_stray_shard(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, two_shards())
    (tmp_path / "old.safetensors").write_bytes(tensor_file({"z": ("U8", [1], b"z")}))
    refuses(tmp_path, "old.safetensors", "does not name it")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    shards = two_shards()
    shards[TWO]["a.weight"] = shards[ONE]["a.weight"]
    refuses(write_checkpoint(tmp_path, shards, WHERE), "a.weight", ONE, TWO, "stale")


def test_several_shards_without_an_index(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, two_shards()) / INDEX).unlink()
    refuses(tmp_path, "2 shards but no index")


def test_no_shard_at_all(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    refuses(tmp_path, "no .safetensors file")


def test_a_truncated_shard_is_named_with_its_folder(folder: Path) -> None:
    path = folder / TWO
    path.write_bytes(path.read_bytes()[:-1])
    refuses(folder, str(path), "truncated")


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff", "{}", '{"weight_map": {}}', '{"weight_map": []}', "[" * 99999])
def test_an_index_that_is_none(folder: Path, text: str) -> None:
    (folder / INDEX).write_bytes(text.encode("latin-1"))
    refuses(folder, INDEX)


def test_an_index_by_another_name(folder: Path) -> None:
    (folder / INDEX).rename(folder / "diffusion.safetensors.index.json")
    assert contents(open_checkpoint(folder)) == EXPECTED


def test_all_faults_can_be_collected(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, two_shards(), WHERE | {"e.weight": ONE, "f": "gone.safetensors"})
    (folder / "old.safetensors").write_bytes(b"")
    (folder / TWO).write_bytes(b"short")
    faults: list[InputError] = []
    checkpoint = open_checkpoint(folder, faults.append)
    text = "\n".join(map(str, faults))
    assert len(faults) == 4
    for word in ("old.safetensors", "gone.safetensors", TWO, "e.weight"):
        assert word in text
    assert set(checkpoint.tensors) == {"a.weight", "b.weight"}


# ---- other files -----------------------------------------------------------------------------------------------------


def test_a_dangling_shard(folder: Path) -> None:
    (folder / TWO).unlink()
    (folder / TWO).symlink_to("../blobs/gone")
    refuses(folder, TWO, "cannot open")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "sub/chat.jinja"])
def test_a_dangling_auxiliary_file(folder: Path, name: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to("../blobs/gone")
    refuses(folder, name, "dangling symlink")


def test_a_folder_in_place_of_a_shard(folder: Path) -> None:
    (folder / TWO).unlink()
    (folder / TWO).symlink_to(folder.parent, target_is_directory=True)
    refuses(folder, TWO, "no regular file")


def test_a_pipe_in_place_of_a_shard_does_not_hang(folder: Path) -> None:
    (folder / TWO).unlink()
    os.mkfifo(folder.parent / "pipe")
    (folder / TWO).symlink_to(folder.parent / "pipe")
    refuses(folder, TWO, "no regular file")


def test_a_huge_config_is_not_read(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(10 << 30)
    refuses(folder, "config.json", str(10 << 30))


@pytest.mark.parametrize("text", ["[]", "{", "\xff\xfe", '{"a": ' * 99999, '"kimi"', "null"])
def test_a_config_that_is_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    refuses(folder, "config.json")


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os._exit, (99,))


def test_a_pickle_beside_the_weights_is_neither_carried_nor_loaded(folder: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.pt", "old.pth", "state.pkl", "model.ckpt", "model.gguf"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    (folder / "sub").mkdir()
    (folder / "sub" / "extra.bin").write_bytes(pickle.dumps(Bomb()))
    assert set(open_checkpoint(folder).auxiliary) == {"config.json", "tokenizer.json"}


def test_auxiliary_files_of_subfolders_are_found_and_tool_folders_skipped(folder: Path) -> None:
    for name in (".git", ".cache", ".huggingface", ".truecast", "__pycache__"):
        (folder / name).mkdir()
        (folder / name / "inside.txt").write_text("no")
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "deep" / "modeling.py").write_text("yes")
    (folder / "sub" / ".cache").mkdir()
    (folder / "sub" / ".cache" / "inside.txt").write_text("no")
    for name in ("truecast.json", ".gitattributes", "tokenizer.json.partial", "sub/other.safetensors"):
        (folder / name).write_text("no")
    assert set(open_checkpoint(folder).auxiliary) == {"config.json", "tokenizer.json", "sub/deep/modeling.py"}


def test_remote_auxiliary_files_follow_the_same_rules(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name in ("pytorch_model.bin", "truecast.json", "vocab.txt"):
        (folder / name).write_text("x")
    for file in folder.iterdir():
        memory.pipe_file(f"/aux-test/{file.name}", file.read_bytes())
    try:
        assert open_checkpoint("memory://aux-test").auxiliary == open_checkpoint(folder).auxiliary
    finally:
        memory.rm("/aux-test", recursive=True)


# ---- identity --------------------------------------------------------------------------------------------------------


def test_fingerprint_follows_headers_and_config_but_not_the_place(folder: Path, tmp_path: Path) -> None:
    before = open_checkpoint(folder).fingerprint()
    moved = folder.rename(tmp_path / "elsewhere")
    assert open_checkpoint(moved).fingerprint() == before
    (moved / "config.json").write_text('{"model_type": "gpt_oss"}')
    assert open_checkpoint(moved).fingerprint() != before
    (moved / "config.json").write_text('{"model_type": "kimi_k3"}')
    shards = two_shards()
    shards[ONE]["a.weight"] = ("I32", [2, 2], bytes(range(16)))
    write_checkpoint(moved, shards)
    assert open_checkpoint(moved).fingerprint() != before


def test_stamps_notice_an_edit_that_leaves_the_header_alone(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    before = checkpoint.stamps()
    path = folder / ONE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    again = open_checkpoint(folder)
    assert again.fingerprint() == checkpoint.fingerprint()
    assert again.stamps()[ONE] != before[ONE]
    assert again.stamps()[TWO] == before[TWO]


def test_a_file_that_shrinks_while_it_is_read(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    tensor = checkpoint.tensors["c.weight"]
    os.truncate(folder / TWO, tensor.start + 3)
    file = checkpoint.opener(TWO)
    try:
        with pytest.raises(InputError, match="ends at byte"):
            file.read(tensor.start, tensor.end)
    finally:
        file.close()


def test_open_shards_reads_only_those(folder: Path) -> None:
    (folder / ONE).write_bytes(json_file({"broken": 1}))
    assert set(open_shards(folder, [TWO]).tensors) == {"c.weight", "d.weight"}
    with pytest.raises(InputError):
        open_shards(folder, [ONE])


def test_total_size_in_the_index_is_not_trusted(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["metadata"]["total_size"] = 5
    (folder / INDEX).write_text(json.dumps(index))
    assert open_checkpoint(folder).total_bytes == 29


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_other_weights_of_the_same_shapes_have_another_sample(tmp_path: Path, size: int) -> None:
    """Small shards are read whole; of large ones pieces, the last bytes among them."""
    rng = np.random.default_rng(0)
    one, copy, other = (tmp_path / name for name in ("one", "copy", "other"))
    values = rng.standard_normal(size // 4).astype(np.float32)
    for folder, given in ((one, values), (copy, values), (other, values * np.float32(1.001))):
        folder.mkdir()
        save_file({"w": given}, folder / "model.safetensors")
    samples = [open_checkpoint(folder).weights_sha256() for folder in (one, copy, other)]
    assert samples[0] == samples[1] != samples[2]
    assert open_checkpoint(one).fingerprint() == open_checkpoint(other).fingerprint()
    values[-1] += 1
    save_file({"w": values}, copy / "model.safetensors")
    assert open_checkpoint(copy).weights_sha256() != samples[0]
