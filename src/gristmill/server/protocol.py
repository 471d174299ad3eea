"""uvicorn's HTTP protocol, with a client's leaving told to every request of its connection, and errors in our shape."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gristmill.server.reply import plain_error


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    uvicorn tells only the newest request of a connection that the client has left. A client may send several before the
    first is answered; the one that runs would then go on until it is through, and write to a closed socket.
    """

    def connection_made(self, transport: object) -> None:
        """Begin a connection, which has no requests yet."""
        self._cycles: list[RequestResponseCycle] = []
        super().connection_made(transport)  # type: ignore[arg-type]

    def on_headers_complete(self) -> None:
        """Begin a request."""
        super().on_headers_complete()
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles.append(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all requests that run or wait; none that waits begins any more."""
        self.pipeline.clear()
        super().connection_lost(exc)
        for cycle in self._cycles:
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, as any other error is answered, and close."""
        response = plain_error(400, msg, "send an HTTP/1.1 request.", "invalid_request", {"connection": "close"})
        lines = [b"HTTP/1.1 400 Bad Request", *(name + b": " + value for name, value in response.raw_headers), b"", response.body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: the request is answered as one without an upgrade."""
