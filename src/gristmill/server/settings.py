"""What the server needs to know of the operator's settings, checked before anything slow is done."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from gristmill.core.errors import SettingsError
from gristmill.core.settings import ServeSettings

ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the server listens, whom it answers and how it ends.

    Raises: SettingsError if it would be open to others than this machine without anyone having said so.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    no_auth: bool = False
    cors_origins: tuple[str, ...] = ()
    metrics_open: bool = False
    drain_timeout_s: float = 30.0
    sse_comment_s: float = 15.0
    body_limit_bytes: int = 32 * 2**20
    log_format: str = "text"
    heartbeat_limit_s: float = 60.0  # an engine silent for longer is taken for dead

    def __post_init__(self) -> None:
        """Check what must not go together."""
        if self.api_keys and ANY_ORIGIN in self.cors_origins:
            raise SettingsError(
                "--cors-origin * would let any web page use the keys.", "name the origins, one --cors-origin URL for each."
            )
        for origin in self.cors_origins:
            if origin != ANY_ORIGIN and not _ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"--cors-origin {origin!r} is no origin: no browser sends it.",
                    "write it as a browser does, like http://localhost:3000, in lower case and without a path.",
                )
        if not self.api_keys and not self.no_auth and not is_loopback(self.host):
            raise SettingsError(
                f"{self.host or 'an empty host'} can be reached from other machines, and there are no keys.",
                "give --api-key-file FILE (one key per line), or listen on 127.0.0.1, or say --no-auth.",
            )

    @property
    def is_open_loopback(self) -> bool:
        """Return whether everyone on this machine is answered, and only them: then host names are checked."""
        return not self.api_keys and is_loopback(self.host)


def server_settings(settings: ServeSettings) -> ServerSettings:
    """Take the server's part out of `gristmill serve`'s settings, and read the keys. Raises: SettingsError."""
    return ServerSettings(
        host=settings.host,
        port=settings.port,
        api_keys=_read_keys(settings.api_key_file) if settings.api_key_file is not None else (),
        no_auth=settings.no_auth,
        cors_origins=tuple(origin.rstrip("/") for origin in settings.cors_origin),
        metrics_open=settings.metrics_open,
        drain_timeout_s=settings.drain_timeout_s,
        sse_comment_s=settings.sse_comment_s,
        body_limit_bytes=settings.body_limit,
        log_format=settings.log_format,
    )


def is_loopback(host: str) -> bool:
    """Return whether `host` (a name or a literal address) is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _read_keys(file: Path) -> tuple[str, ...]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the key file {file} cannot be read: {error}.", "write one key per line into it.") from error
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise SettingsError(f"the key file {file} has no key in it.", "write one key per line into it.")
    if any(" " in key or not key.isascii() or not key.isprintable() for key in keys):
        raise SettingsError(f"a key in {file} has characters that no header can carry.", "use printable ASCII without spaces.")
    return keys
