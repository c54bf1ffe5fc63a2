"""Serve pages while a command runs, only to this machine and only under a secret address."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

from rlvr.errors import ConfigError

HOST = "127.0.0.1"
CONNECTION_TIMEOUT_S = 10.0
"""The timeout of a connection for sending its request or reading the reply."""
Pages = Callable[[str], Path | None]
"""A function from a path, such as `` or `first/view.html`, to the file to send; None if there is no such page."""


class PageServer:
    """A local web server for pages, as a context manager: it stops at the end of the block."""

    def __init__(self, pages: Pages, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(12)
        self.page_sent = threading.Event()
        """Set when a page was sent; clear it to wait for the next one."""
        try:
            self._server = _Server((HOST, port), _make_handler(self, pages))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or "not a valid port"
            raise ConfigError(f"port {port} cannot be used: {why}; give another --port up to 65535, or 0 for a free one") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True, name="view")

    @property
    def url(self) -> str:
        """The address to open."""
        return f"http://{HOST}:{self._server.server_address[1]}/{self.token}/"

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(CONNECTION_TIMEOUT_S)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a browser that has gone away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _make_handler(page_server: PageServer, pages: Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CONNECTION_TIMEOUT_S

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            mine = path.startswith(f"/{page_server.token}/") and host in (HOST, "localhost")  # another host name means DNS rebinding
            page = pages(path.removeprefix(f"/{page_server.token}/")) if mine else None
            if page is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            with suppress(OSError):  # the browser may have gone away
                data = page.read_bytes()
                self.send_response(HTTPStatus.OK)
                for name, value in HEADERS.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                page_server.page_sent.set()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    return Handler


HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
