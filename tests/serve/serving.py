"""A server on a loopback port in a thread, over any model that gives sessions."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import openai
import torch
import uvicorn

from tests.models.k3_vocabulary import NAMED, VOCABULARY, ranks
from truecast.models.kimi_k3.tokenizer import K3Tokenizer
from truecast.serve.reference.app import build_app
from truecast.serve.reference.engine import Engine, Session
from truecast.serve.reference.served import Served

BASE = len(ranks())
TOKENIZER = K3Tokenizer(ranks(), {BASE + slot: name for slot, name in NAMED.items()})
END = TOKENIZER.special("<|end_of_msg|>")
CONTEXT = 1500


class Scripted:
    """A session that says the same whatever it is told, waiting a little before each token."""

    def __init__(self, script: Sequence[int], delay_s: float = 0) -> None:
        self.script, self.delay_s, self.at = script, delay_s, -1

    def extend(self, tokens: list[int]) -> torch.Tensor:
        time.sleep(self.delay_s)
        self.at += 1 if self.at < 0 or len(tokens) == 1 else 0
        logits = torch.zeros(VOCABULARY)
        logits[self.script[self.at % len(self.script)]] = 50
        return logits

    def logits_all(self, tokens: list[int]) -> torch.Tensor:
        raise RuntimeError("this model cannot score")


@dataclass(frozen=True)
class Running:
    url: str
    engine: Engine
    client: openai.OpenAI
    http: httpx.Client

    def load(self) -> tuple[int, int]:
        health = self.http.get("/health").json()
        return health["running"], health["waiting"]

    def idle_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.load() == (0, 0):
                return True
            time.sleep(0.02)
        return False


@contextmanager
def running(new_session: Callable[[], Session]) -> Iterator[Running]:
    """Serve until the context ends."""
    engine = Engine(new_session)
    served = Served(("tiny",), engine, TOKENIZER, VOCABULARY, CONTEXT, frozenset({END}))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(build_app(served), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        http = httpx.Client(base_url=url, timeout=60)
        with http, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as client:
            yield Running(url, engine, client, http)
    finally:
        engine.close()
        server.should_exit = True
        thread.join()


def spoken(text: str) -> list[int]:
    """Ids of a text whose markers are meant."""
    ids: list[int] = []
    for piece in text.replace("<|", "\0<|").replace("|>", "|>\0").split("\0"):
        ids += [TOKENIZER.specials[piece]] if piece in TOKENIZER.specials else TOKENIZER.encode(piece)
    return ids
