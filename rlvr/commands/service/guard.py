"""Checks that every request must pass first: the token, the limits on its size and its time, and the memory of all requests.

The guard also counts requests and logs one line for each failed one. Log lines never contain headers, queries or bodies.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect

from rlvr.commands.service.watch import Figures

Scope = dict[str, Any]
OPEN = ("/healthz",)
"""Paths that need no token."""


class Refused(Exception):
    """An error reply with its HTTP status; any route may raise it.

    >>> Refused(422, "no answer").status
    422
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Guard:
    """ASGI middleware that checks token, sizes and time limits, counts requests and logs failed ones."""

    def __init__(
        self,
        app: Any,
        *,
        token: str,
        most_bytes: int,
        memory: int,
        figures: Figures,
        log: Callable[[str], None] = print,
        body_s: float = 30.0,
    ) -> None:
        self.app, self.token, self.most_bytes, self.memory, self.body_s = app, token.encode(), most_bytes, memory, body_s
        self.figures, self.log = figures, log
        self.held, self.now = 0, 0
        """The bytes reserved for running requests, and the number of running requests."""

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        began, reply, size = time.monotonic(), _Reply(send), 0
        self.now += 1
        try:
            self._admit(scope["path"], headers.get(b"authorization", b""))
            size = self._size(headers)
            self.held += size
            await self.app(scope, _Body(receive, self.most_bytes, self.body_s), reply)
        except Refused as error:
            await reply.refuse(error)
        except ClientDisconnect:
            pass  # the client disconnected before its request was complete: the status stays 499
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            raise
        except Exception as error:  # the message may quote a body, so only the exception's type is logged
            self.log(f"{scope['method']} {_route(scope)}: {type(error).__name__}")
            await reply.refuse(Refused(500, "an error in the service; its log has the type of the exception"))
        finally:
            self.held -= size
            self.now -= 1
            self.figures.count("requests", route=_route(scope), status=str(reply.status))
            if reply.status >= 400:
                self.log(f"{scope['method']} {_route(scope)} {reply.status} {1000 * (time.monotonic() - began):.0f} ms")

    def _admit(self, path: str, given: bytes) -> None:
        kind, _, token = given.partition(b" ")
        right = hmac.compare_digest(token.strip(), self.token) and kind.lower() == b"bearer"
        if self.token and path not in OPEN and not right:
            self.figures.count("refused", reason="token")
            raise Refused(401, "a bearer token is needed: Authorization: Bearer TOKEN", **{"WWW-Authenticate": "Bearer"})

    def _size(self, headers: Mapping[bytes, bytes]) -> int:
        """Return the bytes to reserve for a request: its content length, or the maximum if the length is unknown."""
        said = headers.get(b"content-length", b"")
        chunked = b"transfer-encoding" in headers
        size = int(said) if said.isdigit() and len(said) < 16 else self.most_bytes if chunked or said else 0
        if size > self.most_bytes or len(said) >= 16:
            self.figures.count("refused", reason="size")
            raise too_large(self.most_bytes)
        if self.held + size > self.memory:
            self.figures.count("refused", reason="memory")
            raise Refused(429, "too many large requests at once; try again", **{"Retry-After": "1"})
        return size


def too_large(most: int) -> Refused:
    """Make the error for a body that is too large.

    The connection stays open and the rest of the body is discarded, within the time limit of the connection: a client that is still sending
    when the connection closes would see a connection error instead of this reply.
    """
    return Refused(413, f"the body is larger than {most} bytes; send fewer rows, or start the service with a larger --max-body")


class _Body:
    """An ASGI `receive` with limits on the size and the time of a whole body."""

    def __init__(self, receive: Any, most: int, seconds: float) -> None:
        self.receive, self.most, self.until, self.read, self.done = receive, most, time.monotonic() + seconds, 0, False

    async def __call__(self) -> dict[str, Any]:
        if self.done:
            return dict(await self.receive())
        try:
            async with asyncio.timeout(max(0.0, self.until - time.monotonic())):
                message = await self.receive()
        except TimeoutError:
            raise Refused(408, "the body did not arrive in time", Connection="close") from None
        self.read += len(message.get("body", b""))
        if self.read > self.most:
            raise too_large(self.most)
        self.done = not message.get("more_body", False)
        return dict(message)


class _Reply:
    """An ASGI `send` that records the status, and whether the reply has started."""

    def __init__(self, send: Any) -> None:
        self.send, self.status, self.begun = send, 499, False

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
        await self.send(message)

    async def refuse(self, error: Refused) -> None:
        """Send an error reply; if a reply has started, close the connection instead, so that it is not taken for complete."""
        if self.begun:
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


def _route(scope: Scope) -> str:
    """Return the metric label of a request: the route's function name, never text of the client, so that the labels are few."""
    return str(getattr(scope.get("endpoint"), "__name__", "other"))
