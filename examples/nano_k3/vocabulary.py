"""The vocabulary: ``python -m examples.nano_k3.vocabulary WORK OUT`` learns 1,792 byte-pair ranks and writes them.

K3's word pattern is kept, which puts up to three digits into one word; here no merge may hold two digits, so that every
number is written digit by digit. A small model can then learn to add column by column; with merged digits it would
have to learn a thousand symbols first. The ids above the ranks are laid out as K3's.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from examples.nano_k3.text import read
from truecast.models.kimi_k3.tokenizer import WORDS

RANKS = 1792
SPECIAL_SLOTS = 256

SPECIALS = {
    0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>", 6: "[start_header_id]",
    7: "[end_header_id]", 9: "[EOT]", 18: "<|media_begin|>", 19: "<|media_content|>", 20: "<|media_end|>",
    21: "<|media_pad|>", 65: "<osagent_mode>", 254: "[UNK]", 255: "[PAD]",
}  # fmt: skip
"""Place above the ranks -> spelling."""

_NOT_SPECIAL = frozenset(("<|open|>", "<|close|>", "<|sep|>"))
"""K3's own file marks these three as not special."""


def learn(texts: Iterable[str], ranks: int = RANKS) -> dict[bytes, int]:
    """Byte-pair ranks of the texts: the 256 bytes, then merges in the order learned."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=ranks, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    learned = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    letters = _byte_letters()
    merged = [token for token, _ in learned if len(token) > 1]
    table = [bytes([b]) for b in range(256)] + [bytes(letters[c] for c in token) for token in merged]
    return {token: rank for rank, token in enumerate(table[:ranks])}


def _byte_letters() -> dict[str, int]:
    """The printable letter that stands for each byte in byte-level vocabularies -> the byte.

    Printable Latin-1 bytes stand for themselves, the others in order for the letters from U+0100 on.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(others)}


def ranks_file(ranks: dict[bytes, int]) -> bytes:
    """``tiktoken.model``: a line ``base64(token) rank`` each."""
    return b"".join(base64.b64encode(token) + f" {rank}\n".encode() for token, rank in ranks.items())


def config_file(base: int = RANKS) -> bytes:
    """``tokenizer_config.json``: names of the special ids."""
    entries = {
        str(base + place): {
            "content": spelling,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": spelling not in _NOT_SPECIAL,
        }
        for place, spelling in SPECIALS.items()
    }
    document = {
        "added_tokens_decoder": entries,
        "additional_special_tokens": [s for s in SPECIALS.values() if s.startswith("<|") and s not in _NOT_SPECIAL],
        "bos_token": "[BOS]",
        "clean_up_tokenization_spaces": False,
        "eos_token": "[EOS]",
        "model_max_length": 4096,
        "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer",
        "unk_token": "[UNK]",
    }
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def main() -> int:
    """Learn from the training text and 20,000 dialogues; write the two files."""
    from examples.nano_k3.dialogue import spoken

    parser = argparse.ArgumentParser(prog="python -m examples.nano_k3.vocabulary", description=__doc__)
    parser.add_argument("work", type=Path, help="folder with train.jsonl.xz")
    parser.add_argument("out", type=Path, help="folder for tiktoken.model and tokenizer_config.json")
    given = parser.parse_args()
    texts = [document["text"] for document in read(given.work / "train.jsonl.xz")] + list(spoken(seed=1, count=20_000))
    ranks = learn(texts)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "tiktoken.model").write_bytes(ranks_file(ranks))
    (given.out / "tokenizer_config.json").write_bytes(config_file(len(ranks)))
    print(f"{len(ranks)} ranks; the longest are {sorted(ranks, key=len)[-8:]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
