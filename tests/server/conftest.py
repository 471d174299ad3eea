"""A real server on a loopback port, in a thread, over the scripted deployment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from tests.service.scripted import ScriptedDeployment, scripted_deployment

from gristmill.server.listener import listen, url_of
from gristmill.server.settings import ServerSettings
from gristmill.server.uvicorn_server import Server
from gristmill.service.generate import Service


@dataclass
class Running:
    """A server that runs, and what a test needs to talk with it."""

    url: str
    server: Server
    deployment: ScriptedDeployment
    thread: threading.Thread
    http: httpx.Client

    def client(self, **fields: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **fields})

    def on_loop(self, work: Callable[[], object]) -> None:
        """Do something on the server's loop."""
        self.server.loop.call_soon_threadsafe(work)

    def settle(self) -> None:
        """Wait until the loop has done what it was at: a response arrives before its log line is written."""
        done = threading.Event()
        self.on_loop(done.set)
        assert done.wait(20)

    def join(self) -> int:
        """Wait for the server's end and return its exit code."""
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.server.exit_code


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers; `deployment` has the fields of the scripted deployment, the rest is ServerSettings'."""
    ends: list[Callable[[], None]] = []

    def begin(deployment: dict[str, Any] | None = None, **settings: Any) -> Running:
        running, end = _start(deployment or {}, {"port": 0, **settings})
        ends.append(end)
        return running

    yield begin
    for end in ends:
        end()


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """One server with default settings for all tests of a module that change nothing."""
    running, end = _start({}, {"port": 0})
    yield running
    end()


def _start(deployment_fields: dict[str, Any], settings_fields: dict[str, Any]) -> tuple[Running, Callable[[], None]]:
    context = scripted_deployment(**deployment_fields)
    deployment = context.__enter__()
    settings = ServerSettings(**settings_fields)
    service = Service({deployment.name: deployment})  # type: ignore[dict-item]
    listener = listen("127.0.0.1", settings.port)
    ready = threading.Event()
    server = Server(service, settings, deployment.metrics.exposition, ready.set)
    thread = threading.Thread(target=server.run_until_stopped, args=(listener,), daemon=True)
    thread.start()
    assert ready.wait(20)
    url = url_of("127.0.0.1", listener)
    running = Running(url, server, deployment, thread, httpx.Client(base_url=url, timeout=30))

    def end() -> None:
        deployment.executable.free()
        if thread.is_alive():
            running.on_loop(lambda: server.stop(timeout_s=0.0))
        running.join()
        running.http.close()
        service.close()
        context.__exit__(None, None, None)

    return running, end
