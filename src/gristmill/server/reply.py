"""JSON replies and errors in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from gristmill.core.errors import GristmillError, ServerUnavailable

STOPPING = "the server is stopping."
STOPPING_MEND = "send the request to another server, or again when this one is back."


def to_json(value: Any) -> bytes:
    """Write compact JSON. Text is never a lone surrogate here: requests with one are refused."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON body."""
    return Response(to_json(value), status, headers, "application/json")


def error_object(error: GristmillError) -> dict[str, Any]:
    """Return OpenAI's error object; the message ends with the mend."""
    message = f"{error.message} Mend: {error.mend}"
    return {"error": {"message": message, "type": error.error_type, "param": error.param, "code": error.code}}


def error_reply(error: GristmillError) -> Response:
    """Return an error's response, with Retry-After where trying again may help."""
    headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(_safe_json(error_object(error)), error.http_status, headers, "application/json")


def plain_error(status: int, message: str, mend: str, code: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error that is not one of `core.errors`: a route or a method that does not exist, a fault of ours."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": f"{message} Mend: {mend}", "type": kind, "param": None, "code": code}}
    return Response(_safe_json(body), status, headers, "application/json")


def fault_reply() -> Response:
    """Return the answer to a request at which we failed."""
    return plain_error(500, "the server failed at this request.", "report it with the server's log.", "internal_error")


def stopping() -> ServerUnavailable:
    """Return the error for requests that the end of the server cuts off or refuses."""
    return ServerUnavailable(STOPPING, STOPPING_MEND)


def _safe_json(value: Any) -> bytes:
    # A message may quote what the client sent, whatever that was.
    return json.dumps(value, separators=(",", ":")).encode()
