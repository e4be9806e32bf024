"""All checks of one server, in order: what later ones need is found by the earlier ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from truecast.serve.smoke.answers import among_others, arithmetic, channels, determinism, truncation, usage
from truecast.serve.smoke.canaries import burst, echoes, identifiers, leaks
from truecast.serve.smoke.chat import Reply
from truecast.serve.smoke.connect import connect
from truecast.serve.smoke.finding import FAIL, PASS, SKIP, WARN, Finding, failed, skipped
from truecast.serve.smoke.http import Server, ServerFault
from truecast.serve.smoke.logprobs import logprobs
from truecast.serve.smoke.requests import bad_requests, efforts, health, model_name
from truecast.serve.smoke.streaming import streaming
from truecast.serve.smoke.tools import tools

SECONDS = 300.0
"""The most that one answer may take."""
CHECKS = ("health", "model-name", "arithmetic", "channels", "usage", "truncation", "determinism", "streaming", "tools",
          "efforts", "effort-medium", "identifiers", "leaks", "batch-variance", "logprobs", "bad-requests",
          "reference")  # fmt: skip
"""Every check that there is, in the order of the report."""

Tell = Callable[[Finding], None]


@dataclass(frozen=True, slots=True)
class SmokeReport:
    """What was found, in the order of :data:`CHECKS`."""

    url: str
    model: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Did nothing fail?"""
        return not any(f.status == FAIL for f in self.findings)

    def count(self, status: str) -> int:
        """How many findings have this status."""
        return Counter(f.status for f in self.findings)[status]

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "url": self.url,
            "model": self.model,
            "ok": self.ok,
            "counts": {status.lower(): self.count(status) for status in (PASS, WARN, FAIL, SKIP)},
            "checks": [finding.document() for finding in self.findings],
        }


def smoke(
    url: str,
    *,
    model: str | None = None,
    reference: str | None = None,
    key: str = "",
    seconds: float = SECONDS,
    seed: int | None = None,
    tell: Tell | None = None,
) -> SmokeReport:
    """Test an OpenAI-compatible chat server. ``url`` with or without ``/v1``; ``model`` is the first listed by default.

    ``reference`` is the served checkpoint (folder or fsspec URL): its log-probabilities are computed here, which needs
    PyTorch, and compared. ``key`` is a bearer token. No answer may take more than ``seconds``. ``seed`` fixes the
    identifiers of the canaries. ``tell`` gets each finding as it is made.
    Raises: InputError where the server cannot be reached or tested, or the reference not read.
    """
    server, names = connect(url, model, key, seconds)
    findings: list[Finding] = []

    def add(*found: Finding) -> None:
        for finding in found:
            findings.append(finding)
            if tell is not None:
                tell(finding)

    expected = _expectation(server, reference)
    add(_guard("health", lambda: health(server)))
    add(_guard("model-name", lambda: model_name(server, names)))
    first, finding = _first(server)
    add(finding)
    if first is None:
        done = {f.id for f in findings}
        why = "no finished answer to build on: see arithmetic"
        add(*(skipped(name, why) for name in CHECKS if name not in done))
    else:
        _rest(server, first, identifiers(seed), add)
        add(expected() if expected is not None else skipped("reference", "no --reference was given"))
    return SmokeReport(server.base, server.model, tuple(findings))


def _rest(server: Server, first: Reply, secrets: list[str], add: Callable[..., None]) -> None:
    add(channels(first), usage(first), _guard("truncation", lambda: truncation(server, first)))
    try:
        repeats, finding = determinism(server, first)
    except ServerFault as error:
        repeats, finding = False, _fault("determinism", error)
    add(finding)
    add(_guard("streaming", lambda: streaming(server, first, repeats)))
    add(_guard("tools", lambda: tools(server)))
    try:
        add(*efforts(server))
    except ServerFault as error:
        add(_fault("efforts", error))
    replies, crowded = burst(server, secrets)
    add(echoes(server, secrets, replies), leaks(secrets, replies))
    if isinstance(crowded, ServerFault):
        add(_fault("batch-variance", crowded))
    elif repeats:
        add(among_others(first, crowded))
    else:
        add(skipped("batch-variance", "answers do not repeat even alone: see determinism"))
    add(_guard("logprobs", lambda: logprobs(server)))
    add(_guard("bad-requests", lambda: bad_requests(server)))


def _first(server: Server) -> tuple[Reply | None, Finding]:
    try:
        return arithmetic(server)
    except ServerFault as error:
        return None, _fault("arithmetic", error)


def _expectation(server: Server, location: str | None) -> Callable[[], Finding] | None:
    """The last check, its reference computed now: a checkpoint that cannot be read is better known at once."""
    if location is None:
        return None
    from truecast.serve.smoke.reference import Reference, check_fits, compare

    own = Reference(location)
    check_fits(server, own, location)
    return lambda: _guard("reference", lambda: compare(server, own))


def _guard(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except ServerFault as error:
        return _fault(name, error)


def _fault(name: str, error: ServerFault) -> Finding:
    return failed(name, str(error), "look at the server's log of this moment")
