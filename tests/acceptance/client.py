"""What the acceptance tests say to a server: raw HTTP, so that nothing is smoothed over."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx

MAX_LOOKS = 100_000  # each is a whole request to the server; so many without a change mean that it never comes


class Client:
    """Calls one server. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=None)
        self.host, port = url.removeprefix("http://").split(":")
        self.port = int(port)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """A whole completion; greedy unless `fields` say otherwise."""
        answer = self.http.post("/v1/completions", json={"prompt": prompt, "temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def text(self, prompt: Any, **fields: Any) -> str:
        text: str = self.complete(prompt, **fields)["choices"][0]["text"]
        return text

    def chunks(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a stream; checks that it ends with [DONE]."""
        with self.http.stream("POST", path, json={"stream": True, **fields}) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", lines
        return [json.loads(line) for line in lines[:-1]]

    def stream(self, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed completion; greedy unless `fields` say otherwise."""
        return self.chunks("/v1/completions", prompt=prompt, **{"temperature": 0, **fields})

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
        return ids

    def refused(self, path: str, body: bytes | dict[str, Any]) -> dict[str, Any]:
        """The error of a request that must be refused with a 4xx."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.http.post(path, content=data)
        assert 400 <= answer.status_code < 500, f"{answer.status_code} for {data[:200]!r}: {answer.text[:300]}"
        return {"status": answer.status_code, **answer.json()["error"]}

    def metric(self, name: str) -> float:
        """A metric's value, by its name with labels, as the exposition writes it."""
        lines = self.http.get("/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)

    def look_until(self, holds: Callable[[], bool]) -> None:
        """Look again and again until it holds: the server is waited for, not a clock."""
        assert any(holds() for _ in range(MAX_LOOKS))

    def begin(self, prompt: Any, **fields: Any) -> socket.socket:
        """Send a completion and leave the answer unread: closing the socket is a client that leaves."""
        body = json.dumps({"prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
        connection = socket.create_connection((self.host, self.port))
        connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return connection


def joined(chunks: list[dict[str, Any]]) -> str:
    """The text of a stream's chunks."""
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
