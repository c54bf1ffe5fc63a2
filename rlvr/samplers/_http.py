"""HTTP client with one deadline for a whole request, for samplers that use an endpoint.

The usual clients have a timeout for each read, so a server that sends one byte per second can block a run forever. Here name
lookup, connecting, sending and all reads share one deadline. The key goes into one header and nowhere else: it is removed
from a server's text before that is shown in a message.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rlvr.errors import ConfigError, SamplerError

MAX_RESPONSE_BYTES = 1 << 26
"""Largest response in bytes; a larger one is an error."""
LOOKUP_POLL_INTERVAL_S = 0.1
"""During a name lookup, how often to check whether the request was aborted."""
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
RESERVED_HEADERS = ("content-length", "transfer-encoding", "connection", "host")
"""Pattern of header names (above), and the headers that the client sets itself."""
MIN_SECRET_CHARS = 6
"""Header values of at least this length are treated as secrets and removed from a server's text, like the key."""
MAX_SHOWN_CHARS = 300
"""Most characters of a server's text in a message."""


class NoReply(SamplerError):
    """Raised if there was no response in time, or one that is not HTTP."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A server's response.

    >>> HttpResponse(200, {}, b'{"ok": true}').json()
    {'ok': True}
    """

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        """Parse the body as JSON; ValueError if it is not JSON."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("JSON that is nested too deeply") from None


class HttpClient:
    """Connections to one server, kept open and shared by any number of threads."""

    def __init__(self, url: str, *, api_key_env: str = "", headers: Mapping[str, str] | None = None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            parts, port = urlsplit(""), 0
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{redact_url(url)!r} is not the URL of a server; write for example http://localhost:8000")
        if parts.username or parts.password or parts.query:
            raise ConfigError("a URL with a user, a password or a query would appear in logs; put the key into an environment variable")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.path = parts.path.rstrip("/")
        self._host, self._port = parts.hostname, port
        self._context = ssl.create_default_context() if parts.scheme == "https" else None
        self.api_key_env, self.headers = api_key_env, {name: str(value) for name, value in (headers or {}).items()}
        """Additional headers; a value $NAME is read from the environment at each request."""
        if wrong := next((name for name in self.headers if not HEADER_NAME.fullmatch(name) or name.lower() in RESERVED_HEADERS), None):
            raise ConfigError(f"headers has {wrong!r}, which cannot be set; write a header such as {{api-key: $MY_KEY}}")
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: dict[http.client.HTTPConnection, socket.socket | None] = {}
        """Connections in use, each with its socket, which may not be connected yet."""
        self._lock = threading.Lock()
        self._epoch = 0
        self._closed = False

    def request(self, method: str, path: str, body: Any = None, *, deadline: float) -> HttpResponse:
        """Send one request and return the response; raise NoReply if it does not arrive before `deadline` (a `time.monotonic` value)."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := self._read_key():
            headers["Authorization"] = f"Bearer {key}"
        headers = {
            name: value for name, value in headers.items() if name.lower() not in map(str.lower, self.headers)
        } | self._resolve_headers()
        sent, epoch = None if body is None else json.dumps(body).encode(), self._epoch
        while True:
            connection, used = self._take_connection()
            try:
                self._connect(connection, deadline)
                connection.request(method, self.path + path, body=sent, headers=headers)
                reply = _read_response(connection.getresponse())
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._drop_connection(connection)
                early = isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError)
                if used and early and epoch == self._epoch and time.monotonic() < deadline:
                    continue  # the server had closed an idle connection before this request
                raise NoReply(self._format_exception(error, deadline)) from None  # the exception chain could contain headers
            self._return_connection(connection)
            return reply

    def connect(self, *, deadline: float) -> None:
        """Connect, or raise NoReply; the connection is kept for the first request."""
        self._resolve_headers()  # an invalid key is an error now
        connection, _ = self._take_connection()
        try:
            self._connect(connection, deadline)
        except (OSError, http.client.HTTPException) as error:
            self._drop_connection(connection)
            raise NoReply(self._format_exception(error, deadline)) from None
        self._return_connection(connection)

    def abort(self) -> None:
        """Abort all requests in progress: the threads that wait for them get NoReply immediately."""
        with self._lock:
            self._epoch += 1
            for sock in self._busy.values():
                if sock is not None:
                    _shut_down(sock)
            self._busy.clear()
            while self._idle:
                self._idle.pop().close()

    def close(self) -> None:
        """Abort all requests and allow no new ones; threads that still run close their connections."""
        self._closed = True
        self.abort()

    def format_error(self, response: HttpResponse) -> str:
        """Format an error response: its status and the beginning of its text, without the key."""
        try:
            said = response.json()
            said = said.get("error", said.get("detail", said)) if isinstance(said, dict) else said
            said = said.get("message", said) if isinstance(said, dict) else said
        except ValueError:
            said = response.body.decode("utf-8", "replace")
        return f"{self.url} returned {response.status}: {self._remove_secrets(' '.join(str(said).split()))[:MAX_SHOWN_CHARS] or '(empty)'}"

    def _connect(self, connection: http.client.HTTPConnection, deadline: float) -> None:
        held: Any = connection  # untyped: its socket is a _DeadlineSocket
        if held.sock is None:
            held.sock = _DeadlineSocket(self._open_socket(connection, deadline))
        held.sock.deadline = deadline

    def _open_socket(self, connection: http.client.HTTPConnection, deadline: float) -> socket.socket:
        """Open a socket to the first of the server's addresses that accepts a connection."""
        missed: OSError = ConnectionError(f"{self._host} has no address")
        for family, kind, protocol, _, address in self._resolve_addresses(connection, deadline):
            sock = socket.socket(family, kind, protocol)
            try:
                self._register_socket(connection, sock)
                sock.settimeout(_seconds_left(deadline))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is not None:
                    sock = self._context.wrap_socket(sock, server_hostname=self._host, do_handshake_on_connect=False)
                    self._register_socket(connection, sock)
                    sock.settimeout(_seconds_left(deadline))
                    sock.do_handshake()
                return sock
            except OSError as error:
                sock.close()
                missed = error
        raise missed

    def _resolve_addresses(self, connection: http.client.HTTPConnection, deadline: float) -> list[tuple[Any, ...]]:
        """Resolve the server's addresses. A name lookup has no timeout, so it runs in a thread that is abandoned after the deadline."""
        found: Future[list[tuple[Any, ...]]] = Future()

        def look_up() -> None:
            try:
                found.set_result(list(socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)))
            except Exception as error:  # raised again by result()
                found.set_exception(error)

        threading.Thread(target=look_up, name="name lookup", daemon=True).start()
        while not wait([found], min(_seconds_left(deadline), LOOKUP_POLL_INTERVAL_S)).done:
            self._register_socket(connection, None)
        return found.result()

    def _register_socket(self, connection: http.client.HTTPConnection, sock: socket.socket | None) -> None:
        """Register the socket for `abort`; raise if the connection was already aborted."""
        with self._lock:
            if connection not in self._busy:
                raise ConnectionAbortedError("aborted by the caller")
            self._busy[connection] = sock

    def _take_connection(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._closed:
                raise NoReply(f"{self.url} cannot be used: the connections to it are closed")
            used = bool(self._idle)
            connection: Any = self._idle.pop() if used else self._make_connection()
            self._busy[connection] = connection.sock.sock if used else None
        return connection, used

    def _make_connection(self) -> http.client.HTTPConnection:
        if self._context is not None:
            return http.client.HTTPSConnection(self._host, self._port, context=self._context)
        return http.client.HTTPConnection(self._host, self._port)

    def _return_connection(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if connection not in self._busy:  # aborted or closed
                connection.close()
                return
            del self._busy[connection]
            if connection.sock is not None:
                self._idle.append(connection)

    def _drop_connection(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._busy.pop(connection, None)
        connection.close()

    def _read_key(self) -> str:
        name = self.api_key_env
        return _check_header_value(os.environ.get(name, "").strip(), f"the environment variable {name}") if name else ""

    def _resolve_headers(self) -> dict[str, str]:
        """Return the additional headers, with environment variables replaced by their values."""
        self._read_key()
        return {name: _resolve_header(name, value) for name, value in self.headers.items()}

    def _remove_secrets(self, text: str) -> str:
        values = [os.environ.get(value[1:], "").strip() if value.startswith("$") else value for value in self.headers.values()]
        for secret in [self._read_key(), *(value for value in values if len(value) >= MIN_SECRET_CHARS)]:
            text = text.replace(secret, "[key]") if secret else text
        return text

    def _format_exception(self, error: Exception, deadline: float) -> str:
        if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
            return f"{self.url} did not respond in time"
        if isinstance(error, ConnectionRefusedError):
            return f"nothing listens at {self.url} (connection refused)"
        if isinstance(error, http.client.HTTPException | ValueError):
            said = self._remove_secrets(" ".join(str(error).split()))[:MAX_SHOWN_CHARS]
            return f"{self.url} closed the connection or sent something that is not HTTP ({type(error).__name__}: {said})"
        return f"{self.url} cannot be reached or closed the connection ({type(error).__name__}: {self._remove_secrets(str(error))[:MAX_SHOWN_CHARS]})"


class _DeadlineSocket:
    """A socket with one deadline for all its operations."""

    def __init__(self, sock: Any) -> None:
        self.sock, self.deadline = sock, 0.0

    def sendall(self, data: Any) -> None:
        self.sock.settimeout(_seconds_left(self.deadline))
        self.sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self))

    def close(self) -> None:
        self.sock.close()


class _DeadlineReader(io.RawIOBase):
    """The socket as a file, for http.client to read from."""

    def __init__(self, timed: _DeadlineSocket) -> None:
        self.timed = timed
        self.file = timed.sock.makefile("rb", buffering=0)
        """Keeps the socket open until the response is read: http.client closes it earlier if the connection is not reused."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.timed.sock.settimeout(_seconds_left(self.timed.deadline))
        return int(self.file.readinto(buffer))

    def close(self) -> None:
        self.file.close()
        super().close()


def _read_response(response: http.client.HTTPResponse) -> HttpResponse:
    """Read a complete response; an incomplete one is an error."""
    with response:
        content = response.read(MAX_RESPONSE_BYTES + 1)
        if len(content) > MAX_RESPONSE_BYTES:
            raise http.client.HTTPException(f"a response of more than {MAX_RESPONSE_BYTES} bytes")
        if response.length:
            raise http.client.IncompleteRead(content, response.length)
        return HttpResponse(response.status, {name.lower(): value for name, value in response.getheaders()}, content)


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


def _resolve_header(name: str, value: str) -> str:
    """Resolve the value of a header: $NAME is the value of an environment variable."""
    if not value.startswith("$"):
        return _check_header_value(value, f"the header {name!r}")
    if not (found := os.environ.get(value[1:], "").strip()):
        raise ConfigError(f"the header {name!r} is {value}, and the environment variable {value[1:]} is not set; set it")
    return _check_header_value(found, f"the environment variable {value[1:]}")


def _check_header_value(value: str, what: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise ConfigError(f"{what} contains characters that a key cannot have; set it to the key alone")
    return value


def _shut_down(sock: Any) -> None:
    with suppress(OSError):  # it may be closed already
        sock.shutdown(socket.SHUT_RDWR)


def redact_url(url: str) -> str:
    """Return a URL that is safe to show: without user, password and query.

    >>> redact_url("https://me:secret@host/v1?key=1")
    'https://host/v1'
    """
    scheme, mark, rest = url.partition("://")
    return scheme + mark + rest.split("@")[-1].split("?")[0] if mark else url.split("?")[0]
