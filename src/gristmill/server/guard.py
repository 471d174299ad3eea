"""Who may call: keys, host names and origins. Pure functions over a request's headers."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import urlsplit

from gristmill.core.errors import OriginRefused, Unauthorized
from gristmill.server.settings import ANY_ORIGIN, ServerSettings, is_loopback

OPEN_PATHS = frozenset({"/health", "/ready"})
Headers = Mapping[bytes, bytes]
_HEADER_NAMES = re.compile(r"^[A-Za-z0-9-]+(\s*,\s*[A-Za-z0-9-]+)*$")
_EXPOSED = (
    "x-request-id, x-gristmill-seed, x-gristmill-ignored, x-gristmill-queue-ms, x-gristmill-prefill-ms, x-gristmill-decode-ms"
)


class Guard:
    """Decides about requests. Raises: Unauthorized, OriginRefused."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._digests = [sha256(key.encode()).digest() for key in settings.api_keys]
        self._open_paths = OPEN_PATHS | ({"/metrics"} if settings.metrics_open else set())

    def admit(self, path: str, headers: Headers) -> str:
        """Check a request and return its tenant: one per key, "" without keys."""
        if path in OPEN_PATHS:
            return ""
        if self._digests:
            return "" if path in self._open_paths else self._tenant_of(headers)
        if self._settings.is_open_loopback:
            self._check_host(headers)
        self._check_origin(headers)
        return ""

    def cors_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers that let a page of an allowed origin read the response."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not self._is_listed(origin):
            return []
        allowed = (b"access-control-allow-origin", origin.encode("latin-1"))
        return [allowed, (b"access-control-expose-headers", _EXPOSED.encode()), (b"vary", b"Origin")]

    def preflight_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return what answers a preflight, beside `cors_headers`. Raises: OriginRefused."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not self._is_listed(origin):
            raise _refused_origin(origin)
        asked = headers.get(b"access-control-request-headers", b"").decode("latin-1")
        names = asked if _HEADER_NAMES.match(asked) else "authorization, content-type, x-request-id"
        return [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", names.encode()),
            (b"access-control-max-age", b"600"),
        ]

    def _tenant_of(self, headers: Headers) -> str:
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise Unauthorized("this server needs an API key.", "send the header Authorization: Bearer KEY.")
        given = sha256(key.strip()).digest()
        # All keys are compared, each in constant time: how long it takes says nothing.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if not any(matches):
            raise Unauthorized("the API key is wrong.", "send one of the keys in the server's key file.")
        return given.hex()[:16]

    def _check_host(self, headers: Headers) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        name = _host_name(host)
        if not is_loopback(name) and name != self._settings.host:
            raise OriginRefused(
                f"the Host header is {host[:100]!r}, which is not this machine's loopback address.",
                "call http://127.0.0.1 or http://localhost, or start the server with --api-key-file.",
            )

    def _check_origin(self, headers: Headers) -> None:
        if b"origin" not in headers:
            return
        origin = headers[b"origin"].decode("latin-1")
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_listed(origin) and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            raise _refused_origin(origin)

    def _is_listed(self, origin: str) -> bool:
        allowed = self._settings.cors_origins
        return bool(origin) and (origin in allowed or ANY_ORIGIN in allowed)


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _refused_origin(origin: str) -> OriginRefused:
    return OriginRefused(
        f"a page of {origin[:100]!r} may not call this server.", "start the server with --cors-origin and that origin."
    )
