from __future__ import annotations

from pathlib import Path

import pytest

from truecast.bench.prompts import diversity, read_prompts, request_bodies
from truecast.errors import InputError


def written(folder: Path, text: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text(text)
    return path


def test_a_line_is_a_prompt_or_messages_and_keeps_its_other_keys(tmp_path: Path) -> None:
    text = '{"prompt": "a"}\n\n{"messages": [{"role": "user", "content": "b"}], "tools": [], "max_tokens": 7}\n'
    first, second = request_bodies(
        read_prompts(written(tmp_path, text)), {"temperature": 1.0, "max_tokens": 9}, "m", per_chunk=True
    )
    assert first == {
        "messages": [{"role": "user", "content": "a"}],
        "model": "m",
        "temperature": 1.0,
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    assert second["max_tokens"] == 7, "the prompt's own"
    assert second["tools"] == []


def test_only_the_messages_make_prompts_distinct(tmp_path: Path) -> None:
    prompts = read_prompts(written(tmp_path, '{"prompt": "a"}\n{"prompt": "a", "seed": 1}\n{"prompt": "b"}'))
    assert diversity(prompts) == {"prompts": 3, "distinct": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no prompt"),
        ("\n \n", "holds no prompt"),
        ('{"prompt": "a"}\nnot json', "line 2: is no JSON"),
        ('["a"]', "line 1: is no JSON object"),
        ('{"prompt": 3}', "prompt is no text"),
        ('{"question": "a"}', "neither a prompt nor messages"),
        ('{"messages": ["a"]}', "neither a prompt nor messages"),
        ('{"prompt": "a", "stream": false}', "sets stream"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_prompts(written(tmp_path, text))
