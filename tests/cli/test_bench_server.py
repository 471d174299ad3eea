"""The load generator before servers that break off."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import pytest

from gristmill.cli.bench_server import measure_server
from gristmill.core.errors import SettingsError

OPTIONS: dict[str, Any] = {
    "api_key": "none",
    "num_requests": 1,
    "concurrency": 1,
    "rate": 0.0,
    "prompt_tokens": 2,
    "output_tokens": 2,
}


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"message": "no"}}\n\n', r"without \[DONE\]"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5_000_000, "limit"),
        (b"", ":"),
    ],
)
def test_a_stream_that_breaks_off_is_a_failed_request(answer: bytes, part: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_once, args=(listener, answer))
        thread.start()
        with pytest.raises(SettingsError, match=f"no request succeeded: .*{part}"):
            measure_server(f"http://127.0.0.1:{listener.getsockname()[1]}", "m", OPTIONS)
        thread.join()


def _answer_once(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        with contextlib.suppress(ConnectionError):  # the other side may have had enough
            connection.sendall(answer)
