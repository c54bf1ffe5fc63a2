"""The server's table of environment sessions: each lives in one worker process, and expires some time after its last call."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.serve.guard import RequestError
from rlvr.serve.pool import ServicePool, WorkerProcess

MAX_CALLS_PER_THREAD = 4
"""The maximum of waiting calls in a process, per thread."""


class KeyedReply:
    """The reply to a request with an `Idempotency-Key`, for a client that repeats the request because the reply was lost on its way."""

    def __init__(self, key: str, digest: str) -> None:
        self.key, self.digest, self.made_at = key, digest, time.monotonic()
        self.reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def get(self, digest: str) -> dict[str, Any]:
        """Return the reply as soon as there is one; raise RequestError if the repeated request has another digest."""
        if digest != self.digest:
            raise RequestError(422, "this Idempotency-Key was used for a request with other content; use a new key for each request")
        return await asyncio.shield(self.reply)


@dataclass(slots=True)
class SessionRecord:
    """The server's record of an open session: the worker process that holds it, and the time when it expires."""

    worker: WorkerProcess
    expires_at: float
    is_busy: bool = False
    last_step: KeyedReply | None = None
    """The last step, if it had a key and changed the session."""


class NoFreeSession(RequestError):
    """As many sessions are open as there may be.

    >>> NoFreeSession("all 4 sessions are open").status
    429
    """

    def __init__(self, message: str) -> None:
        super().__init__(429, message, **{"Retry-After": "5"})


