"""A small asyncio HTTP client for OpenAI-compatible endpoints, so that no request occupies a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import threading
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rlvr.contracts import Verifier
from rlvr.contracts.fault_rule import CONTROL_ROUNDS, TIMEOUT_ROUNDS
from rlvr.errors import require_text_answers
from rlvr.task import Task, Verdict

T = TypeVar("T")
NO_HEADERS: Mapping[str, str] = {}
MAX_RESPONSE_BYTES = 16_000_000
CLOSE_TIMEOUT_S = 5.0
"""How long cancelled coroutines get to end."""
RETRIED_STATUSES = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))


class EndpointUnavailable(Exception):
    """Raised when the endpoint gives no usable reply: an infrastructure fault. `status` is the HTTP status, 0 without a reply;
    `timed_out` says that the last attempt waited in vain.

    >>> EndpointUnavailable("status 400: too long", 400).status
    400
    """

    def __init__(self, reason: str, status: int = 0, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.status, self.timed_out = status, timed_out

    @property
    def num_control_rounds(self) -> int:
        """How often the work is repeated beside a control to find out whose fault this is."""
        return TIMEOUT_ROUNDS if self.timed_out else CONTROL_ROUNDS


class BackgroundEventLoop:
    """An event loop in one daemon thread, started when it is first needed.

    >>> loop = BackgroundEventLoop()
    >>> loop.submit(asyncio.sleep(0, "done")).result(timeout=10)
    'done'
    >>> loop.close()
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: _RunningLoop | None = None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedule a coroutine on the loop; any number of coroutines wait in the one thread."""
        with self._lock:
            if self._running is None or self._running.pid != os.getpid():  # the thread of a parent is not here
                self._running = _RunningLoop()
                weakref.finalize(self, self._running.stop)
            running = self._running
        if threading.current_thread() is running.thread:
            coroutine.close()
            raise RuntimeError("a coroutine waits in its own event loop for another one; await it instead")
        return running.submit(coroutine)

    def close(self) -> None:
        """Stop the thread and cancel pending coroutines. The loop starts again at the next use."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop()


class _RunningLoop:
    """An event loop, its thread, and the futures that somebody waits for."""

    def __init__(self) -> None:
        self.pid, self.is_stopping, self.futures = os.getpid(), False, set[Future[Any]]()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="verifier_waits", daemon=True)
        self.thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        self.futures.add(future)
        future.add_done_callback(self.futures.discard)
        return future

    def stop(self) -> None:
        if self.pid == os.getpid() and not self.is_stopping:
            self.is_stopping = True
            with contextlib.suppress(RuntimeError):  # it is closed
                self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        while not self.is_stopping:
            with contextlib.suppress(KeyboardInterrupt, SystemExit):  # of a task, which has it as its result
                self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S))
        for future in [*self.futures]:  # a coroutine that does not end when it is cancelled keeps nobody waiting
            future.cancel()
        self.loop.close()


async def post_json(url: str, body: dict[str, Any], *, api_key: str = "", timeout_s: float = 60.0, retries: int = 2) -> dict[str, Any]:
    """Post JSON with retries and return the JSON reply; raises EndpointUnavailable if every attempt fails."""
    why, status, timed_out = "", 0, False
    for attempt in range(retries + 1):
        if attempt:
            await asyncio.sleep(min(0.25 * 2**attempt, 8.0))
        status, timed_out = 0, False
        try:
            status, data, _ = await asyncio.wait_for(send_request(url, json.dumps(body).encode(), api_key), timeout_s)
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.IncompleteReadError) as error:
            why = f"{type(error).__name__}: {error}" if str(error) else f"no reply within {timeout_s:g} s"
            timed_out = isinstance(error, TimeoutError)
            continue
        if status == 200:
            try:
                said = json.loads(data)
            except (ValueError, RecursionError):
                said = None
            if isinstance(said, dict):
                return said
            why = "the reply is not JSON"
        else:
            why = f"status {status}: {data[:200].decode('utf-8', 'replace')}"
            if status not in RETRIED_STATUSES:
                break
    raise EndpointUnavailable(why, status, timed_out=timed_out)


async def send_request(
    url: str, data: bytes | None, api_key: str, extra_headers: Mapping[str, str] = NO_HEADERS
) -> tuple[int, bytes, dict[bytes, bytes]]:
    """Send one request on a new connection and return status, body and headers. Without data the request is a GET."""
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=1 << 20)
    try:
        method, path = "GET" if data is None else "POST", f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        headers = {"Host": parts.netloc.rpartition("@")[2], "Content-Type": "application/json", "Connection": "close", **extra_headers}
        headers |= {"Authorization": f"Bearer {api_key}"} if api_key else {}
        headers |= {"Content-Length": str(len(data))} if data is not None else {}
        head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + (data or b""))
        await writer.drain()
        return await _read_response(reader)
    finally:
        writer.close()


async def _read_response(reader: asyncio.StreamReader) -> tuple[int, bytes, dict[bytes, bytes]]:
    first = await reader.readline()
    if not first:
        raise EOFError("the connection was closed without a reply")
    status = int((first.split()[1:2] or [b"no status"])[0])
    headers: dict[bytes, bytes] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        pieces, total = [], 0
        while size := int((await reader.readline()).split(b";")[0], 16):
            total += size
            if total > MAX_RESPONSE_BYTES:
                raise ValueError("the reply is too long")
            pieces.append(await reader.readexactly(size))
            await reader.readline()
        return status, b"".join(pieces), headers
    size = int(headers.get(b"content-length", b"-1"))
    if size > MAX_RESPONSE_BYTES:
        raise ValueError("the reply is too long")
    return status, await (reader.readexactly(size) if size >= 0 else reader.read(MAX_RESPONSE_BYTES)), headers


class AsyncVerifier(Verifier):
    """Base class of verifiers that wait for a network reply: one event-loop thread waits for all answers. Subclasses implement
    `_averify_answer`.
    """

    def __init__(self) -> None:
        self._loop = BackgroundEventLoop()

    async def _averify_answer(self, task: Task, answer: str) -> Verdict:
        raise NotImplementedError

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify one answer and wait for the verdict."""
        return self._loop.submit(self._averify_answer(task, answer)).result()

    def verify_many(self, tasks: Sequence[Task], answers: Sequence[str]) -> list[Verdict]:
        """Verify many answers concurrently, in one thread."""
        started = [self._loop.submit(self._averify_answer(task, answer)) for task, answer in zip(tasks, answers, strict=True)]
        return [verdict.result() for verdict in started]

    async def averify(self, task: Task, answer: str) -> Verdict:
        """Verify one answer without occupying a thread."""
        return await asyncio.wrap_future(self._loop.submit(self._averify_answer(task, answer)))
