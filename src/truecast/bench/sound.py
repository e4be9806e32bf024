"""Whether the figures are the server's, and what a reader of them should know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from truecast.bench.figures import MAX_LAG_S
from truecast.bench.server import Server

MAX_FAILED = 0.01
MIN_IN_FLIGHT = 0.95
MAX_WORKER = 0.9
MAX_LATE = 0.01
MAX_DRIFT = 0.05
MAX_CACHED = 0.01


def faults(run: Mapping[str, Any], concurrency: int) -> Iterator[str]:
    """Why a run's figures do not stand."""
    counts, client = run["requests"], run["client"]
    failed = sum(counts["errors"].values())
    if failed > MAX_FAILED * counts["sent"]:
        said = max(counts["errors"], key=counts["errors"].get)
        yield f"{failed} of {counts['sent']} requests failed, most with: {said}"
    if changed := run.get("server_changed"):
        yield f"the server was not the one of the start any more: {', '.join(changed)}"
    if run["in_flight"] < MIN_IN_FLIGHT * concurrency:
        yield f"only {run['in_flight']:.1f} of {concurrency} streams were busy on average"
    used, waited = client["used"], client["waited"]
    if used is not None and used + waited > MAX_WORKER:
        yield f"the client is saturated: its busiest process used a core {used:.0%} of the time, and waited {waited:.0%}"
    if run["sent_late"] > max(1, MAX_LATE * counts["sent"]):
        yield f"the client is saturated: {run['sent_late']} requests left more than {MAX_LAG_S * 1000:.0f} ms late"
    if run["figures"]["stream"] is None and run["figures"]["stream_e2e"] is None:
        yield "no request finished in the steady window: a longer --duration, or --max-tokens"


def remarks(run: Mapping[str, Any], concurrency: int, server: Server, prompts: Mapping[str, int]) -> Iterator[str]:
    """What a reader of a run's figures should know."""
    counts, figures = run["requests"], run["figures"]
    finished = counts["finished_in_window"]
    if prompts["distinct"] < concurrency:
        yield (
            f"{prompts['distinct']} distinct prompts for {concurrency} streams: equal prompts use the same experts and"
            " the prefix cache, which real ones do not"
        )
    if counts["sent"] > prompts["distinct"]:
        yield f"{counts['sent']} requests were made from {prompts['distinct']} distinct prompts: some were sent again"
    cached, read = run["cache"]["cached_tokens"], run["cache"]["prompt_tokens"]
    if cached is not None and read > 0 and cached > MAX_CACHED * read:
        yield f"{cached / read:.0%} of the prompt tokens came from the prefix cache"
    slots = server.arguments.get("max_running_requests")
    if isinstance(slots, int) and 0 < slots < concurrency:
        yield f"the server runs {slots} requests at once: the rest waits in its queue, and ttft includes that"
    elif (queued := run["server"]["queued"]) is not None and queued > 0.01 * concurrency:
        yield f"{queued:.1f} requests waited in the server's queue on average: ttft includes that"
    first, second = run["halves"]
    if first > 0 and abs(second / first - 1) > MAX_DRIFT:
        yield f"the second half of the window gave {second / first - 1:+.0%} against the first: not steady, run longer"
    if cut := counts["finish"].get("length", 0):
        yield f"{cut} of {finished} outputs were cut at the token limit: their length is not the model's"
    if counts["empty"]:
        yield f"{counts['empty']} of {finished} answers were empty: they have no speed"
    if counts["at_once"]:
        yield f"{counts['at_once']} of {finished} answers came all at once: they count for stream_e2e, not for stream"
    if counts["uncounted_chunks"]:
        yield "the server does not count tokens by chunk: they are taken as spread evenly over the chunks of a stream"
    if counts["unfinished_at_end"] > finished:
        yield (
            f"{counts['unfinished_at_end']} requests were still running at the window's end and {finished} had finished:"
            " long outputs are missing from the medians, run longer"
        )
    if run["client"]["used"] is None:
        yield "how busy the client was is not known: this system does not tell, or the window was too short"
    if figures["stream"] is None and finished:
        yield "no stream has a speed of its own"
