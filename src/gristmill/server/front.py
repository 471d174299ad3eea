"""The one middleware, in pure ASGI: request id, guard, drain, size limit, log line, and no error without an answer."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gristmill.core.errors import BodyTooLarge, GristmillError
from gristmill.server.guard import Guard, Headers
from gristmill.server.lifecycle import Lifecycle
from gristmill.server.log import RequestRecord, write_record
from gristmill.server.reply import error_reply, fault_reply, stopping
from gristmill.server.settings import ServerSettings

RECORD = "gristmill.record"  # the key of the request's record in its scope
PROBES = frozenset({"/health", "/ready", "/metrics", "/version"})  # answered while draining, and not logged
_REQUEST_ID = re.compile(rb"^[\x21-\x7e]{1,128}$")

log = logging.getLogger("gristmill.server")


class Front:
    """Stands before every route."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, lifecycle: Lifecycle) -> None:
        self._app = app
        self._settings = settings
        self._lifecycle = lifecycle
        self._guard = Guard(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await _refuse_connection(scope, receive, send)
            return
        scope["path"] = canonical_path(scope["path"])
        headers: Headers = dict(scope["headers"])
        record = RequestRecord(_request_id(headers), scope["method"], scope["path"], time.monotonic_ns())
        scope[RECORD] = record
        reply = _Reply(send, record, self._guard.cors_headers(headers))
        is_probe = scope["path"] in PROBES
        if not is_probe:
            self._lifecycle.enter()
        try:
            await self._answer(scope, receive, reply, headers, record)
        finally:
            if not is_probe:
                self._lifecycle.leave()
                write_record(record, time.monotonic_ns())

    async def _answer(self, scope: Scope, receive: Receive, reply: _Reply, headers: Headers, record: RequestRecord) -> None:
        try:
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                await _no_content(reply, self._guard.preflight_headers(headers))
                return
            record.tenant = self._guard.admit(scope["path"], headers)
            if self._lifecycle.is_draining and scope["path"] not in PROBES:
                raise stopping()
            _check_length(headers, self._settings.body_limit_bytes)
            await self._app(scope, receive, reply.send)
        except GristmillError as error:
            await reply.fail(error_reply(error), scope, receive)
        except Exception:
            log.exception("request %s failed", record.id)
            await reply.fail(fault_reply(), scope, receive)


class _Reply:
    """Adds our headers to a response's start."""

    def __init__(self, send: Send, record: RequestRecord, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._record = record
        self._headers = [(b"x-request-id", record.id.encode()), *headers]

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self._record.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._headers]
        await self._send(message)

    async def fail(self, answer: ASGIApp, scope: Scope, receive: Receive) -> None:
        """Send an error, if nothing was sent yet."""
        if self._record.status == 0:
            await answer(scope, receive, self.send)


def canonical_path(path: str) -> str:
    """Drop `/v1` from the beginning and slashes from the end: every base URL works."""
    path = path.rstrip("/")
    return path.removeprefix("/v1") if path == "/v1" or path.startswith("/v1/") else path


def _request_id(headers: Headers) -> str:
    given = headers.get(b"x-request-id", b"")
    return given.decode() if _REQUEST_ID.match(given) else f"req-{uuid.uuid4().hex}"


def _check_length(headers: Headers, limit: int) -> None:
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and (len(length) > 18 or int(length) > limit):
        raise too_large(f"{length.decode()[:24]} bytes", limit)


def too_large(size: str, limit: int) -> BodyTooLarge:
    """Return the error for a body over the limit."""
    return BodyTooLarge(f"the body has {size}; {limit:,} are allowed.", "send less, or restart with a larger --body-limit.")


async def _no_content(reply: _Reply, headers: list[tuple[bytes, bytes]]) -> None:
    await reply.send({"type": "http.response.start", "status": 204, "headers": headers})
    await reply.send({"type": "http.response.body", "body": b""})


async def _refuse_connection(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
