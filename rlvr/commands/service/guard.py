"""What a request must pass before anything reads it: the token, the limits on its size and its time, and the memory that is left.

The guard also counts requests and logs one line for each that fails. No line has a header, a query or a body.
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
"""What needs no token."""


class Refused(Exception):
    """A request that is answered with an error; any route may raise it.

    >>> Refused(422, "no answer").status
    422
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Guard:
    """An ASGI application around another one.

    >>> Guard(app, token="...", most_bytes=1 << 24, memory=1 << 28, figures=Figures())        # doctest: +SKIP
    """

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
        """Bytes that requests under way may hold, and how many requests there are."""

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
            pass  # it left before its request was whole; the status is that of no reply
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            raise
        except Exception as error:  # the text of an exception may quote a body: only its kind is logged
            self.log(f"{scope['method']} {_route(scope)}: {type(error).__name__}")
            await reply.refuse(Refused(500, "an error in the service; its log has the kind of the error"))
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
        """How many bytes a request may come to hold: what it says, or the most."""
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
    """The answer to a body that is too large.

    The connection stays open, and what still comes is discarded for as long as `connection.patient` allows: a client that is sending while
    the connection is closed sees an error of the connection, and not this answer.
    """
    return Refused(413, f"the body is larger than {most} bytes; send fewer rows, or start the service with a larger --max-body")


class _Body:
    """`receive` with a limit on the bytes and on the time of a whole body."""

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
    """`send` that remembers the status, and whether the reply has begun."""

    def __init__(self, send: Any) -> None:
        self.send, self.status, self.begun = send, 499, False

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
        await self.send(message)

    async def refuse(self, error: Refused) -> None:
        """Answer with an error, if nothing was answered yet; else break the reply off, so that it does not pass for a whole one."""
        if self.begun:
            raise ConnectionError("the reply was broken off")
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
    """The route of a request as the figures name it: no text of a client's own, so that there are few."""
    return str(getattr(scope.get("endpoint"), "__name__", "other"))
