"""The socket that the server listens on, taken before anything slow is done."""

from __future__ import annotations

import errno
import socket

from gristmill.core.errors import AddressInUse, GristmillError, SettingsError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises: AddressInUse, or SettingsError for a host that is not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:  # a name that is no host name fails in its encoding
        raise SettingsError(f"the host {host!r} has no address: {error}.", "give --host an address of this machine.") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _bind_error(host, port, error) from error
    return listener


def url_of(host: str, listener: socket.socket) -> str:
    """Return the URL of a listening socket; an address that stands for all is shown as the loopback one."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{listener.getsockname()[1]}"


def _bind_error(host: str, port: int, error: OSError) -> GristmillError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{host}:{port} is in use by another process.", "stop it, or give --port another number; --port 0 takes a free one."
        )
    if error.errno == errno.EACCES:
        return SettingsError(f"port {port} may not be used: {error.strerror}.", "give --port a number from 1024 on.")
    return SettingsError(f"{host}:{port} cannot be listened on: {error.strerror}.", "give --host an address of this machine.")
