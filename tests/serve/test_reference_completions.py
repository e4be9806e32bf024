"""Completions of a real Kimi-K3 of random weights: log probabilities against the model run by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.models.tiny_k3 import make_tiny_k3
from tests.serve.serving import CONTEXT, TOKENIZER, Running, running
from truecast.models.generate import Resident
from truecast.models.open import open_model

PROMPT = "the message 中"
IDS = TOKENIZER.encode(PROMPT)


@pytest.fixture(scope="module")
def resident(tmp_path_factory: pytest.TempPathFactory) -> Resident:
    return Resident(open_model(make_tiny_k3(tmp_path_factory.mktemp("k3") / "tiny")))


@pytest.fixture(scope="module")
def server(resident: Resident) -> Iterator[Running]:
    with running(resident.session) as server:
        yield server


def ask(server: Running, **options: Any) -> Any:
    extra = {"return_token_ids": True, **options.pop("extra_body", {})}
    return server.client.completions.create(**{"model": "tiny", "prompt": PROMPT, "extra_body": extra, **options})


def test_greedy_tokens_are_the_models(server: Running, resident: Resident) -> None:
    (choice,) = ask(server, temperature=0, max_tokens=6).choices
    ids = list(IDS)
    for _ in range(6):
        ids.append(int(resident.session().extend(ids).argmax()))
    assert choice.prompt_token_ids == IDS
    assert choice.token_ids == ids[len(IDS) :]
    assert choice.text == TOKENIZER.decode(choice.token_ids)
    assert choice.finish_reason == "length"


def test_echo_scores_the_prompt(server: Running, resident: Resident) -> None:
    answer = ask(server, echo=True, max_tokens=0, logprobs=2)
    (choice,) = answer.choices
    wanted = resident.session().logits_all(IDS).double().log_softmax(-1)
    shares = choice.logprobs.token_logprobs
    assert shares[0] is None
    assert shares[1:] == pytest.approx([float(wanted[i, t]) for i, t in enumerate(IDS[1:])], abs=1e-5)
    best = wanted.topk(2).values
    assert choice.logprobs.top_logprobs[0] is None
    for row, top in enumerate(choice.logprobs.top_logprobs[1:]):
        assert max(top.values()) == pytest.approx(float(best[row, 0]), abs=1e-5)
    assert choice.text == PROMPT
    assert len(choice.logprobs.tokens) == len(choice.logprobs.text_offset) == len(IDS)
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert token.startswith("bytes:") or PROMPT[offset:].startswith(token)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(IDS), 0)


def test_echo_goes_on_where_the_prompt_ends(server: Running) -> None:
    scored = ask(server, echo=True, max_tokens=3, logprobs=0, temperature=0).choices[0]
    plain = ask(server, max_tokens=3, logprobs=0, temperature=0).choices[0]
    assert scored.text == PROMPT + plain.text
    assert scored.token_ids == plain.token_ids
    assert scored.logprobs.token_logprobs[-3:] == pytest.approx(plain.logprobs.token_logprobs, abs=1e-5)
    assert ask(server, echo=True, max_tokens=3, temperature=0).choices[0].text == scored.text


def test_a_long_prompt_read_in_parts_scores_the_same(server: Running, resident: Resident) -> None:
    ids = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    choice = ask(server, prompt=ids, echo=True, max_tokens=0, logprobs=0).choices[0]
    wanted = resident.session().logits_all(ids).double().log_softmax(-1)
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(
        [float(wanted[i, t]) for i, t in enumerate(ids[1:])], abs=1e-4
    )


@pytest.mark.parametrize("options", [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}])
def test_a_seed_gives_the_same_again_alone_or_beside_others(server: Running, options: dict[str, Any]) -> None:
    alone = ask(server, seed=7, max_tokens=12, **options).choices[0].token_ids
    beside = ask(server, prompt=[PROMPT, "other"], n=2, seed=7, max_tokens=12, **options).choices
    assert beside[0].token_ids == alone
    assert beside[1].token_ids != alone
    assert ask(server, seed=8, max_tokens=12, **options).choices[0].token_ids != alone


def test_prompts_of_every_form(server: Running) -> None:
    forms = (PROMPT, IDS, [PROMPT], [IDS])
    answers = [ask(server, prompt=form, temperature=0, max_tokens=3).choices for form in forms]
    assert [[c.token_ids for c in choices] for choices in answers] == [[answers[0][0].token_ids]] * 4
    many = ask(server, prompt=[IDS, TOKENIZER.encode("x")], n=2, temperature=0, max_tokens=1).choices
    assert [c.index for c in many] == [0, 1, 2, 3]
    assert [c.prompt_token_ids for c in many] == [IDS, IDS, [120], [120]]


def test_streaming_gives_the_same(server: Running) -> None:
    options: Any = {"seed": 3, "max_tokens": 20, "logprobs": 1, "echo": True}
    whole = ask(server, **options)
    chunks = list(ask(server, stream=True, stream_options={"include_usage": True}, **options))
    *body, last = chunks
    assert "".join(c.choices[0].text for c in body) == whole.choices[0].text
    assert [t for c in body for t in c.choices[0].token_ids] == whole.choices[0].token_ids
    streamed = [c.choices[0].logprobs for c in body if c.choices[0].logprobs]
    for field in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [x for part in streamed for x in getattr(part, field)] == getattr(whole.choices[0].logprobs, field)
    assert last.usage == whole.usage
    assert body[-1].choices[0].finish_reason == "length"


def test_a_stop_string_cuts_the_text(server: Running) -> None:
    text = ask(server, seed=3, max_tokens=20).choices[0].text
    stop = next(c for c in text[3:] if c.isascii())
    choice = ask(server, seed=3, max_tokens=20, stop=[stop]).choices[0]
    assert (choice.text, choice.finish_reason) == (text[: text.index(stop)], "stop")


def test_the_context_is_the_limit(server: Running) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        ask(server, prompt=[1] * CONTEXT, max_tokens=1)
    for bad in ({"prompt": ""}, {"suffix": "x"}, {"logprobs": 99}, {"max_tokens": -1}):
        with pytest.raises(openai.BadRequestError):
            ask(server, **bad)


def test_default_is_sixteen_tokens(server: Running) -> None:
    assert ask(server).usage.completion_tokens == 16


def test_prompt_logprobs_are_the_models_by_id(server: Running, resident: Resident) -> None:
    body = {"model": "tiny", "prompt": IDS, "max_tokens": 1, "prompt_logprobs": 3}
    (choice,) = server.http.post("/v1/completions", json=body).json()["choices"]
    wanted = resident.session().logits_all(IDS).double().log_softmax(-1)
    assert choice["logprobs"] is None
    assert choice["prompt_token_ids"] == IDS
    assert choice["prompt_logprobs"][0] is None
    for row, told in enumerate(choice["prompt_logprobs"][1:]):
        best = wanted[row].topk(3)
        assert set(told) == {str(int(i)) for i in best.indices} | {str(IDS[row + 1])}
        for token, entry in told.items():
            assert entry["logprob"] == pytest.approx(float(wanted[row, int(token)]), abs=1e-5)
        assert [told[str(int(i))]["rank"] for i in best.indices] == [1, 2, 3]
    plain = server.http.post("/v1/completions", json={**body, "prompt_logprobs": None, "temperature": 0}).json()
    both = server.http.post("/v1/completions", json={**body, "temperature": 0, "echo": True, "logprobs": 1}).json()
    assert both["choices"][0]["text"] == PROMPT + plain["choices"][0]["text"]
    assert len(both["choices"][0]["logprobs"]["top_logprobs"][2]) == 1
    assert both["choices"][0]["prompt_logprobs"] == choice["prompt_logprobs"]
    refused = server.http.post("/v1/completions", json={**body, "stream": True})
    assert refused.status_code == 400
    assert "does not go with stream" in refused.text
