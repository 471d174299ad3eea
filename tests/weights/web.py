"""A small HTTP server in this process: files with ranges, connections that break, and answers made by a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Page:
    """What a path answers. `cut_after` breaks the first connection after so many bytes."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    takes_ranges: bool = True
    cut_after: int | None = None


@dataclass
class Site:
    """Paths and their pages; `requests` keeps (method, path, Range header)."""

    url: str
    pages: dict[str, Page] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)


@contextmanager
def serve() -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    site = Site(f"http://127.0.0.1:{server.server_address[1]}")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"site": site})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    site: Site
    do_GET: Callable[[_Handler], None]

    def answer(self, *, with_body: bool) -> None:
        path = self.path.split("?", 1)[0]
        self.site.requests.append((self.command, path, self.headers.get("Range")))
        page = self.site.pages.get(path, Page(b"missing", 404))
        status, body, headers = page.status, page.body, dict(page.headers)
        asked = self.headers.get("Range")
        if asked and page.takes_ranges and status == 200:
            start = int(asked.removeprefix("bytes=").split("-")[0])
            if start >= len(body):
                status, body = 416, b""
            else:
                status, headers = 206, {**headers, "Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
                body = body[start:]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body if page.cut_after is None else body[: page.cut_after])
            if page.cut_after is not None:
                page.cut_after = None
                self.close_connection = True

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def log_message(self, *args: object) -> None:
        """Stay silent."""


_Handler.do_GET = lambda self: self.answer(with_body=True)
