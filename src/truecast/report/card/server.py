"""The server as it described itself in a record: engine, version, model, and the settings that a reader asks for."""

from __future__ import annotations

from collections.abc import Iterator

from truecast.report.card.content import Inline, Words, joined
from truecast.report.card.record import Record

_SETTINGS = (
    "gpu",
    "device",
    "tp_size",
    "ep_size",
    "dp_size",
    "nnodes",
    "quantization",
    "kv_cache_dtype",
    "moe_runner_backend",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_algorithm",
    "disable_radix_cache",
    "max_running_requests",
)
"""Names of SGLang's arguments. A load test's record has them so, those of audits and evals as ``--tp-size``."""
_FORMATS = {"w4afp8": "w4afp8", "modelopt_fp4": "nvfp4", "nvfp4": "nvfp4", "mxfp4": "mxfp4"}
"""What a server's ``quantization`` says of the checkpoint's format, where it says that."""


def server_words(record: Record, key: str) -> Words:
    """``sglang 0.5.20, model K3; tp_size 4, ep_size 4``: what stands under ``key``."""
    record.object(key)
    engine = record.get(key, "engine")
    known = isinstance(engine, str) and engine != "unknown" and engine
    words: list[Inline] = [record.text(key, "engine") if known else "a server that does not name its engine"]
    if record.get(key, "version") is not None:
        words += [" ", record.text(key, "version")]
    if record.get(key, "model") is not None:
        name = record.string(key, "model")
        short = name.rstrip("/").rpartition("/")[2] if name.startswith(("/", "~", ".")) else name
        how = "" if short == name else "the part behind the last slash"
        words += [", model ", record.derived(short or name, name if not how else short, how, key, "model", code=True)]
    settings = list(_settings(record, key))
    return (*words, *(("; as it states, ", *joined(settings)) if settings else ()))


def check_format(record: Record, key: str, target: str) -> None:
    """Raises: InputError where the server says that it quantizes otherwise than this checkpoint is."""
    name = _spelled(record, key, "quantization")
    said = record.get(key, "arguments", name)
    known = _FORMATS.get(said) if isinstance(said, str) else None
    if known is not None and known != target:
        raise record.bad(f"is {said!r:.40}, and this checkpoint is {target}", key, "arguments", name)


def _settings(record: Record, key: str) -> Iterator[Words]:
    for name in _SETTINGS:
        at = (key, "arguments", _spelled(record, key, name))
        value = record.get(*at)
        if value == "" and at[-1] != name:  # a flag without a value
            yield f"{name} ", record.derived("yes", value, "a flag that was set", *at)
        if value is None or value == "" or isinstance(value, (dict, list)):
            continue
        yield f"{name} ", record.scalar(*at)


def _spelled(record: Record, key: str, name: str) -> str:
    """The key under which the record has an argument: ``tp_size`` or ``--tp-size``."""
    flag = f"--{name.replace('_', '-')}"
    return name if record.get(key, "arguments", name) is not None else flag
