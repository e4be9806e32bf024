"""Which names a server on a loopback address answers to: a web page must not reach it through a name of its own."""

from __future__ import annotations

import ipaddress
from reprlib import repr as short

from starlette.types import ASGIApp, Receive, Scope, Send

from truecast.serve.reference.errors import ApiError


class OwnHost:
    """ASGI middleware: 403 for a ``Host`` header that is neither an address nor ``localhost``.

    A page whose name is made to mean 127.0.0.1 ("DNS rebinding") could else read what the server answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            for key, value in scope["headers"]:
                if key == b"host" and not is_own(value.decode("latin-1")):
                    refused = ApiError(
                        403,
                        f"this server listens on a loopback address and does not answer to {short(value.decode('latin-1'))};"
                        " say 127.0.0.1 or localhost, or start it with --host 0.0.0.0",
                    )
                    await refused.response()(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def is_own(header: str) -> bool:
    """Is this ``Host`` header an address, or ``localhost``? A port may follow."""
    host = header[1 : header.find("]")] if header.startswith("[") else header.rsplit(":", 1)[0]
    return host.lower().rstrip(".") == "localhost" or is_address(host)


def is_loopback(host: str) -> bool:
    """Does ``host``, as in ``--host``, name a loopback address?"""
    return host.lower() == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Is this an IP address?"""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
