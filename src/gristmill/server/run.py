"""`gristmill serve`: from the settings to a listening server, and to its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import uvicorn

from gristmill.core.errors import AddressInUse, GristmillError, ServerUnavailable, SettingsError
from gristmill.core.settings import ServeSettings
from gristmill.metrics.engine_metrics import EngineMetrics
from gristmill.repository.deployment import load_deployment
from gristmill.server.app import create_app
from gristmill.server.lifecycle import Lifecycle
from gristmill.server.log import configure_logging
from gristmill.server.reply import stopping
from gristmill.server.settings import ServerSettings, server_settings
from gristmill.service.generate import Service

BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than clients and proxies keep theirs, so that they close first
LAST_WORDS_S = 2.0  # for final error events to reach their clients
Announce = Callable[[str, list[str]], None]

log = logging.getLogger("gristmill.server")


def serve(model: str, settings: ServeSettings, announce: Announce) -> int:
    """Load `model` and serve it until a signal; return the exit code: 0, or 1 if the engine died.

    `announce` gets the URL and what was resolved, once the server is ready. The port is taken before the model
    is loaded, so that a busy one is known at once.
    Raises: the operator errors of `core.errors`.
    """
    own = server_settings(settings)
    configure_logging(own.log_format)
    listener = listen(own.host, own.port)
    with contextlib.closing(listener):
        metrics = EngineMetrics()
        deployment = load_deployment(model, settings, name=settings.name, metrics=metrics)
        service = Service({deployment.name: deployment})
        try:
            server = Server(
                service, own, metrics.exposition, lambda: announce(url_of(own.host, listener), deployment.resolved.lines())
            )
            return server.run_until_stopped(listener)
        finally:
            service.close()
            deployment.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises: AddressInUse, or SettingsError for a host that is not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
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


class Server(uvicorn.Server):
    """uvicorn with our end: drain, last words, exit code. The second signal ends the process at once."""

    def __init__(
        self,
        service: Service,
        settings: ServerSettings,
        metrics_text: Callable[[], bytes],
        on_ready: Callable[[], None],
    ) -> None:
        self.lifecycle = Lifecycle()
        self.exit_code = 0
        self._service = service
        self._settings = settings
        self._on_ready = on_ready
        self._drain: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                create_app(service, settings, self.lifecycle, metrics_text),
                http="httptools",
                loop="uvloop",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(LAST_WORDS_S),
            )
        )

    def run_until_stopped(self, listener: socket.socket) -> int:
        """Serve on `listener`; return the exit code."""
        self.run([listener])
        return self.exit_code

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, and say so."""
        await super().startup(sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Look after the engines; uvicorn calls this ten times a second."""
        for name, deployment in self._service.deployments.items():
            if not deployment.engine.is_alive and self._drain is None:
                log.critical("the engine of %s has died; the server stops", name)
                self.exit_code = 1
                self.stop(deployment.engine.error or ServerUnavailable("the engine died.", "restart the server."), 0.0)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT our way, where signals can be handled at all."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        yield
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def stop(self, error: GristmillError | None = None, timeout_s: float | None = None) -> None:
        """Refuse new requests, finish what runs within the timeout, end the rest with `error`; then exit."""
        self.lifecycle.is_draining = True
        wait_s = self._settings.drain_timeout_s if timeout_s is None else timeout_s
        self._drain = asyncio.get_running_loop().create_task(self._finish(error or stopping(), wait_s))

    def _on_signal(self) -> None:
        if self._drain is None:
            log.info("stopping: no new requests, at most %.0f s for those that run", self._settings.drain_timeout_s)
            self.stop()
            return
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.exit_code)

    async def _finish(self, error: GristmillError, wait_s: float) -> None:
        if not await self.lifecycle.wait_idle(wait_s):
            self._service.fail_all(error)
            await self.lifecycle.wait_idle(LAST_WORDS_S)
        self.should_exit = True


def _bind_error(host: str, port: int, error: OSError) -> GristmillError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{host}:{port} is in use by another process.", "stop it, or give --port another number; --port 0 takes a free one."
        )
    if error.errno == errno.EACCES:
        return SettingsError(f"port {port} may not be used: {error.strerror}.", "give --port a number from 1024 on.")
    return SettingsError(f"{host}:{port} cannot be listened on: {error.strerror}.", "give --host an address of this machine.")
