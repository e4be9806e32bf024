"""Reading a safetensors shard without the experts that live on other ranks.

:class:`Shard` stands in for ``safetensors.safe_open`` inside SGLang's own iterators: same ``keys`` and ``get_tensor``, fewer
tensors. It reads with ``pread``, not through a memory map: a page fault in a map makes the kernel read ahead by megabytes,
so that neighbours of a wanted tensor come along (16 MiB for a tensor of 1 MiB, on the disk where this was measured).
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import torch

EXPERT = re.compile(r"\.experts\.(\d+)\.(?:.+\.)?([^.]+)$")
"""One expert's tensor: number, last part of the name. Stacked experts and ``shared_experts`` do not match."""

SMALL = 16
"""Tensors of at most so many elements are always read: a scale of a whole matrix may be reduced over all experts."""

_AHEAD = 32 << 20  # bytes that storage is asked for before they are read, in steps the kernel takes whole
_STEP = 1 << 20
_LONGEST_HEADER = 100_000_000
_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


class Reading:
    """What one rank reads of one model, and how many bytes that was.

    ``local(number)`` says whether any layer here holds expert ``number``. Last parts of names in ``kept`` are read of
    every expert. ``read``, ``skipped`` and ``experts`` (all bytes of experts, read or not) are in bytes.
    """

    def __init__(self, local: Callable[[int], bool], kept: Iterable[str] = ()):
        self.local = local
        self.kept = frozenset(kept)
        self.read = self.skipped = self.experts = 0
        self._answers: dict[int, bool] = {}
        self._lock = threading.Lock()

    def wants(self, name: str, elements: int) -> bool:
        """Whether the tensor is to be read."""
        if (match := EXPERT.search(name)) is None or elements <= SMALL or match[2] in self.kept:
            return True
        number = int(match[1])
        if number not in self._answers:
            self._answers[number] = self.local(number)
        return self._answers[number]

    def count(self, read: int, skipped: int, experts: int) -> None:
        """Add one shard's bytes."""
        with self._lock:
            self.read += read
            self.skipped += skipped
            self.experts += experts

    def open(self, path: str, framework: str = "pt", device: str = "cpu") -> Shard:
        """What stands in for ``safetensors.safe_open``."""
        assert (framework, device) == ("pt", "cpu"), (framework, device)
        return Shard(path, self)


class Shard:
    """One open shard, seen through a :class:`Reading`.

    Raises: ValueError naming the file if it is no safetensors file or is cut short where it is read.
    """

    def __init__(self, path: str, reading: Reading):
        self._path, self._reading = path, reading
        self._file = os.open(path, os.O_RDONLY)
        try:
            self._header()
        except BaseException:
            os.close(self._file)
            raise

    def _header(self) -> None:
        length = int.from_bytes(os.pread(self._file, 8, 0), "little")
        if not 2 <= length <= min(_LONGEST_HEADER, os.fstat(self._file).st_size - 8):
            raise ValueError(f"{self._path} is no safetensors file: its header would have {length} bytes")
        try:
            header = json.loads(os.pread(self._file, length, 8))
            header.pop("__metadata__", None)
            entries = [(e["data_offsets"][0], e["data_offsets"][1], n, e) for n, e in header.items()]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{self._path} is no safetensors file: its header cannot be read ({error})") from None
        self._start = 8 + length
        self._entries: dict[str, dict[str, Any]] = {}
        read = skipped = experts = 0
        for begin, end, name, entry in entries:
            elements = 1
            for n in entry["shape"]:
                elements *= n
            experts += (end - begin) if EXPERT.search(name) else 0
            if self._reading.wants(name, elements):
                self._entries[name] = entry
                read += end - begin
            else:
                skipped += end - begin
        self._reading.count(read, skipped, experts)
        if skipped:  # no reading ahead of the kernel's own: it would bring what was left out
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self._to_ask = iter(self.keys())
        self._asked = self._filled = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def keys(self) -> list[str]:
        """Names of the tensors to read, sorted as safetensors sorts them."""
        return sorted(self._entries)

    def get_tensor(self, name: str) -> torch.Tensor:
        """The tensor, in memory of its own."""
        import torch

        entry = self._entries[name]
        dtype = getattr(torch, _TYPES.get(entry["dtype"], ""), None)
        if dtype is None:  # a type newer than this table
            import safetensors

            with safetensors.safe_open(self._path, framework="pt", device="cpu") as file:
                return file.get_tensor(name)  # type: ignore[no-any-return]
        begin, end = entry["data_offsets"]
        raw = torch.empty(end - begin, dtype=torch.uint8)
        self._fill(raw.numpy().data, self._start + begin, name)
        return raw.view(dtype).reshape(entry["shape"])

    def _ask(self) -> None:
        """Have storage read on in the order of :meth:`keys`, :data:`_AHEAD` bytes beyond what was taken."""
        while self._asked < self._filled + _AHEAD and (name := next(self._to_ask, None)) is not None:
            begin, end = self._entries[name]["data_offsets"]
            for start in range(begin, end, _STEP):
                length = min(_STEP, end - start)
                os.posix_fadvise(self._file, self._start + start, length, os.POSIX_FADV_WILLNEED)
            self._asked += end - begin

    def _fill(self, into: memoryview, offset: int, name: str) -> None:
        self._ask()
        done = 0
        while done < len(into):
            if not (got := os.preadv(self._file, [into[done:]], offset + done)):
                raise ValueError(f"{self._path} is cut short in tensor {name}: fetch the file again")
            done += got
        self._filled += done
