"""A small vocabulary in Kimi-K3's form: 256 bytes, some merges, and K3's named specials above them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

NAMED = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|end_of_msg|>",
    3: "<|open|>",
    4: "<|close|>",
    5: "<|sep|>",
    6: "[start_header_id]",
    7: "[end_header_id]",
    9: "[EOT]",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    65: "<osagent_mode>",
    254: "[UNK]",
    255: "[PAD]",
}
MERGES = (
    b"th", b"the", b" t", b" the", b"me", b"ss", b"mess", b"age", b"ag", b"message", b"think", b"thin", b"er", b"ro",
    b"le", b"role", b' role', b'="', b"us", b"user", b"res", b"po", b"nse", b"ponse", b"response", b"<|", b"|>", b"open",
    b"\xe4\xb8", b"\xf0\x9f", b"00", b"12", b"  ", b"\n\n",
)  # fmt: skip


def ranks() -> dict[bytes, int]:
    tokens = [bytes([b]) for b in range(256)] + list(MERGES)
    return {token: rank for rank, token in enumerate(tokens)}


def write_tokenizer(folder: Path) -> int:
    """Write both files; returns the vocabulary's size."""
    table = ranks()
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in table.items())
    (folder / "tiktoken.model").write_text("".join(lines))
    entries = {
        str(len(table) + slot): {"content": name, "special": slot not in (3, 4, 5)} for slot, name in NAMED.items()
    }
    config = {"added_tokens_decoder": entries, "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(table) + 256
