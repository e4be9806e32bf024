"""From the address that the user gave to a server that can be tested, or the reason why it cannot be."""

from __future__ import annotations

import urllib.parse
from dataclasses import replace
from typing import Any

from truecast.errors import InputError
from truecast.serve.smoke.http import Answer, NoAnswer, Server, ServerFault

_DENIED = (401, 403)


def connect(url: str, model: str | None, key: str, seconds: float) -> tuple[Server, tuple[str, ...]]:
    """The server, and the names of its models. ``url`` with or without ``/v1``.

    Without ``model`` the first that is listed is asked for. Raises: InputError where the server cannot be tested.
    """
    refused = ""
    for base in _bases(url):
        server = Server(base, seconds, key)
        where = f"{base}/models"
        try:
            answer = server.get("/models")
        except NoAnswer as error:
            raise InputError(str(error), where=where, fix=_remedy(str(error))) from None
        if answer.status == 404:
            refused = where
            continue
        listed = _listed(answer, where, bool(key))
        names = tuple(card["id"] for card in listed)
        chosen = next((card for card in listed if card["id"] == model), listed[0])
        context = chosen.get("max_model_len")
        return (
            replace(
                server,
                model=model or names[0],
                context=context if isinstance(context, int) else None,
                sglang=chosen.get("owned_by") == "sglang",
            ),
            names,
        )
    raise InputError("answers 404", where=refused, fix="is this the address of an OpenAI-compatible server?")


def _bases(url: str) -> tuple[str, ...]:
    try:
        parts = urllib.parse.urlsplit(url)
        parts.port  # noqa: B018 - raises for what is no port
    except ValueError as error:
        raise InputError(f"is no address: {error}", where=url) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("is no http or https address", where=url, fix="give it as http://HOST:PORT")
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError("has more than host, port and path", where=url, fix="a key goes into --api-key-env")
    if any(ord(c) <= 32 or ord(c) > 126 for c in url):
        raise InputError("is no address: it holds blanks or characters beyond ASCII", where=url)
    path = parts.path.rstrip("/")
    base = f"{parts.scheme}://{parts.netloc}{path}"
    return (base,) if path.endswith("/v1") else (f"{base}/v1", base)


def _listed(answer: Answer, where: str, with_key: bool) -> list[dict[str, Any]]:
    if answer.status in _DENIED:
        fix = (
            "is the key right?" if with_key else "put its key into an environment variable and name that: --api-key-env"
        )
        raise InputError(f"answers {answer.status}: {answer.reason()}", where=where, fix=fix)
    if 300 <= answer.status < 400:
        place = answer.headers.get("location", "nowhere")
        raise InputError(f"redirects to {place}", where=where, fix="not followed: give that address if it is meant")
    try:
        found = answer.document().get("data")
    except ServerFault as error:
        raise InputError(str(error), where=where, fix="is it ready, and OpenAI-compatible?") from None
    cards = (
        [c for c in found if isinstance(c, dict) and isinstance(c.get("id"), str)] if isinstance(found, list) else []
    )
    if not cards:
        raise InputError("lists no model", where=where, fix="is this an OpenAI-compatible server?")
    return cards


def _remedy(problem: str) -> str:
    if problem.startswith("TLS"):
        return "is it https? a certificate of your own is named in SSL_CERT_FILE"
    return "is the server running, and is this its address?"
