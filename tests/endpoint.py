"""An endpoint on this machine that answers as a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
Script = Callable[[str, dict[str, Any], int], Any]
"""Path, body and how many were asked before: an Answer, or a callable that gets the handler and does what it likes."""


class Endpoint:
    """What the server saw, and where it is."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.most = self.now = 0
        self.lock = threading.Lock()
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    seen: Endpoint
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}"))

    def _answer(self, body: dict[str, Any]) -> None:
        with self.seen.lock:
            before = len(self.seen.asked)
            self.seen.asked.append((self.path, body))
            self.seen.headers.append(dict(self.headers))
            self.seen.now += 1
            self.seen.most = max(self.seen.most, self.seen.now)
        try:
            answer = self.seen.script(self.path, body, before)
            if callable(answer):
                self.close_connection = True
                answer(self)
            else:
                self.say(*answer)
        except OSError:
            self.close_connection = True  # the client had seen enough
        finally:
            with self.seen.lock:
                self.seen.now -= 1

    def say(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that broke off


@contextmanager
def endpoint(script: Script) -> Iterator[Endpoint]:
    """Serve until the block ends."""
    seen = Endpoint(script)

    server = Server(("127.0.0.1", 0), type("Told", (Handler,), {"seen": seen}))
    seen.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def silent(handler: Any) -> None:
    """Take the request and say nothing, until the client goes away."""
    handler.connection.settimeout(20)
    with suppress(OSError):
        handler.connection.recv(1)


def drip(handler: Any) -> None:
    """A byte at a time, for ever: no single read takes long."""
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000:
        handler.wfile.write(bytes([byte]))
        time.sleep(0.02)


def hang_up(handler: Any) -> None:
    """Close without a word."""
    handler.connection.shutdown(socket.SHUT_RDWR)


def closed_port() -> str:
    """A URL where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
