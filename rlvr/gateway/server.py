"""The HTTP server of the gateway, on this machine alone, in a thread of its own: a port of 127.0.0.1, and a Unix socket for boxes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.errors import EnvError, MissingExtra
from rlvr.gateway.calls import AgentCalls, ChatReply, GatewayError, ModelCall
from rlvr.gateway.formats import WIRE_FORMATS, AnthropicMessages, Event, Responses, WireFormat, check_reply_options, make_reply_id
from rlvr.runs.folder_owner import create_owned_folder, force_remove_folder, remove_orphaned_folders

HOST = "127.0.0.1"
FOLDERS, FOLDER_PREFIX = "/tmp", "rlvr-gateway-"
"""Where the Unix socket is: its path must be short, and the folder for temporary files may not be."""
MAX_BODY_BYTES = 16 << 20
"""The largest body of a request: an agent sends its whole conversation with each call. While a body is parsed, all agents wait."""
BODY_TIMEOUT_S, HEAD_TIMEOUT_S, START_TIMEOUT_S = 60.0, 30.0, 30.0
"""The timeouts of a request's body and head, and of the start of the server."""
MAX_BOX_CONNECTIONS, BACKLOG = 96, 128
"""The most connections of one box, whose agent may have 64 calls, and of clients that have not been accepted yet: each takes a descriptor of
this process."""
MAX_HELD_BYTES = 48 << 20
"""So much of the bodies of one episode is held at once, until the calls are answered."""
MAX_COMMAS = 500_000
"""A body with more of them is refused: to parse it would take all other agents a second and more."""
REPEATED_FIELDS = (
    *("model", "stream", "stream_options", "tools", "tool_choice", "instructions", "max_output_tokens", "previous_response_id", "store"),
    "metadata",
)
"""The fields of a request that its reply has, too."""
QUIET_S, KEEPALIVE_S, POLL_S = 5.0, 10.0, 0.25
"""A stream begins after the first, if there is no reply or error yet; then a comment keeps the connection alive every so often."""
CHARACTERS_PER_TOKEN = 4
_logger = logging.getLogger(__name__)


