"""Checks that every request must pass first: the token, or without one the host and the origin; the limits on its size and its time, and
the memory of all requests.

The guard also counts requests and logs one line for each failed one. Log lines never contain headers, queries or bodies.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect

from rlvr.serve.metrics import ServiceMetrics

Scope = dict[str, Any]
PUBLIC_PATHS = ("/healthz",)
"""Paths that need no token."""
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
"""The names of this machine. A service without a token listens on them only, and answers to no other name."""

DISCARD_TIMEOUT_S, DISCARD_IDLE_S = 5.0, 1.0
"""The time for the rest of a refused body of a client that closes its connection, all of it and each part."""


class RequestError(Exception):
    """An error reply with its HTTP status; any route may raise it.

    >>> RequestError(422, "no answer").status
    422
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class RequestGuard:
    """ASGI middleware that checks token, sizes and time limits, counts requests and logs failed ones."""

    def __init__(
        self,
        app: Any,
        *,
        token: str,
        max_body_bytes: int,
        max_memory_bytes: int,
        metrics: ServiceMetrics,
        log: Callable[[str], None] = print,
        body_timeout_s: float = 30.0,
    ) -> None:
        self.app, self.token, self.max_body_bytes, self.max_memory_bytes, self.body_timeout_s = (
            app,
            token.encode(),
            max_body_bytes,
            max_memory_bytes,
            body_timeout_s,
        )
        self.metrics, self.log = metrics, log
        self.held_bytes, self.num_requests = 0, 0
        """The bytes reserved for running requests, and the number of running requests."""

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        began, reply, size = time.monotonic(), _TrackedSend(send), 0
        body = _LimitedReceive(receive, self.max_body_bytes, self.body_timeout_s)
        self.num_requests += 1
        try:
            self._check_token(scope["path"], headers.get(b"authorization", b""))
            self._check_origin(scope["path"], headers)
            size = self._compute_reserved_bytes(headers)
            self.held_bytes += size
            await self.app(scope, body, reply)
        except RequestError as error:
            if b"close" in headers.get(b"connection", b"").lower() and b"expect" not in headers and error.status != 408:
                await body.discard()
            await reply.send_error(error)
        except ClientDisconnect:
            pass  # the client disconnected before its request was complete: the status stays 499
        except asyncio.CancelledError:  # after a signal, when the time for running requests is over
            if reply.has_started:
                raise
            await reply.send_error(RequestError(503, "the service has stopped; send the request again later"))
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # the message may quote a body, so only the exception's type is logged
            self.log(f"{scope['method']} {_get_route_name(scope)}: {type(error).__name__}")
            await reply.send_error(RequestError(500, "an error in the service; its log has the type of the exception"))
        finally:
            self.held_bytes -= size
            self.num_requests -= 1
            self.metrics.count("requests", route=_get_route_name(scope), status=str(reply.status))
            if reply.status >= 400:
                self.log(f"{scope['method']} {_get_route_name(scope)} {reply.status} {1000 * (time.monotonic() - began):.0f} ms")

    def _check_token(self, path: str, authorization: bytes) -> None:
        kind, _, token = authorization.partition(b" ")
        right = hmac.compare_digest(token.strip(), self.token) and kind.lower() == b"bearer"
        if self.token and path not in PUBLIC_PATHS and not right:
            self.metrics.count("refused", reason="token")
            raise RequestError(401, "a bearer token is needed: Authorization: Bearer TOKEN", **{"WWW-Authenticate": "Bearer"})

    def _check_origin(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuse what a web page of another site sends through a browser on this machine, which needs no token to get here.

        A browser names the page's site in `Origin`. A site whose name resolves to this machine is of the same origin, but is named in `Host`.
        """
        if self.token or path in PUBLIC_PATHS:
            return
        for header, prefix in (("host", "//"), ("origin", "")):
            value = headers.get(header.encode())
            if value is not None and _get_host_name(prefix + value.decode("latin1")) not in LOCAL_HOSTS:
                self.metrics.count("refused", reason="origin")
                raise RequestError(
                    403,
                    f"{header.title()} is {value.decode('latin1')!r:.80}; a service without a token takes requests to and from localhost only: "
                    "start it with a token",
                )

    def _compute_reserved_bytes(self, headers: Mapping[bytes, bytes]) -> int:
        """Return the bytes to reserve for a request: its content length, or the maximum if the length is unknown."""
        said = headers.get(b"content-length", b"")
        chunked = b"transfer-encoding" in headers
        size = int(said) if said.isdigit() and len(said) < 16 else self.max_body_bytes if chunked or said else 0
        if size > self.max_body_bytes or len(said) >= 16:
            self.metrics.count("refused", reason="size")
            raise _make_too_large_error(self.max_body_bytes)
        if self.held_bytes + size > self.max_memory_bytes:
            self.metrics.count("refused", reason="memory")
            raise RequestError(429, "too many large requests at once; try again", **{"Retry-After": "1"})
        return size


def _get_host_name(address: str) -> str:
    """Return the host of an address without its port; empty if there is none.

    >>> _get_host_name("//localhost:8765"), _get_host_name("http://[::1]:80"), _get_host_name("null")
    ('localhost', '::1', '')
    """
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _make_too_large_error(max_bytes: int) -> RequestError:
    """Make the error for a body that is too large.

    The connection stays open and the rest of the body is discarded, within the time limit of the connection: a client that is still sending
    when the connection closes would see a connection error instead of this reply.
    """
    return RequestError(413, f"the body is larger than {max_bytes} bytes; send fewer rows, or start the service with a larger --max-body")


class _LimitedReceive:
    """An ASGI `receive` with limits on the size and the time of a whole body."""

    def __init__(self, receive: Any, most: int, seconds: float) -> None:
        self.receive, self.max_bytes, self.deadline, self.num_read, self.done = receive, most, time.monotonic() + seconds, 0, False

    async def __call__(self) -> dict[str, Any]:
        if self.done:
            return dict(await self.receive())
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.monotonic())):
                message = await self.receive()
        except TimeoutError:
            raise RequestError(408, "the body did not arrive in time", Connection="close") from None
        self._note(message)
        if self.num_read > self.max_bytes:
            raise _make_too_large_error(self.max_bytes)
        return dict(message)

    async def discard(self) -> None:
        """Read the rest of the body, within limits.

        For a client that asks to close the connection: it is closed after the reply, and a client that is still sending would see a
        connection error instead of the reply.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_TIMEOUT_S):
                while not self.done and self.num_read < 4 * self.max_bytes:
                    self._note(await asyncio.wait_for(self.receive(), DISCARD_IDLE_S))

    def _note(self, message: Mapping[str, Any]) -> None:
        self.num_read += len(message.get("body", b""))
        self.done = not message.get("more_body", False)


class _TrackedSend:
    """An ASGI `send` that records the status, and whether the reply has started."""

    def __init__(self, send: Any) -> None:
        self.send, self.status, self.has_started = send, 499, False

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.has_started, self.status = True, message["status"]
        await self.send(message)

    async def send_error(self, error: RequestError) -> None:
        """Send an error reply; if a reply has started, close the connection instead, so that it is not taken for complete."""
        if self.has_started:
            raise ConnectionError("the reply was aborted")
        body = json.dumps({"error": str(error)}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        await self(
            {
                "type": "http.response.start",
                "status": error.status,
                "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
            }
        )
        await self({"type": "http.response.body", "body": body})


def _get_route_name(scope: Scope) -> str:
    """Return the metric label of a request: the route's function name, never text of the client, so that the labels are few."""
    return str(getattr(scope.get("endpoint"), "__name__", "other"))