class SessionManager:
    """The server's table of open sessions: opens each in the least loaded worker process, and closes expired ones."""

    def __init__(
        self, pool: ServicePool, *, max_sessions: int, open_wait_s: float, session_timeout_s: float, call_timeout_s: float
    ) -> None:
        self.pool, self.max_sessions, self.open_wait_s = pool, max_sessions, open_wait_s
        self.session_timeout_s, self.call_timeout_s = session_timeout_s, call_timeout_s
        self.sessions: dict[str, SessionRecord] = {}
        self._closed: OrderedDict[str, KeyedReply] = OrderedDict()
        """The replies to closes with a key, by session: kept as long as a session is, and no more than there may be sessions."""
        self._waiting_opens: deque[asyncio.Future[None]] = deque()

    async def open_session(self, body: Mapping[str, Any], leaving: asyncio.Future[Any]) -> dict[str, Any]:
        """Open a session; the reply has its id, its prompt and its tools.

        While no session is free, the request waits for one, first come, first served, for `open_wait_s` at most and until its client is
        `leaving`. It holds nothing but its connection. A session whose client has left before the reply is closed.
        """
        end, is_next = time.monotonic() + self.open_wait_s, not self._waiting_opens
        while True:
            if not is_next:
                await self._wait_for_free_session(end, leaving, at_front=False)
            try:
                await self._wait_for_worker(end, leaving)
                opened = await self._open_in_worker(body)
            except NoFreeSession:
                if time.monotonic() >= end or leaving.done():
                    self.pool.metrics.count("refused", reason="sessions")
                    raise
            except BaseException:
                self._admit_next_open()
                raise
            else:
                if leaving.done() and "session" in opened:  # nobody else knows its id
                    self._drop_session(opened["session"], self.sessions[opened["session"]].worker)
                return opened
            await self._wait_for_free_session(end, leaving, at_front=True)
            is_next = True

    async def _wait_for_free_session(self, end: float, leaving: asyncio.Future[Any], *, at_front: bool) -> None:
        """Wait until a session ends and this request is the next, or until the time `end`."""
        freed = asyncio.get_running_loop().create_future()
        (self._waiting_opens.appendleft if at_front else self._waiting_opens.append)(freed)
        try:
            await asyncio.wait({freed, leaving}, timeout=max(end - time.monotonic(), 0.0), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise NoFreeSession("the client left before a session was free")
        except BaseException:
            if freed.done():
                self._admit_next_open()
            raise
        finally:
            if not freed.done():
                self._waiting_opens.remove(freed)

    def _admit_next_open(self) -> None:
        """Let the next request that waits for a session try again: one has ended, or was not opened after all."""
        if self._waiting_opens:
            self._waiting_opens.popleft().set_result(None)

    async def _open_in_worker(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if len(self.sessions) >= self.max_sessions:
            raise NoFreeSession(f"{len(self.sessions)} sessions are open, which is the maximum; try again later")
        session, hand = secrets.token_urlsafe(16), self._find_least_loaded_worker()
        self._check_call_limit(hand)
        self.sessions[session] = SessionRecord(hand, time.monotonic() + self.call_timeout_s + self.session_timeout_s, is_busy=True)
        said = await self._call_worker(hand, {**body, "what": "open", "session": session})
        if said.get("status") == 429:
            del self.sessions[session]
            raise NoFreeSession(said["error"])
        if "error" in said:
            self._drop_session(session, hand)
            return said
        self.sessions[session].expires_at, self.sessions[session].is_busy = time.monotonic() + self.session_timeout_s, False
        return {"session": session, "session_timeout_s": self.session_timeout_s, **said}

    async def step_session(self, session_id: str, body: Mapping[str, Any], key: str = "", digest: str = "") -> dict[str, Any]:
        """Step a session with a turn of the policy; a repeated `key` gets the reply to the step that had it, and `digest` tells its content."""
        known = self.sessions[session_id].last_step if key and session_id in self.sessions else None
        if known is not None and known.key == key:
            return await known.get(digest)
        held = self._get_session(session_id)
        self._check_call_limit(held.worker)
        held.is_busy, held.last_step = True, KeyedReply(key, digest) if key else None
        call = self._call_worker(held.worker, {**body, "what": "step", "session": session_id})
        said = await _keep_reply(call, held.last_step)
        if "error" in said:  # the session is as it was, or gone
            held.last_step = None
        held.is_busy, held.expires_at = False, time.monotonic() + self.session_timeout_s
        if said.get("status") in (410, 500, 504):  # the process died, or the session's state is unknown
            self._drop_session(session_id, held.worker)
        return said

    async def close_session(self, session_id: str, body: Mapping[str, Any], key: str = "", digest: str = "") -> dict[str, Any]:
        """Close a session, and verify it unless `verify` is false; a repeated `key` gets the reply to the close that had it."""
        known = self._closed.get(session_id) if key else None
        if known is not None and known.key == key:
            return await known.get(digest)
        held = self._get_session(session_id)
        self._check_call_limit(held.worker)
        del self.sessions[session_id]
        what = "drop" if body.get("verify") is False else "close"
        keyed = KeyedReply(key, digest) if key else None
        if keyed is not None:
            self._closed[session_id] = keyed
            while len(self._closed) > self.max_sessions:
                self._closed.popitem(last=False)
        try:
            return await _keep_reply(self._call_worker(held.worker, {"what": what, "session": session_id}), keyed)
        finally:
            self._admit_next_open()

    async def call_any_worker(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Run a call that needs no session, in the least loaded worker process."""
        await self._wait_for_worker(time.monotonic() + self.open_wait_s)
        hand = self._find_least_loaded_worker()
        self._check_call_limit(hand)
        return await self._call_worker(hand, body)

    async def run_expiry_loop(self) -> None:
        """Close expired sessions periodically, as long as the service runs."""
        while True:
            await asyncio.sleep(min(1.0, self.session_timeout_s / 4))
            now = time.monotonic()
            for session, held in [(s, h) for s, h in self.sessions.items() if not h.is_busy and h.expires_at < now]:
                self.pool.metrics.count("leases_ended")
                self._drop_session(session, held.worker)
            for session in [s for s, keyed in self._closed.items() if keyed.made_at < now - self.session_timeout_s - self.call_timeout_s]:
                del self._closed[session]

    def _get_session(self, session: str) -> SessionRecord:
        held = self.sessions.get(session)
        if held is None:
            raise RequestError(410, "there is no such session; it may have expired")
        if held.is_busy:
            raise RequestError(409, "this session is busy with another call")
        return held

    async def _wait_for_worker(self, end: float, leaving: asyncio.Future[Any] | None = None) -> None:
        """Wait until a worker process is ready, such as after the death of the only one: a new process takes about a second."""
        while not any(hand.is_ready for hand in self.pool.worker_processes):
            if time.monotonic() >= end or (leaving is not None and leaving.done()):
                raise RequestError(503, "no worker process is ready; try again later", **{"Retry-After": "2"})
            await asyncio.sleep(0.02)

    def _find_least_loaded_worker(self) -> WorkerProcess:
        ready = [hand for hand in self.pool.worker_processes if hand.is_ready] or self.pool.worker_processes
        held = [session.worker for session in self.sessions.values()]
        return min(ready, key=lambda hand: (held.count(hand), len(hand.pending_calls)))

    def _drop_session(self, session: str, worker: WorkerProcess) -> None:
        self.sessions.pop(session, None)
        self.pool.last_number += 1
        dropped = worker.start_call(self.pool.last_number, {"what": "drop", "session": session})
        dropped.add_done_callback(lambda _: self._admit_next_open())

    def _check_call_limit(self, worker: WorkerProcess) -> None:
        """Reject a call before it changes anything, if too many are waiting."""
        if len(worker.pending_calls) >= MAX_CALLS_PER_THREAD * self.pool.threads:
            self.pool.metrics.count("refused", reason="calls")
            raise RequestError(429, "too many calls wait; try again later", **{"Retry-After": "1"})

    async def _call_worker(self, worker: WorkerProcess, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.pool.call(worker, body, self.call_timeout_s)


async def _keep_reply(call: Awaitable[dict[str, Any]], keyed: KeyedReply | None) -> dict[str, Any]:
    """Wait for the reply to a call, and hand it to those who repeat the request."""
    try:
        said = await call
    except BaseException:
        if keyed is not None:
            keyed.reply.cancel()
        raise
    if keyed is not None:
        keyed.reply.set_result(said)
    return said
