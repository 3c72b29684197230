"""A web server on loopback that serves files in the ways real mirrors do, the bad ones too."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Manner = Literal["good", "cut", "silent", "drip", "error", "endless"]


class Mirror(ThreadingHTTPServer):
    """Serves `files`, path → bytes; `manner` may be changed between requests."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes], manner: Manner) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.manner: Manner = manner
        self.asked: list[str] = []  # the path of every request
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data/"


@contextmanager
def serve(files: Mapping[str, bytes], manner: Manner = "good") -> Iterator[Mirror]:
    """A mirror that runs as long as the context."""
    with Mirror(files, manner) as mirror:
        thread = threading.Thread(target=mirror.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield mirror
        finally:
            mirror.stopping.set()
            mirror.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path.removeprefix("/data/"))
        if content is None or self.server.manner == "error":
            self.send_error(503 if content else 404)
        elif self.server.manner == "silent":
            self.server.stopping.wait(20)
        else:
            self._answer(content)

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        if self.server.manner != "endless":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(ConnectionError):  # the client had enough
            self._send(content)

    def _send(self, content: bytes) -> None:
        if self.server.manner == "cut":
            self.wfile.write(content[: len(content) // 2])
        elif self.server.manner == "drip":
            for byte in content:
                self.wfile.write(bytes([byte]))
                if self.server.stopping.wait(0.02):
                    return
        elif self.server.manner == "endless":
            while not self.server.stopping.is_set():
                self.wfile.write(content)
        else:
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Tests read `asked` instead."""
