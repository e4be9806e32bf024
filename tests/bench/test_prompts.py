from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from truecast.bench.prompts import read_prompts, request_bodies
from truecast.errors import InputError


def written(folder: Path, text: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text(text)
    return path


def test_a_line_is_a_prompt_or_messages_and_keeps_its_other_keys(tmp_path: Path) -> None:
    text = '{"prompt": "a"}\n\n{"messages": [{"role": "user", "content": "b"}], "tools": [], "max_tokens": 7}\n'
    first, second = request_bodies(
        read_prompts(written(tmp_path, text)).bodies, {"temperature": 1.0, "max_tokens": 9}, "m", per_chunk=True
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
    about = prompts.document()
    assert (about["prompts"], about["distinct"]) == (3, 2)


def test_the_record_holds_the_hash_of_the_files_bytes(tmp_path: Path) -> None:
    """By which anybody can say with sha256sum whether this was the file."""
    path = written(tmp_path, '\ufeff{"prompt": "a"}\r\n')
    about = read_prompts(path).document()
    assert about["file"] == "prompts.jsonl"
    assert about["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert read_prompts(path).bodies[0]["messages"][0]["content"] == "a", "a byte order mark is no part of it"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no prompt"),
        ("\n \n", "holds no prompt"),
        ('{"prompt": "a"}\nnot json', "line 2: is no JSON"),
        ('{"prompt": "a", "temperature": NaN}', "line 1: is no JSON: NaN"),
        ('{"prompt": "\\ud800"}', "line 1: is no JSON"),
        ("[" * 100_000, "line 1: is no JSON"),
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
