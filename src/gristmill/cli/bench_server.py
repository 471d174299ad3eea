"""Speed of any OpenAI-compatible server: TTFT, ITL and throughput, from raw bytes of its streams."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from gristmill.core.errors import SettingsError


@dataclass(slots=True)
class _Stream:
    started_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    error: str = ""


def measure_server(url: str, model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Send greedy completions and return percentiles in ms and tokens per second. Raises: SettingsError."""
    return asyncio.run(_Client(url, model, options).measure())


class _Client:
    def __init__(self, url: str, model: str, options: dict[str, Any]) -> None:
        self._host, self._port, path = _read_url(url)
        self._path = f"{path if path.endswith('/v1') else path + '/v1'}/completions"
        self._model = model
        self._options = options
        self._random = random.Random(0)

    async def measure(self) -> dict[str, Any]:
        """Run the load and sum it up."""
        started = time.perf_counter()
        streams = await (self._at_rate() if self._options["rate"] else self._at_concurrency())
        wall_s = time.perf_counter() - started
        failed = [stream for stream in streams if stream.error]
        if len(failed) == len(streams):
            raise SettingsError(
                f"no request succeeded: {failed[0].error}", "see that the server runs and serves this model name."
            )
        return self._figures([stream for stream in streams if not stream.error], len(failed), wall_s)

    def _figures(self, streams: list[_Stream], num_failed: int, wall_s: float) -> dict[str, Any]:
        ttft = [(s.chunk_s[0] - s.started_s) * 1e3 for s in streams if s.chunk_s]
        itl = [(b - a) * 1e3 for s in streams for a, b in zip(s.chunk_s, s.chunk_s[1:], strict=False)]
        tokens = sum(s.num_tokens for s in streams)
        figures: dict[str, Any] = {"requests": len(streams), "failed": num_failed, "wall, s": wall_s, "output tokens": tokens}
        for name, values in (("TTFT", ttft), ("ITL", itl)):
            figures |= {f"{name} p{q}, ms": _percentile(values, q) for q in (50, 90, 99)}
        return figures | {"output, tok/s": tokens / wall_s, "requests/s": len(streams) / wall_s}

    async def _at_concurrency(self) -> list[_Stream]:
        gate = asyncio.Semaphore(self._options["concurrency"])

        async def one() -> _Stream:
            async with gate:
                return await self._request()

        return await asyncio.gather(*(one() for _ in range(self._options["num_requests"])))

    async def _at_rate(self) -> list[_Stream]:
        tasks = []
        for _ in range(self._options["num_requests"]):
            tasks.append(asyncio.create_task(self._request()))
            await asyncio.sleep(self._random.expovariate(self._options["rate"]))
        return await asyncio.gather(*tasks)

    def _body(self) -> bytes:
        prompt = [self._random.randrange(1000, 20000) for _ in range(self._options["prompt_tokens"])]
        body = {"model": self._model, "prompt": prompt, "max_tokens": self._options["output_tokens"], "temperature": 0}
        return json.dumps(body | {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}).encode()

    async def _request(self) -> _Stream:
        stream = _Stream(started_s=time.perf_counter())
        try:
            await self._exchange(stream)
        except (OSError, ValueError) as error:  # no host of that name, no server there, one that left, or one that talks nonsense
            stream.error = str(error) or type(error).__name__
        return stream

    async def _exchange(self, stream: _Stream) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 22)
        try:
            body = self._body()
            host = f"[{self._host}]" if ":" in self._host else self._host
            head = f"POST {self._path} HTTP/1.1\r\nHost: {host}:{self._port}\r\nContent-Type: application/json\r\n"
            head += (
                f"Authorization: Bearer {self._options['api_key']}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            await _read_stream(reader, stream)
        finally:
            writer.close()


def _read_url(url: str) -> tuple[str, int, str]:
    """Return host, port and path. Raises: SettingsError."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, port, path = parts.hostname, parts.port or 80, parts.path.rstrip("/")
    except ValueError:  # brackets that do not close, a port that is none
        host, port, path = None, 0, ""
    if host is None or parts.scheme not in ("", "http"):
        raise SettingsError(f"--url is {url!r}.", "give an http:// address like http://127.0.0.1:8080.")
    return host, port, path


async def _read_stream(reader: asyncio.StreamReader, stream: _Stream) -> None:
    status = await reader.readline()
    if b" 200" not in status:
        rest = await reader.read(2000)
        stream.error = f"{status.decode('latin-1').strip()}: {rest.decode('utf-8', 'replace').strip().splitlines()[-1:]}"
        return
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            now = time.perf_counter()
            if b'"usage":{' in line or b'"usage": {' in line:
                usage = json.loads(line[6:]).get("usage") or {}
                stream.num_tokens = usage.get("completion_tokens", stream.num_tokens)
            if b'"choices":[]' not in line and b'"choices": []' not in line:
                stream.chunk_s.append(now)
        elif line.startswith(b"data: [DONE]"):
            break
    else:
        stream.error = "the stream ended without [DONE]"
    stream.num_tokens = stream.num_tokens or len(stream.chunk_s)


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else float("nan")
