"""Below HTTP's surface: what is not HTTP, and clients that send the next request before the answer."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.server.conftest import Running, Start

ENDLESS = json.dumps({"prompt": "endless", "stream": True, "max_tokens": 1000}).encode()
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(ENDLESS), ENDLESS)


def connect(running: Running) -> socket.socket:
    parts = urlsplit(running.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def test_a_client_that_leaves_with_requests_in_line_is_no_fault_of_ours(start: Start, caplog: Any) -> None:
    running = start()
    deployment = running.deployment
    deployment.executable.hold()
    with connect(running) as client:
        client.sendall(REQUEST * 5)
        assert deployment.submitted.acquire(timeout=20)
        client.recv(1)
    deployment.executable.free()
    assert deployment.aborted.acquire(timeout=20)
    answer = running.http.post("/v1/completions", json={"prompt": "{done}"}).json()
    running.settle()
    assert answer["choices"][0]["text"] == "done"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert deployment.engine.stats().num_referenced_blocks == 0


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00\x01", b"FOO / HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_not_http_is_a_400_in_openais_shape(shared: Running, junk: bytes) -> None:
    with connect(shared) as client:
        client.sendall(junk)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-length: %d" % len(body) in head
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_request"
    assert "Mend: " in error["message"]


def test_an_upgrade_is_answered_as_a_plain_request_and_not_logged_as_something_to_install(shared: Running, caplog: Any) -> None:
    response = shared.http.get("/version", headers={"Connection": "upgrade", "Upgrade": "websocket"})
    shared.settle()
    assert response.status_code == 200
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
