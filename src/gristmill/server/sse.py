"""Server-sent events, written with one send per step, and the client's leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gristmill.core.errors import GristmillError
from gristmill.server.reply import error_object, to_json
from gristmill.service.generation import Generation
from gristmill.service.stream import Delta

DONE = b"data: [DONE]\n\n"
SILENT = b": still working\n\n"


class ChunkWriter(Protocol):
    """Writes one kind of answer as events."""

    def opening(self) -> bytes:
        """Return the events before the first delta."""
        ...

    def chunk(self, delta: Delta) -> bytes:
        """Return the events of a delta; called once per choice and step, so it must be quick."""
        ...

    def closing(self, generation: Generation) -> bytes:
        """Return the events after the last delta, without [DONE]."""
        ...


class Departure:
    """Cancels a generation when its client leaves, in whatever phase it is. Begins once the body is read."""

    def __init__(self, receive: Receive) -> None:
        self.has_left = False
        self._generation: Generation | None = None
        self._task = asyncio.get_running_loop().create_task(self._watch(receive))

    def attach(self, generation: Generation) -> None:
        """Watch on behalf of `generation`; the client may already have left."""
        self._generation = generation
        if self.has_left:
            generation.cancel()

    def close(self) -> None:
        """Stop watching; what still runs is cancelled."""
        self._task.cancel()
        if self._generation is not None:
            self._generation.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.has_left = True
        if self._generation is not None:
            self._generation.cancel()


class EventStream(Response):
    """A streamed answer. The last event of one that failed is its error, and then there is no [DONE]."""

    def __init__(
        self, generation: Generation, writer: ChunkWriter, departure: Departure, comment_s: float, headers: Mapping[str, str]
    ) -> None:
        own = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(None, 200, {**headers, **own}, "text/event-stream")
        del self.headers["content-length"]
        self._generation = generation
        self._writer = writer
        self._departure = departure
        self._comment_s = comment_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write events until the answer is over or the client has left."""
        silence = _Silence(self._generation, self._comment_s)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._writer.opening(), "more_body": True})
            await self._write(send, silence)
        finally:
            silence.close()
            self._departure.close()

    async def _write(self, send: Send, silence: _Silence) -> None:
        generation, chunk = self._generation, self._writer.chunk
        now_s = asyncio.get_running_loop().time
        while True:
            try:
                deltas = await generation.deltas()
            except GristmillError as error:
                await send({"type": "http.response.body", "body": event(error_object(error)), "more_body": False})
                return
            if len(deltas) == 1:
                data = chunk(deltas[0])
            else:
                data = b"".join(map(chunk, deltas)) if deltas or generation.is_over else SILENT
            if generation.is_over and generation.error is None:
                last = data + self._writer.closing(generation) + _times(generation) + DONE
                await send({"type": "http.response.body", "body": last, "more_body": False})
                return
            if data:
                silence.last_sent_s = now_s()
                await send({"type": "http.response.body", "body": data, "more_body": True})


class _Silence:
    """Wakes a stream that has sent nothing for one interval; costs one assignment per send."""

    def __init__(self, generation: Generation, interval_s: float) -> None:
        self._generation = generation
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self.last_sent_s = self._loop.time()
        self._timer = self._loop.call_later(interval_s, self._tick)

    def close(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        now_s = self._loop.time()
        if now_s - self.last_sent_s >= self._interval_s:
            self._generation.wake()
            self.last_sent_s = now_s
        self._timer = self._loop.call_at(self.last_sent_s + self._interval_s, self._tick)


def event(value: object) -> bytes:
    """Return one event with a JSON value."""
    return b"data: " + to_json(value) + b"\n\n"


def _times(generation: Generation) -> bytes:
    usage = generation.usage
    times = " ".join(
        f"{name}_ms={ns / 1e6:.3f}"
        for name, ns in (("queue", usage.queue_ns), ("prefill", usage.prefill_ns), ("decode", usage.decode_ns))
    )
    return f": gristmill {times}\n\n".encode()