class Gateway:
    """Serves the calls of agents. Each episode has an API key of its own; a request without one, or of an episode that is over, gets 401.

    >>> with Gateway() as gateway:
    ...     gateway.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self) -> None:
        try:
            import starlette  # noqa: F401
            import uvicorn

            from rlvr.gateway.connection import make_protocol_class
        except ModuleNotFoundError as error:
            raise MissingExtra(str(error.name), "serve") from error

        self._episodes: dict[bytes, AgentCalls] = {}
        # asyncio sends small parts at once only on a socket whose protocol is named; a reply would else wait 40 ms for the client
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind((HOST, 0))
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        """The address, without `/v1`."""
        remove_orphaned_folders(FOLDER_PREFIX, FOLDERS)
        self._folder = create_owned_folder(FOLDER_PREFIX, FOLDERS)
        self.socket_folder = self._folder / "shared"
        """A folder with the Unix socket `socket`, at which the gateway is reached too. It has nothing else, and boxes can mount it."""
        self.socket_folder.mkdir()
        self._unix_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unix_socket.bind(str(self.socket_folder / "socket"))
        os.chmod(self.socket_folder / "socket", 0o666)  # a box runs as another user; the folder above is this user's alone
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a client could fill the log with requests that are none
        config = uvicorn.Config(
            self._build_app(),
            http=make_protocol_class(HEAD_TIMEOUT_S, MAX_BOX_CONNECTIONS),
            backlog=BACKLOG,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="rlvr-gateway", daemon=True)
        self._started = threading.Event()
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            self.close()
            raise EnvError(f"the gateway did not start within {START_TIMEOUT_S:g} s")

    def _run(self) -> None:
        async def serve() -> None:
            asyncio.get_running_loop().call_soon(self._started.set)
            await self._server.serve(sockets=[self._socket, self._unix_socket])

        asyncio.run(serve())

    def register(self, calls: AgentCalls) -> None:
        """Accept the calls of an episode."""
        self._episodes[_hash(calls.secret)] = calls

    def unregister(self, calls: AgentCalls, reason: str) -> None:
        """Refuse the calls of an episode from now on, and those that wait."""
        self._episodes.pop(_hash(calls.secret), None)
        calls.close(reason)

    def close(self) -> None:
        """Stop the server; calls that wait are refused."""
        for calls in list(self._episodes.values()):
            self.unregister(calls, "the gateway was closed")
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()
        self._unix_socket.close()
        force_remove_folder(self._folder)

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- requests

    def _build_app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.routing import Route

        routes = [Route(wire.path, self._make_handler(wire), methods=["POST"]) for wire in WIRE_FORMATS]
        routes += [
            Route("/v1/messages/count_tokens", self._handle(self._count_tokens, AnthropicMessages()), methods=["POST"]),
            Route("/v1/models", self._handle(self._list_models), methods=["GET"]),
            Route("/v1/models/{model:path}", self._handle(self._get_model), methods=["GET"]),
            Route("/", self._handle(self._say_hello, needs_key=False), methods=["GET", "HEAD"]),
        ]
        return Starlette(routes=routes)

    def _handle(self, work: Any, wire: WireFormat = WIRE_FORMATS[0], *, needs_key: bool = True) -> Any:
        """Wrap a handler: check the key first, and write errors in the client's format."""
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import JSONResponse, Response

        async def handle(request: Request) -> Response:
            try:
                episode = self._find_episode(request.headers) if needs_key else None
                response: Response = await work(request, episode)
                return response
            except GatewayError as error:
                return Response(
                    _to_json(wire.format_error(error.status, str(error))), error.status, error.headers, media_type="application/json"
                )
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:  # the message may quote a conversation
                _logger.exception("the gateway failed")
                return JSONResponse(wire.format_error(500, f"an error in the gateway: {type(error).__name__}"), 500)

        return handle

    def _find_episode(self, headers: Mapping[str, str]) -> AgentCalls:
        kind, _, token = headers.get("authorization", "").partition(" ")
        keys = [token.strip()] if kind.lower() == "bearer" else []
        keys += [headers[name] for name in ("x-api-key", "api-key") if name in headers]
        for key in keys:
            digest = _hash(key)
            if (episode := self._episodes.get(digest)) is not None and hmac.compare_digest(digest, _hash(episode.secret)):
                return episode
        raise GatewayError(401, "the API key is missing, or that of no running episode")

    def _make_handler(self, wire: WireFormat) -> Any:
        async def complete(request: Any, episode: AgentCalls) -> Any:
            from starlette.responses import Response, StreamingResponse

            data = await _read_body(request, episode)
            client = _Client(episode, len(data))
            try:
                body = _parse_body(data)
                check_reply_options(body)
                chat_request = wire.parse(body, episode.conversations)
                retry = request.headers.get("x-stainless-retry-count", "0")
                key = hashlib.blake2b(wire.path.encode() + b"\0" + data, digest_size=16).digest()
                client.call = episode.submit(chat_request, key, is_retry=retry != "0")
                is_streamed, reply_id = bool(body.get("stream")), make_reply_id()
                # what waits holds the conversation once
                body = {name: body[name] for name in REPEATED_FIELDS if name in body}
                del data
                reply = await self._wait_for_reply(client.call, request, QUIET_S if is_streamed else None)
            except BaseException:
                client.leave(is_delivered=False)
                raise
            if is_streamed:
                events = self._stream(wire, body, client, reply, reply_id)
                response = StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
                return _DeliveredResponse(response, client, notes_delivery_itself=True)
            assert reply is not None
            _remember(wire, episode, client.call, reply, reply_id)
            return _DeliveredResponse(Response(_to_json(wire.format_reply(body, reply, reply_id)), media_type="application/json"), client)

        return self._handle(complete, wire)

    async def _wait_for_reply(self, call: ModelCall, request: Any, timeout_s: float | None) -> ChatReply | None:
        """Wait for the reply; None after the timeout. Raises ClientDisconnect if the client goes away first."""
        from starlette.requests import ClientDisconnect

        reply = asyncio.wrap_future(call.reply)
        reply.add_done_callback(_note_exception)  # nobody reads it if the client goes away first
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        while not reply.done():
            await asyncio.wait([reply], timeout=POLL_S)
            if await request.is_disconnected():
                raise ClientDisconnect
            if end is not None and loop.time() > end:
                return None
        return reply.result()

    async def _stream(
        self, wire: WireFormat, body: Mapping[str, Any], client: _Client, reply: ChatReply | None, reply_id: str
    ) -> AsyncIterator[bytes]:
        is_delivered = False
        episode, call = client.episode, client.call
        assert call is not None
        try:
            if reply is None:
                future = asyncio.wrap_future(call.reply)
                future.add_done_callback(_note_exception)
                while not future.done():
                    yield b": the reply is being sampled\n\n"
                    await asyncio.wait([future], timeout=KEEPALIVE_S)
                try:
                    reply = future.result()
                except GatewayError as error:
                    yield _format_event(
                        ("error" if isinstance(wire, AnthropicMessages) else "", wire.format_error(error.status, str(error)))
                    )
                    return
            _remember(wire, episode, call, reply, reply_id)
            for event in wire.stream_reply(body, reply, reply_id):
                yield _format_event(event)
            if wire.end_of_stream:
                yield f"data: {wire.end_of_stream}\n\n".encode()
            is_delivered = True
        finally:
            client.leave(is_delivered=is_delivered)

    async def _count_tokens(self, request: Any, episode: AgentCalls) -> Any:
        from starlette.responses import JSONResponse

        data = await _read_body(request, episode)
        episode.held_bytes -= len(data)
        return JSONResponse({"input_tokens": max(1, len(data) // CHARACTERS_PER_TOKEN)})

    async def _list_models(self, request: Any, episode: AgentCalls) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": [_describe_model("policy")], "has_more": False})

    async def _get_model(self, request: Any, episode: AgentCalls) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse(_describe_model(request.path_params["model"]))

    async def _say_hello(self, request: Any, episode: AgentCalls | None) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse({"name": "rlvr gateway"})


@dataclass(slots=True)
class _Client:
    """A client that waits for the reply to its call, and how many bytes its request holds."""

    episode: AgentCalls
    num_bytes: int
    call: ModelCall | None = None
    is_gone: bool = False

    def leave(self, *, is_delivered: bool) -> None:
        """Give the bytes back, and note whether the client has received its reply. Only the first time counts."""
        if self.is_gone:
            return
        self.is_gone = True
        self.episode.held_bytes -= self.num_bytes
        if self.call is not None:
            self.episode.leave(self.call, is_delivered=is_delivered)


class _DeliveredResponse:
    """An ASGI response that notes whether the client has received it."""

    def __init__(self, response: Any, client: _Client, *, notes_delivery_itself: bool = False) -> None:
        self._response, self._client, self._notes_delivery_itself = response, client, notes_delivery_itself

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_delivered = False
        try:
            await self._response(scope, receive, send)
            # a stream notes it itself, unless the client was gone before its first event
            is_delivered = not self._notes_delivery_itself
        finally:
            self._client.leave(is_delivered=is_delivered)


def _note_exception(future: asyncio.Future[ChatReply]) -> None:
    if not future.cancelled():
        future.exception()


async def _read_body(request: Any, episode: AgentCalls) -> bytes:
    """Read the body within its limits of size and time. Its bytes are held by the episode; the caller gives them back."""
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                episode.held_bytes += len(part)
                if size > MAX_BODY_BYTES:
                    raise GatewayError(413, f"the body has more than {MAX_BODY_BYTES:,} bytes")
                if episode.held_bytes > MAX_HELD_BYTES:
                    message = f"the calls of this agent that wait have more than {MAX_HELD_BYTES:,} bytes already"
                    raise GatewayError(429, message, **{"Retry-After": "1"})
                parts.append(part)
    except TimeoutError:
        episode.held_bytes -= size
        raise GatewayError(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    except BaseException:
        episode.held_bytes -= size
        raise
    return b"".join(parts)


def _parse_body(data: bytes) -> dict[str, Any]:
    if data.count(b",") > MAX_COMMAS:
        raise GatewayError(400, f"the body has more than {MAX_COMMAS:,} commas; send less")
    try:
        body = json.loads(data)
    except RecursionError:
        raise GatewayError(400, "the JSON of the body is nested too deeply") from None
    except ValueError as error:
        raise GatewayError(400, f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise GatewayError(400, "the body must be a JSON object")
    return body


def _remember(wire: WireFormat, episode: AgentCalls, call: ModelCall, reply: ChatReply, reply_id: str) -> None:
    """Keep a conversation for the client to refer to by the id of its response."""
    if isinstance(wire, Responses):
        episode.conversations[f"resp_{reply_id}"] = (*call.request.messages, reply.message)


def _format_event(event: Event) -> bytes:
    name, data = event
    head = f"event: {name}\n" if name else ""
    return head.encode() + b"data: " + _to_json(data) + b"\n\n"


def _to_json(data: Mapping[str, Any]) -> bytes:
    """Write JSON for a client; half of a surrogate pair, which a request may have and UTF-8 has not, becomes a question mark."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")


def _describe_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "type": "model", "display_name": name, "created": 0, "owned_by": "rlvr"}


def _hash(secret: str) -> bytes:
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=32).digest()
