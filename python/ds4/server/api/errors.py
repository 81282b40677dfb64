"""Refusals and failures in the shape that each family of clients reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ..contract import RequestError

Family = Literal["openai", "anthropic"]

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def family_of(path: str, headers: Mapping[bytes, bytes]) -> Family:
    """Return whose shapes the client of a request reads."""
    if path == "/v1/messages" or path.startswith("/v1/messages/") or b"anthropic-version" in headers:
        return "anthropic"
    return "openai"


def error_object(family: Family, error: RequestError, request_id: str) -> dict[str, Any]:
    """Return the body that tells a client of an error."""
    if family == "anthropic":
        kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        inner = {"type": kind, "message": error.message, **error.extra}
        return {"type": "error", "error": inner, "request_id": request_id}
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
            **error.extra,
        }
    }


def error_body(family: Family, error: RequestError, request_id: str) -> bytes:
    """Return `error_object` as JSON text."""
    return msgspec.json.encode(error_object(family, error, request_id))


def server_error(message: str, *, status: int = 500, code: str | None = None) -> RequestError:
    """Return the error of a request that was right."""
    return RequestError(message, status=status, type="server_error", code=code)
