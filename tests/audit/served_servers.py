"""Real HTTP servers for the audit of servers: a table of log-probabilities in SGLang's form, with faults on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import numpy as np

VOCAB = 60


def table(seed: int, apart: float = 0.0) -> np.ndarray:
    """Log-probabilities ``[VOCAB, VOCAB]`` of the next token by the one before; ``apart``: noise on the logits."""
    logits = np.random.default_rng(7).normal(0, 2, (VOCAB, VOCAB))
    logits += np.random.default_rng(seed).normal(0, apart, logits.shape)
    return np.asarray(logits - np.log(np.exp(logits).sum(1, keepdims=True)))


def sglang_answer(logprobs: np.ndarray, body: dict[str, Any]) -> dict[str, Any]:
    """As 0.5.17, 0.5.20 and 0.5.23 write it: add_logprob_to_meta_info of managers/tokenizer_manager.py."""
    tokens, top = body["input_ids"], body["top_logprobs_num"]
    assert body["return_logprob"] is True
    assert body["logprob_start_len"] == 0
    own: list[Any] = [[None, tokens[0], None]]
    most: list[Any] = [None]
    for before, token in pairwise(tokens):
        row = logprobs[before].astype(np.float32)
        own.append([float(row[token]), token, None])
        most.append([[float(row[t]), int(t), None] for t in np.argsort(-row)[:top]])
    meta = {"id": "0", "prompt_tokens": len(tokens), "input_token_logprobs": own, "input_top_logprobs": most}
    meta |= {"output_token_logprobs": [[-1.0, 3, None]], "output_top_logprobs": [[[-1.0, 3, None]]]}
    return {"text": "x", "output_ids": [3], "meta_info": meta}


Change = Callable[[dict[str, Any], dict[str, Any]], Any]
"""``(body of the request, right answer)`` -> the answer to give; None breaks the connection off."""


class Fake:
    """State of a server: ``asked`` token lists, ``info`` of /server_info, ``change`` of answers."""

    def __init__(self, logprobs: np.ndarray, version: str, context: int) -> None:
        self.logprobs, self.context = logprobs, context
        self.info: dict[str, Any] = {
            "tp_size": 1,
            "version": version,
            "model_path": "m",
            "api_key": "hidden",
            "port": 1,
        }
        self.change: Change = lambda body, answer: answer
        self.asked: list[list[int]] = []
        self.url = ""


@contextmanager
def sglang(logprobs: np.ndarray, version: str = "0.5.20", context: int = 64) -> Iterator[Fake]:
    """Serve until the context ends."""
    fake = Fake(logprobs, version, context)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            card = {"id": "m", "object": "model", "owned_by": "sglang", "max_model_len": fake.context}
            found = {"/v1/models": {"data": [card]}, "/server_info": fake.info}.get(self.path)
            self.give(200 if found else 404, found or {"error": {"message": "not found"}})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path != "/generate":
                self.give(404, {"error": {"message": "not found"}})
                return
            fake.asked.append(body["input_ids"])
            answer = fake.change(body, sglang_answer(fake.logprobs, body))
            if answer is None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
            else:
                self.give(200, answer)

        def give(self, status: int, document: Any) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
