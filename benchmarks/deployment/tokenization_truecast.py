"""Kimi-K3's tokenizer and chat format for SGLang, by truecast: remote code of a checkpoint that ships none.

It lies beside tokenizer_config.json, whose ``auto_map`` names it; truecast must be importable. ``chat.py`` copies it.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedTokenizer

from truecast.models.kimi_k3.chat import render
from truecast.models.kimi_k3.tokenizer import K3Tokenizer, open_tokenizer


class TruecastTokenizer(PreTrainedTokenizer):
    """Text, ids and conversations, as truecast has them."""

    vocab_files_names: ClassVar[dict[str, str]] = {"vocab_file": "tiktoken.model"}
    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file: str, **options: Any) -> None:
        self._own: K3Tokenizer = open_tokenizer(Path(vocab_file).parent)
        self._spelled = {number: name for name, number in self._own.specials.items()}
        self._markers = re.compile("(" + "|".join(map(re.escape, self._own.specials)) + ")")
        options.pop("added_tokens_decoder", None)
        super().__init__(**options)

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return self._own.vocab

    def __len__(self) -> int:
        return self._own.vocab

    def get_vocab(self) -> dict[str, int]:
        """Spelling to id; bytes as Latin-1."""
        return {self._convert_id_to_token(i): i for i in range(self._own.vocab)}

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [self._convert_id_to_token(i) for i in self._own.encode(text)]

    def _convert_id_to_token(self, index: int) -> str:
        return self._spelled.get(index) or (self._own.token_bytes(index).decode("latin-1") or f"<unused {index}>")

    def _convert_token_to_id(self, token: str) -> int:
        if token in self._own.specials:
            return self._own.specials[token]
        return self._own.encode(token.encode("latin-1").decode(errors="replace"))[0]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """One spelling or a list of them."""
        return (
            self._convert_token_to_id(tokens) if isinstance(tokens, str) else [*map(self._convert_token_to_id, tokens)]
        )

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The spellings one after another."""
        return "".join(tokens)

    def encode(self, text: Any, *_: Any, **__: Any) -> list[int]:
        """Spelled markers are markers here, as in the published tokenizer; conversations do not pass through this."""
        pieces = self._markers.split(text)
        return [
            i for p in pieces for i in ([self._own.specials[p]] if p in self._own.specials else self._own.encode(p))
        ]

    def init_xgrammar(self) -> Any:
        """SGLang asks this of a tokenizer that xgrammar does not know."""
        xgrammar = importlib.import_module("xgrammar")  # where Transformers alone loads this, it need not be there
        vocab = [
            (self._spelled[i].encode() if i in self._spelled else self._own.token_bytes(i)) for i in range(len(self))
        ]
        stops = [self._own.special("<|end_of_msg|>")]
        info = xgrammar.TokenizerInfo(
            vocab, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(self), stop_token_ids=stops
        )
        return info, stops

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> Any:
        """Text of one id, of a list of ids, or of a list of lists."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if ids and isinstance(ids[0], list):
            return [self.decode(row, skip_special_tokens) for row in ids]
        text, run = [], []
        for number in ids:
            if number in self._spelled:
                text += [self._own.decode(run), "" if skip_special_tokens else self._spelled[number]]
                run = []
            else:
                run.append(number)
        return "".join([*text, self._own.decode(run)])

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False, **_: Any) -> list[str]:
        """Texts of a list of lists."""
        return [self.decode(row, skip_special_tokens) for row in sequences]

    def apply_chat_template(
        self, conversation: Any, tools: Any = None, thinking: bool = True, thinking_effort: str | None = "max",
        tool_choice: str | None = None, response_format: Any = None, add_generation_prompt: bool = True, **_: Any,
    ) -> list[int]:  # fmt: skip
        """Ids. SGLang hands ``reasoning_effort`` over as ``thinking_effort``."""
        return render(
            self._own, conversation, tools, thinking=thinking, effort=thinking_effort, tool_choice=tool_choice,
            response_format=response_format, add_generation_prompt=add_generation_prompt,
        )  # fmt: skip
