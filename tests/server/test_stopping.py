"""From SIGTERM to exit: drain, refusals, last words, the second signal; and what stops a server from starting."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.server.conftest import Running, Start

from gristmill.core.errors import AddressInUse, SettingsError
from gristmill.server.listener import listen, url_of

ROOT = Path(__file__).parents[2]
BODY = {"prompt": "{hello}", "stream": True}
Launch = Callable[[float], tuple["subprocess.Popen[str]", httpx.Client]]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start a server in a process of its own, with so many seconds to drain."""
    processes: list[subprocess.Popen[str]] = []
    clients: list[httpx.Client] = []

    def begin(drain_timeout_s: float) -> tuple[subprocess.Popen[str], httpx.Client]:
        command = [sys.executable, "-m", "tests.server.stubborn_server", str(drain_timeout_s)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        client = httpx.Client(base_url=process.stdout.readline().strip(), timeout=30)
        clients.append(client)
        return process, client

    yield begin
    for client in clients:
        client.close()
    for process in processes:
        process.kill()
        process.communicate()


def until_refusing(client: httpx.Client) -> None:
    """Wait until the signal has been seen: each look is a whole request."""
    while client.get("/ready").status_code == 200:
        pass


def test_sigterm_refuses_what_is_new_and_finishes_what_runs(launch: Launch) -> None:
    process, client = launch(60.0)
    with client.stream("POST", "/v1/completions", json=BODY) as running:
        lines = running.iter_lines()
        assert '"text":"h"' in next(lines)
        process.send_signal(signal.SIGTERM)
        until_refusing(client)
        refused = client.post("/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert refused.headers["retry-after"]
        assert client.get("/health").status_code == 200
        process.send_signal(signal.SIGUSR1)
        rest = "\n".join(lines)
    assert rest.rstrip().endswith("data: [DONE]")
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0, log
    lines_of_log = [json.loads(line) for line in log.splitlines()]
    assert any(line.get("finish") == "stop" and line["completion_tokens"] == 6 for line in lines_of_log)


def test_what_outlasts_the_drain_gets_a_final_error_event(launch: Launch) -> None:
    process, client = launch(0.05)
    with client.stream("POST", "/v1/completions", json=BODY) as running:
        lines = running.iter_lines()
        assert '"text":"h"' in next(lines)
        process.send_signal(signal.SIGINT)
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "unavailable"
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30) == 0


def test_a_second_signal_ends_now(launch: Launch) -> None:
    process, client = launch(3600.0)
    with client.stream("POST", "/v1/completions", json=BODY) as running:
        assert '"text":"h"' in next(running.iter_lines())
        process.send_signal(signal.SIGTERM)
        until_refusing(client)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_an_idle_server_stops_at_once(launch: Launch) -> None:
    process, client = launch(3600.0)
    assert client.get("/ready").status_code == 200
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30) == 0


def test_a_whole_answer_that_outlasts_the_drain_is_a_503(start: Start) -> None:
    running: Running = start(drain_timeout_s=0.0)
    running.deployment.executable.hold()
    with httpx.Client(base_url=running.url, timeout=30) as client:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", json={"prompt": "{x}"})))
        thread.start()
        assert running.deployment.submitted.acquire(timeout=20)
        running.on_loop(running.server.stop)
        thread.join(20)
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "unavailable"
    assert running.join() == 0


def test_a_busy_port_is_named_with_the_mend() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(AddressInUse, match="--port") as caught:
        listen("127.0.0.1", taken.getsockname()[1])
    assert str(taken) != str(caught.value)


def test_an_address_that_is_not_ours_is_named_with_the_mend() -> None:
    with pytest.raises(SettingsError, match="--host"):
        listen("203.0.113.7", 0)


def test_a_name_that_is_no_host_name_is_told_with_the_mend() -> None:
    with pytest.raises(SettingsError, match="has no address"):
        listen("a" * 300, 0)


def test_the_url_shows_an_address_that_can_be_called() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of("0.0.0.0", listener) == f"http://127.0.0.1:{port}"
        assert url_of("::1", listener) == f"http://[::1]:{port}"
        assert url_of("localhost", listener) == f"http://localhost:{port}"
