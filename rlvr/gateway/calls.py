"""The calls of one agent: HTTP handlers submit them, the session of the episode takes one after the other and answers it."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rlvr.contracts.chat_request import ChatRequest

MAX_WAITING_CALLS = 64
"""So many calls of one agent may wait for their turn; further ones are told to come again later."""

MAX_REPEATABLE_CALLS = 16
"""So many calls with a reply may be sent again for the same one: each holds a whole conversation."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What an agent receives for a call.

    >>> ChatReply({"role": "assistant", "content": "4"}).finish_reason
    'stop'
    """

    message: Mapping[str, Any]
    """The assistant's message in OpenAI's format, with `reasoning_content` if the turn has some."""
    finish_reason: str = "stop"
    """`stop`, `length` or `tool_calls`."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    stop_text: str = ""
    """The text of the request's `stop` that ended the turn; empty if none did."""


class GatewayError(Exception):
    """An error reply to an agent, with its HTTP status.

    >>> GatewayError(401, "the episode is over").status
    401
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


@dataclass(eq=False, slots=True)
class ModelCall:
    """One call of the model. Clients that send it again wait for the same reply."""

    request: ChatRequest
    key: bytes
    """What identifies the call if it is sent again: a digest of its route and body."""
    reply: Future[ChatReply] = field(default_factory=Future)
    num_clients: int = 1
    """The number of clients that wait for the reply."""
    is_taken: bool = False
    """True once the session samples it."""
    is_delivered: bool = False
    """True once a client has received the reply."""

    @property
    def is_lost(self) -> bool:
        """Whether no client has received the reply, and none waits for it."""
        return self.num_clients == 0 and not self.is_delivered


class AgentCalls:
    """The calls of one agent, whose API key is `secret`.

    A call that is sent again is one sample: while the client of the first is gone, or if the client says that it is a retry. Two clients
    that ask the same at the same time get two samples.

    >>> calls = AgentCalls()
    >>> sent = calls.submit(ChatRequest(({"role": "user", "content": "2+2="},)), b"digest")
    >>> calls.take(timeout_s=0) is sent
    True
    """

    def __init__(self) -> None:
        self.secret = f"rlvr-{secrets.token_urlsafe(24)}"
        self.end_reason = ""
        """Why no more calls are answered; empty while they are."""
        self.conversations: dict[str, tuple[Mapping[str, Any], ...]] = {}
        """The messages up to each reply that the client may refer to by its id."""
        self.held_bytes = 0
        """The bytes of the requests that are read, or wait for their reply; counted by the server alone."""
        self._condition = threading.Condition()
        self._waiting: deque[ModelCall] = deque()
        self._calls: list[ModelCall] = []
        """The calls that may be sent again: those without a reply, and the last ones that have one."""

    def submit(self, request: ChatRequest, key: bytes, *, is_retry: bool = False) -> ModelCall:
        """Submit a call; return it, or the call that this one repeats."""
        with self._condition:
            self._check_open()
            same = [call for call in self._calls if call.key == key]
            left = [call for call in same if call.is_lost]
            if left or (is_retry and same):
                known = (left or same)[-1]
                known.num_clients += 1
                return known
            if len(self._waiting) >= MAX_WAITING_CALLS:
                raise GatewayError(429, f"{MAX_WAITING_CALLS} calls of this agent wait already", **{"Retry-After": "1"})
            done = [earlier for earlier in self._calls if earlier.reply.done()]
            for earlier in done[:-MAX_REPEATABLE_CALLS]:
                self._calls.remove(earlier)
            call = ModelCall(request, key)
            self._calls.append(call)
            self._waiting.append(call)
            self._condition.notify_all()
            return call

    def take(self, *, timeout_s: float) -> ModelCall | None:
        """Take the call that has waited longest, to be sampled; None if there is none within the timeout."""
        with self._condition:
            if not self._waiting and not self.end_reason:
                self._condition.wait(timeout_s)
            if not self._waiting:
                return None
            call = self._waiting.popleft()
            call.is_taken = True
            return call

    def wake(self) -> None:
        """Let a `take` that waits return, because the agent has ended."""
        with self._condition:
            self._condition.notify_all()

    def leave(self, call: ModelCall, *, is_delivered: bool) -> None:
        """Note that a client has received its reply, or is gone. A call that nobody waits for is not sampled."""
        with self._condition:
            call.num_clients -= 1
            call.is_delivered |= is_delivered
            if call.num_clients == 0 and not call.is_taken and call in self._waiting:
                self._waiting.remove(call)
                self._calls.remove(call)

    def answer(self, call: ModelCall, reply: ChatReply) -> None:
        """Answer a call."""
        with self._condition:
            if not call.reply.done():
                call.reply.set_result(reply)

    def close(self, reason: str) -> None:
        """Refuse all calls from now on, and those that wait."""
        with self._condition:
            self.end_reason = self.end_reason or reason
            self._waiting.clear()
            for call in self._calls:
                if not call.reply.done():
                    call.reply.set_exception(GatewayError(401, f"this episode is over: {self.end_reason}"))
            self._condition.notify_all()

    def _check_open(self) -> None:
        if self.end_reason:
            raise GatewayError(401, f"this episode is over: {self.end_reason}")
