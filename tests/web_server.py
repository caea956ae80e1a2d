"""A web server on loopback that knows ranges, counts requests and fails when it is told to."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Web:
    """What is served, and what was asked."""

    url: str
    objects: dict[str, bytes] = field(default_factory=dict)  # by path without the first "/"; others are 404
    log: list[tuple[str, str, tuple[int, int] | None]] = field(default_factory=list)  # method, path, bytes asked for
    before: Callable[[str, str], int | None] = lambda method, path: None  # an int is the status of a failure
    ranges: bool = True
    etags: bool = True
    moved: dict[str, str] = field(default_factory=dict)  # the URLs that requests are redirected to
    cut: int = 0  # so many answers to come end in the middle of their bytes

    def count(self, method: str, path: str = "") -> int:
        return sum(entry[0] == method and entry[1].startswith(path) for entry in self.log)


@contextmanager
def serving() -> Iterator[Web]:
    """Serve in threads of this process until the end."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are two packets, of which the second would wait

        def log_message(self, *args: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = self.path.lstrip("/").partition("?")[0]
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if web.ranges else None
            body = web.objects.get(path)
            span = None
            if asked and body is not None:
                span = int(asked[1]), min(int(asked[2] or len(body)), len(body) - 1)
            web.log.append((self.command, path, span))
            if path in web.moved:
                self.send_response(302)
                self.send_header("Location", web.moved[path])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            status = web.before(self.command, path)
            body = web.objects.get(path)
            if status is not None or body is None:
                self.send_response(status or 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if span is not None and span[0] > span[1]:
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            part = body if span is None else body[span[0] : span[1] + 1]
            self.send_response(200 if span is None else 206)
            if span is not None:
                self.send_header("Content-Range", f"bytes {span[0]}-{span[1]}/{len(body)}")
            if not web.ranges:
                self.send_header("Accept-Ranges", "none")
            if web.etags:
                self.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if web.cut:
                web.cut -= 1
                part, self.close_connection = part[: len(part) // 2], True
            self.wfile.write(part)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            """Say nothing: clients that give up leave their connections."""

    server = Server(("127.0.0.1", 0), Handler)
    web = Web(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
