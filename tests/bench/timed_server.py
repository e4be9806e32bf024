"""A real HTTP server with known timing: what a benchmark client should have measured is what it wrote, and when.

Run as a process: ``python -m tests.bench.timed_server '{"port": 0, ...}'`` prints its port. Bodies may carry ``"timed"``,
which overrides the behaviour of that one request. Plain asyncio: at 10,000 events a second a framework would be what is
measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field, fields, replace
from typing import Any

HOLD_S = 60.0
"""How long the server waits for requests that do not come."""
PROBE_TOKENS = 16
"""A request of no more tokens is the client's question how the server counts: no part of the load."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Behaviour:
    """How one server answers; seconds and tokens."""

    ttft: float = 0.05
    """From the start of the prefill to the first chunk."""
    interval: float = 0.01
    """Seconds per output token once the first has come."""
    tokens: int = 100
    """Mean output length (the model's own EOS); a request's ``max_tokens`` cuts it."""
    spread: float = 0.0
    """Output lengths are uniform in ``tokens * (1 +- spread)``."""
    chunk: tuple[int, int] = (1, 1)
    """Tokens of a chunk, uniform between these: what a verify step of speculative decoding accepts."""
    reasoning: float = 0.0
    """Share of the output in the reasoning channel."""
    tool: bool = False
    """The output is one tool call, buffered until its end as tool parsers do."""
    slots: int = 10_000
    """Requests served at once; the rest waits in the server's queue."""
    warm_ttft: float | None = None
    """TTFT of a prompt seen before (prefix cache); ``None``: no cache."""
    context: int = 100_000
    usage: str = "continuous"
    """``continuous`` (on every chunk, if asked for), ``final``, ``none``, or ``refuse`` (400 to continuous_usage_stats)."""
    status: int = 200
    """Answer every request with this."""
    fail_every: int = 0
    """Answer each n-th request with 500."""
    cut_every: int = 0
    """Break off each n-th stream in the middle, without its end."""
    empty_every: int = 0
    """Each n-th answer has no token."""
    error_every: int = 0
    """Each n-th stream ends in an error event after some tokens."""
    odd_every: int = 0
    """Each n-th stream has ``odd_event`` after its first chunk."""
    odd_event: str = ""
    """The data of an event, as it is."""
    cold: int = 0
    """The first so many requests compile something: ``cold_ttft``."""
    cold_ttft: float = 0.0
    gather: int = 0
    """No answer before so many requests have been in flight at once."""
    hold_first: int = 0
    """The first request ends only after so many have come: one that waits for it before it goes on would never."""
    hang_after: int = 0
    """Requests after so many get no answer."""
    role_first: bool = True
    """A first event with the role and no content, as OpenAI's and SGLang's servers send."""
    model: str = "timed"
    engine: str = "sglang"
    """``sglang``: /server_info, /flush_cache and its metrics; ``vllm``: /version, its metrics; ``plain``: nothing."""
    acceptance: float | None = None
    port: int = 0


@dataclass
class Served:
    """What the server did for one request: wall-clock times in seconds, tokens of each chunk."""

    number: int
    arrived: float
    prompt: str
    started: float = 0.0
    chunks: list[tuple[float, int, str]] = field(default_factory=list)
    """Time, tokens and channel (``reasoning``, ``answer``, ``tool``) of every chunk written."""
    ended: float = 0.0
    outcome: str = "ok"
    cached: bool = False


