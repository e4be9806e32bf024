"""The HTTP side: paths, bodies, errors, and noticing that the client has left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from truecast import __version__
from truecast.errors import InputError
from truecast.serve.reference.chat import Chat, prompt_of
from truecast.serve.reference.completions import Completion
from truecast.serve.reference.errors import ApiError, from_validation
from truecast.serve.reference.hosts import OwnHost
from truecast.serve.reference.schema import ChatRequest, CompletionRequest
from truecast.serve.reference.served import Served
from truecast.serve.reference.wire import json_bytes

MAX_BODY_BYTES = 64 << 20
# long prompts are tokenized in a thread of their own: meanwhile the others are answered
CLIENT_GONE = 499
"""Nobody reads this answer; it only stands in the log."""

Body = TypeVar("Body", bound=BaseModel)


def build_app(served: Served, *, loopback: bool = True) -> FastAPI:
    """The application. It answers bad requests with OpenAI's error object, never with 500.

    With ``loopback`` it answers only to addresses and ``localhost`` (:class:`OwnHost`).
    """
    app = FastAPI(
        title="truecast serve-reference", version=__version__, openapi_url=None, docs_url=None, redoc_url=None
    )

    if loopback:
        app.add_middleware(OwnHost)

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(InputError)
    async def input_error(_: Request, error: InputError) -> Response:
        return ApiError(400, str(error)).response()

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_GONE)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return ApiError(error.status_code, f"{error.detail}: {request.method} {request.url.path}").response()

    @app.exception_handler(Exception)
    async def fault(_: Request, error: Exception) -> Response:
        return ApiError(500, f"{type(error).__name__}: {error}").response()

    @app.get("/health")
    async def health() -> Response:
        running, waiting = served.engine.load()
        return _json({"status": "ok", "running": running, "waiting": waiting})

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [_card(served)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        served.require_name(name)
        return _json(_card(served))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = await _body(request, ChatRequest)
        return await _answer(request, await asyncio.to_thread(Chat, served, asked), stream=bool(asked.stream))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        asked = await _body(request, CompletionRequest)
        return await _answer(request, await asyncio.to_thread(Completion, served, asked), stream=bool(asked.stream))

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        document = await _document(request)
        if "messages" in document:
            asked = _parsed({"model": served.names[0], **document}, ChatRequest)
            tokens = await asyncio.to_thread(prompt_of, served, asked)
        elif isinstance(document.get("prompt"), str):
            tokens = await asyncio.to_thread(served.tokenizer.encode, document["prompt"])
        else:
            raise ApiError(400, "neither messages nor prompt (text) are given")
        return _json({"count": len(tokens), "max_model_len": served.context, "tokens": tokens})

    return app


def _card(served: Served) -> dict[str, Any]:
    return {
        "id": served.names[0],
        "object": "model",
        "created": served.created,
        "owned_by": "truecast",
        "max_model_len": served.context,
    }


def _json(document: Any) -> Response:
    return Response(json_bytes(document), media_type="application/json")


async def _answer(request: Request, work: Chat | Completion, *, stream: bool) -> Response:
    if stream:  # the response itself cancels its generator when the client leaves
        return StreamingResponse(work.stream(), media_type="text/event-stream", headers={"cache-control": "no-cache"})
    return await _unless_gone(request, work.whole())


async def _unless_gone(request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    """The answer, or its cancellation as soon as the client has left."""
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        return _json(answer.result()) if answer.done() else Response(status_code=CLIENT_GONE)
    finally:
        answer.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, kind: type[Body]) -> Body:
    return _parsed(await _document(request), kind)


def _parsed(document: dict[str, Any], kind: type[Body]) -> Body:
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise from_validation(error) from None


async def _document(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises: ApiError 400 or 413."""
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > MAX_BODY_BYTES:
            raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        document = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ApiError(400, "the body is no JSON object")
    return document
