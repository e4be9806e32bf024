"""Errors as OpenAI's API words them."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from truecast.serve.reference.wire import json_bytes

_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
}
SHOWN = 3


class ApiError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def document(self) -> dict[str, Any]:
        """The error object."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The error object with its status."""
        return Response(json_bytes(self.document()), self.status, media_type="application/json")


def from_validation(error: ValidationError) -> ApiError:
    """400 with the first few faults, each with its place."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    places = [".".join(map(str, f["loc"])) for f in faults]
    lines = [f"{place}: {f['msg']}" if place else str(f["msg"]) for place, f in zip(places, faults, strict=True)]
    param = str(faults[0]["loc"][0]) if faults and faults[0]["loc"] else None
    return ApiError(400, "; ".join(lines[:SHOWN]), param=param)