class TimedServer:
    """State of one server process."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.served: list[Served] = []
        self.seen: set[str] = set()
        self.flushed = 0
        self.slots = asyncio.Semaphore(behaviour.slots)
        self.running: set[int] = set()
        self.peak = 0

    def requests(self) -> int:
        """How many requests of the load have come."""
        return sum(s.outcome != "probe" for s in self.served)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, request after request."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                lengths = [x for x in head.split("\r\n") if x.lower().startswith("content-length:")]
                body = await reader.readexactly(int(lengths[0].split(":")[1]) if lengths else 0)
                if not await self.answer(method, path.split("?")[0], body, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Returns: may the connection be used again?"""
        b = self.behaviour
        if path == "/timed/behaviour" and method == "POST":
            self.__init__(behaviour_of(json.loads(body)))  # type: ignore[misc]  # a new server on the same port
            await self.whole(writer, 200, {})
            return True
        if path == "/v1/chat/completions" and method == "POST":
            return await self.chat(json.loads(body), writer)
        pages: dict[str, Any] = {
            "/v1/models": {"object": "list", "data": [{"id": b.model, "object": "model", "max_model_len": b.context}]},
            "/timed/log": [vars(s) for s in self.served],
            "/timed/state": {
                "flushed": self.flushed,
                "peak": self.peak,
                "requests": self.requests(),
            },
        }
        if b.engine == "sglang":
            pages["/server_info"] = {
                "version": "0.5.20",
                "model_path": "/models/timed",
                "api_key": "s3cret",
                "tp_size": 4,
                "ep_size": 4,
                "disable_radix_cache": b.warm_ttft is None,
                "internal_states": [{} if b.acceptance is None else {"avg_spec_accept_length": b.acceptance}],
            }
            pages["/metrics"] = "" if b.acceptance is None else f'sglang:spec_accept_length{{tp="0"}} {b.acceptance}\n'
            if path == "/flush_cache":
                self.seen.clear()
                self.flushed += 1
                pages["/flush_cache"] = "Cache flushed."
        elif b.engine == "vllm":
            pages["/version"] = {"version": "0.14.0"}
            drafts, accepted = 1000 * len(self.served), 1500 * len(self.served)
            pages["/metrics"] = (
                f"vllm:spec_decode_num_drafts_total {drafts}\nvllm:spec_decode_num_accepted_tokens_total {accepted}\n"
            )
        status = 200 if path in pages else 404
        await self.whole(writer, status, pages.get(path, {"error": {"message": f"no {path}"}}))
        return True

    async def whole(self, writer: asyncio.StreamWriter, status: int, page: Any) -> None:
        """Write a whole answer."""
        text = page.encode() if isinstance(page, str) else json.dumps(page).encode()
        kind = "text/plain" if isinstance(page, str) else "application/json"
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text
        )
        await writer.drain()

    async def chat(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Answer one chat completion, as a stream if that is asked for."""
        b = replace(self.behaviour, **{k: tuple(v) if k == "chunk" else v for k, v in body.get("timed", {}).items()})
        prompt = json.dumps(body["messages"])
        probe = (body.get("max_tokens") or body.get("max_completion_tokens") or 10**9) <= PROBE_TOKENS
        number = self.requests()
        served = Served(number, time.time(), prompt, outcome="probe" if probe else "ok")
        self.served.append(served)
        refused = self.refusal(b, body, number, prompt)
        if refused is not None:
            served.outcome = str(refused[0])
            await self.whole(writer, refused[0], {"error": {"message": refused[1]}})
            return True
        async with self.slots:
            running = self.running  # that of this behaviour: another may have been set when this request ends
            running.add(id(served))
            self.peak = max(self.peak, len(running))
            try:
                if not probe:
                    await self.hold(b, number)
                return await self.generate(b, body, served, prompt, writer)
            finally:
                running.discard(id(served))
                served.ended = time.time()

    async def hold(self, b: Behaviour, number: int) -> None:
        """Wait for what this request has to wait for, however fast the machine is."""
        end = time.time() + HOLD_S
        while time.time() < end and (
            self.peak < b.gather
            or (number == 0 and self.requests() < b.hold_first)
            or (b.hang_after and number >= b.hang_after)
        ):
            await asyncio.sleep(0.01)

    def refusal(self, b: Behaviour, body: dict[str, Any], number: int, prompt: str) -> tuple[int, str] | None:
        """Status and message, if this request gets no answer."""
        if b.status != 200:
            return b.status, f"the model says {b.status}"
        if len(prompt.split()) > b.context:
            return 400, f"the prompt is longer than the model's context length ({b.context} tokens)"
        if b.usage == "refuse" and "continuous_usage_stats" in body.get("stream_options", {}):
            return 400, "stream_options.continuous_usage_stats: extra fields not permitted"
        if b.fail_every and number % b.fail_every == b.fail_every - 1:
            return 500, "worker died"
        return None

    async def generate(
        self, b: Behaviour, body: dict[str, Any], served: Served, prompt: str, writer: asyncio.StreamWriter
    ) -> bool:
        """Stream one answer on an absolute schedule, so that delays do not add up."""
        n = served.number
        rng = random.Random(f"{n}")
        served.started = begin = time.time()
        served.cached = b.warm_ttft is not None and prompt in self.seen
        self.seen.add(prompt)
        ttft = b.warm_ttft if served.cached and b.warm_ttft is not None else b.ttft
        if n < b.cold:
            ttft += b.cold_ttft
        want = round(b.tokens * (1 + b.spread * (2 * rng.random() - 1)))
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 10**9
        total = 0 if b.empty_every and n % b.empty_every == b.empty_every - 1 else min(want, limit)
        asked = body.get("stream_options", {})
        continuous = b.usage == "continuous" and asked.get("continuous_usage_stats", False)
        final = b.usage != "none" and asked.get("include_usage", False)
        cut = b.cut_every and n % b.cut_every == b.cut_every - 1
        error = b.error_every and n % b.error_every == b.error_every - 1
        prompt_tokens = len(prompt.split())
        probe = served.outcome == "probe"
        if not body.get("stream"):
            await asyncio.sleep(ttft + total * b.interval)
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": total, "total_tokens": prompt_tokens + total}
            message = {"role": "assistant", "content": "x " * total}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await self.whole(writer, 200, {"model": b.model, "choices": [choice], "usage": usage})
            return True
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        if b.role_first:
            self.event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        out, thinking = 0, round(total * b.reasoning)
        sizes = [total] if b.tool else self.sizes(b, total, rng)
        due = begin + ttft + (b.interval * (total - 1) if b.tool else 0)
        for size in sizes:
            wait = due - time.time()
            if wait > 0:
                await asyncio.sleep(wait)
            if writer.is_closing():  # the client has gone
                served.outcome = "left"
                return False
            channel = "tool" if b.tool else "reasoning" if out < thinking else "answer"
            out += size
            self.event(writer, self.chunk(b, n, channel, size, continuous, prompt_tokens, out, thinking))
            served.chunks.append((time.time(), size, channel))
            if out == size and b.odd_every and not probe and n % b.odd_every == b.odd_every - 1:
                self.write(writer, f"data: {b.odd_event}\n\n".encode())
            if (cut or error) and out >= total / 2:
                served.outcome = "cut" if cut else "error"
                if error:
                    self.event(writer, {"error": {"message": "CUDA error: device-side assert", "code": 500}})
                    writer.write(b"0\r\n\r\n")
                else:
                    writer.transport.abort()
                return False
            due += b.interval * self.next_size(sizes, len(served.chunks))
        reason = "tool_calls" if b.tool else "length" if total == limit else "stop"
        self.event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if final:
            self.event(writer, {"choices": [], "usage": self.usage(prompt_tokens, total, thinking, served.cached)})
        self.write(writer, DONE)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    @staticmethod
    def next_size(sizes: list[int], at: int) -> int:
        """Tokens of the next chunk: the time until it comes is theirs."""
        return sizes[at] if at < len(sizes) else 0

    @staticmethod
    def sizes(b: Behaviour, total: int, rng: random.Random) -> list[int]:
        """Chunk sizes that add up to ``total``."""
        sizes: list[int] = []
        while (left := total - sum(sizes)) > 0:
            sizes.append(min(left, rng.randint(*b.chunk)))
        return sizes

    @staticmethod
    def usage(prompt: int, out: int, thinking: int, cached: bool) -> dict[str, Any]:
        """A usage block as SGLang gives it."""
        return {
            "prompt_tokens": prompt,
            "completion_tokens": out,
            "total_tokens": prompt + out,
            "reasoning_tokens": min(out, thinking),
            "prompt_tokens_details": {"cached_tokens": prompt if cached else 0},
        }

    def chunk(
        self, b: Behaviour, n: int, channel: str, size: int, continuous: bool, prompt: int, out: int, thinking: int
    ) -> dict[str, Any]:
        """One chunk of the stream; its text has another number of words than it has tokens."""
        text = "wo rd   " * size
        delta: dict[str, Any] = {"content": text}
        if channel == "reasoning":
            delta = {"reasoning_content": text}
        elif channel == "tool":
            delta = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": text}}]}
        event: dict[str, Any] = {
            "id": f"r{n}",
            "object": "chat.completion.chunk",
            "model": b.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
        }
        if continuous:
            event["usage"] = self.usage(prompt, out, thinking, False)
        return event

    def event(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        """Write one server-sent event."""
        self.write(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    @staticmethod
    def write(writer: asyncio.StreamWriter, data: bytes) -> None:
        """Write one chunk of the HTTP body."""
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def serve(behaviour: Behaviour) -> None:
    """Serve until the process ends; prints the port."""
    server = TimedServer(behaviour)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", behaviour.port, limit=1 << 24)
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await listening.serve_forever()


def behaviour_of(options: dict[str, Any]) -> Behaviour:
    """A behaviour from JSON. Raises: KeyError at an unknown name."""
    names = {f.name for f in fields(Behaviour)}
    if unknown := set(options) - names:
        raise KeyError(f"no such behaviour: {unknown}")
    return Behaviour(**{k: tuple(v) if k == "chunk" else v for k, v in options.items()})


if __name__ == "__main__":
    asyncio.run(serve(behaviour_of(json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))))
