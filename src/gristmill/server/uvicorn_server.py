"""uvicorn with our end: drain, last words, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import uvicorn

from gristmill.core.errors import GristmillError, ServerUnavailable
from gristmill.server.app import create_app
from gristmill.server.gateway import MetricsText
from gristmill.server.lifecycle import Lifecycle
from gristmill.server.protocol import HttpProtocol
from gristmill.server.reply import stopping
from gristmill.server.settings import ServerSettings
from gristmill.service.generate import Service

KEEP_ALIVE_S = 75  # longer than clients and proxies keep theirs, so that they close first
LAST_WORDS_S = 2.0  # for final error events to reach their clients

log = logging.getLogger("gristmill.server")


class Server(uvicorn.Server):
    """Serves until a signal, or until an engine dies. The second signal ends the process at once."""

    def __init__(
        self,
        service: Service,
        settings: ServerSettings,
        metrics_text: MetricsText,
        on_ready: Callable[[], None],
    ) -> None:
        self.lifecycle = Lifecycle()
        self.loop: asyncio.AbstractEventLoop  # set when it runs
        self.exit_code = 0
        self._service = service
        self._settings = settings
        self._on_ready = on_ready
        self._drain: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                create_app(service, settings, self.lifecycle, metrics_text),
                http=HttpProtocol,
                loop="uvloop",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
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
        self.loop = asyncio.get_running_loop()
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
