"""How evenly a router spreads closed-loop clients over two replicas, policy by policy: the real router, paced servers.

    pip install sglang-router==0.3.2
    python -m benchmarks.router_balance --module sglang_router.launch_router

Each replica streams tokens at a fixed rate per stream, as an engine below its batch limit does; ``--slow`` halves the
rate of the second one. Clients ask, read the stream to its end and ask again at once: reasoning work. Lengths are
exponential, so that long answers meet short ones. Prompts share an instruction and differ after it, as a test's do;
``--same``: they are all the same, as where one problem is sampled many times.

Printed per policy and concurrency: requests that each replica answered; streams open on the fuller one, on average over
time and at worst, of all that are open (half of them is even). Streams decide: a replica's speed per stream falls as it
holds more of them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

MODEL = "paced"
POLICIES = ("cache_aware", "random", "round_robin", "power_of_two")
CONCURRENCIES = (2, 4, 8, 20, 50)
INSTRUCTION = "Solve the problem. Reason step by step and put the final answer, a whole number, in a box.\n\n"
MEAN_TOKENS, RATE = 20, 20.0
"""Tokens of an answer on average, and tokens a second of one stream."""
SAMPLE_S = 0.02


@dataclass
class Replica:
    """A server whose streams are paced by the clock."""

    port: int
    interval_s: float
    answered: int = 0
    open: int = 0

    def app(self) -> Starlette:
        """What a router asks of an engine: health, names, and streams."""
        about = {"model_path": MODEL, "served_model_name": MODEL, "is_generation": True, "tp_size": 1, "dp_size": 1}
        names = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "x", "max_model_len": 8192}]}
        load = [{"dp_rank": 0, "num_reqs": self.open, "num_waiting_reqs": 0, "num_tokens": 0}]
        return Starlette(
            routes=[
                Route("/health", _json({})),
                *(Route(path, _json(about)) for path in ("/get_server_info", "/server_info")),
                *(Route(path, _json(about)) for path in ("/get_model_info", "/model_info")),
                Route("/get_load", _json(load)),
                Route("/v1/models", _json(names)),
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
            ]
        )

    async def complete(self, request: Request) -> StreamingResponse:
        """Stream as many tokens as asked for; the routers send on the limit's newer name."""
        body = await request.json()
        tokens = body.get("max_tokens") or body["max_completion_tokens"]
        self.answered += 1
        return StreamingResponse(self.stream(tokens), media_type="text/event-stream")

    async def stream(self, tokens: int) -> AsyncIterator[str]:
        """Server-sent events, one a token."""
        self.open += 1
        try:
            event = f'{{"object":"chat.completion.chunk","model":"{MODEL}","choices":[{{"index":0,"delta":{{"content":"x"}}}}]}}'
            for _ in range(tokens):
                await asyncio.sleep(self.interval_s)
                yield f"data: {event}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.open -= 1


def _json(document: Any) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def answer(_: Request) -> JSONResponse:
        return JSONResponse(document)

    return answer


@dataclass
class Seen:
    """Samples of the streams open on both replicas."""

    pairs: list[tuple[int, int]] = field(default_factory=list)

    async def watch(self, replicas: list[Replica]) -> None:
        """Sample until cancelled."""
        while True:
            self.pairs.append((replicas[0].open, replicas[1].open))
            await asyncio.sleep(SAMPLE_S)

    def fuller(self) -> tuple[float, int]:
        """Streams on the fuller replica: mean over time, and most."""
        fullest = [max(pair) for pair in self.pairs]
        return sum(fullest) / len(fullest), max(fullest)


async def client(url: str, number: int, until: float, same: bool) -> None:
    """Ask, read to the end, ask again."""
    dice = random.Random(number)
    async with httpx.AsyncClient(timeout=60) as http:
        while time.monotonic() < until:
            problem = "" if same else " ".join(str(dice.randrange(10**6)) for _ in range(40))
            tokens = max(1, min(10 * MEAN_TOKENS, round(dice.expovariate(1 / MEAN_TOKENS))))
            body = {"model": MODEL, "messages": [{"role": "user", "content": INSTRUCTION + problem}]}
            body |= {"max_tokens": tokens, "stream": True}
            async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                async for _ in answer.aiter_bytes():
                    pass


async def ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the router passes requests on."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "stream": True}
    async with httpx.AsyncClient(timeout=5) as http:
        for _ in range(200):
            if process.poll() is not None:
                raise SystemExit(f"the router ended with {process.returncode}")
            try:
                if (await http.post(f"{url}/v1/chat/completions", json=body)).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
    raise SystemExit("the router did not get ready")


async def measure(options: argparse.Namespace, policy: str, concurrency: int) -> str:
    """One line of the table."""
    slow = 2 if options.slow else 1
    replicas = [Replica(free_port(), 1 / RATE), Replica(free_port(), slow / RATE)]
    configs = [uvicorn.Config(r.app(), port=r.port, log_level="error", lifespan="off") for r in replicas]
    servers = [uvicorn.Server(config) for config in configs]
    serving = [asyncio.create_task(server.serve()) for server in servers]
    port = free_port()
    command = [options.python, "-m", options.module, "--host", "127.0.0.1", "--port", str(port), "--policy", policy]
    command += ["--worker-urls", *(f"http://127.0.0.1:{r.port}" for r in replicas), "--log-level", "error"]
    command += ["--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1", *options.router]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as router:
        try:
            url = f"http://127.0.0.1:{port}"
            await ready(url, router)
            await asyncio.sleep(1)
            for replica in replicas:
                replica.answered = 0
            seen, until = Seen(), time.monotonic() + options.seconds
            clients = [asyncio.create_task(client(url, number, until, options.same)) for number in range(concurrency)]
            await asyncio.sleep(1)  # past the start, when all ask at once
            watch = asyncio.create_task(seen.watch(replicas))
            await asyncio.sleep(until - time.monotonic())
            watch.cancel()
            await asyncio.gather(*clients)
        finally:
            router.kill()
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*serving)
    mean, most = seen.fuller()
    answered = " + ".join(str(r.answered) for r in replicas)
    return f"| {policy} | {concurrency} | {answered} | {mean:.1f} | {most} |"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment that has the router")
    parser.add_argument("--module", default="sglang_router.launch_router")
    parser.add_argument("--policy", nargs="+", default=POLICIES)
    parser.add_argument("--concurrency", nargs="+", type=int, default=CONCURRENCIES)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--slow", action="store_true", help="the second replica at half the speed")
    parser.add_argument("--same", action="store_true", help="one prompt for all requests")
    parser.add_argument("router", nargs="*", metavar="-- OPTION", help="further options of the router")
    options = parser.parse_args()
    print("| policy | clients | requests | streams on the fuller replica, mean | most |\n|---|---|---|---|---|")
    for policy in options.policy:
        for concurrency in options.concurrency:
            print(asyncio.run(measure(options, policy, concurrency)), flush=True)


if __name__ == "__main__":
    main()
