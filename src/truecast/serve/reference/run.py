"""Running the server: address, model, thread, signals."""

from __future__ import annotations

import errno
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from truecast.errors import InputError
from truecast.models.device import choose_device
from truecast.models.generate import Resident
from truecast.models.open import open_model
from truecast.models.text import context_length, stop_ids, tokenizer_of
from truecast.serve.reference.app import build_app
from truecast.serve.reference.engine import Engine
from truecast.serve.reference.hosts import is_loopback
from truecast.serve.reference.served import Served

_PORTS_FAULT = (errno.EADDRINUSE, errno.EACCES)

GRACE_S = 3
"""How long open connections may take to close at the end."""


def serve(location: str, host: str, port: int, device: str, ready: Callable[[str, Served], None]) -> None:
    """Serve until SIGTERM (returns) or Ctrl-C (KeyboardInterrupt). Call it in the main thread.

    ``ready`` is told the address and the model once it is loaded; port 0 takes a free one.
    Raises: InputError for a checkpoint that cannot be served, or an address that cannot be listened on.
    """
    listening = _listen(host, port)
    try:
        served = _load(location, device)
    except BaseException:
        listening.close()
        raise
    address = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        build_app(served, loopback=is_loopback(host)),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
    )
    server = uvicorn.Server(config)
    # outside the main thread uvicorn leaves signals alone: it would end the process by the signal it was sent
    thread = threading.Thread(target=server.run, args=([listening],), name="http")

    def stop(_: int, __: FrameType | None) -> None:
        server.should_exit = True

    before = signal.signal(signal.SIGTERM, stop)
    thread.start()
    try:
        ready(f"http://{address}:{listening.getsockname()[1]}", served)
        while thread.is_alive() and not server.should_exit:
            time.sleep(0.1)
    finally:
        served.engine.close()
        server.should_exit = True
        thread.join()
        signal.signal(signal.SIGTERM, before)


def _load(location: str, device: str) -> Served:
    model = open_model(location, device=choose_device(device))
    checkpoint = model.checkpoint
    tokenizer = tokenizer_of(checkpoint)
    if tokenizer.vocab > model.vocab:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab} ids, the model {model.vocab}", where=location, fix="take its own"
        )
    resident = Resident(model)
    return Served(
        names=tuple(dict.fromkeys((Path(location).resolve().name, location))),
        engine=Engine(resident.session),
        tokenizer=tokenizer,
        vocab=model.vocab,
        context=context_length(checkpoint.config, location),
        stops=stop_ids(checkpoint.config, tokenizer),
        created=int(time.time()),
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while")[0]  # which repeats the address
        fix = "choose another --port" if getattr(error, "errno", None) in _PORTS_FAULT else "choose another --host"
        raise InputError(f"cannot listen: {reason}", where=f"{host}:{port}", fix=fix) from None
