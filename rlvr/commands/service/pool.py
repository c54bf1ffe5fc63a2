"""The worker processes as the server sees them: rows out, verdicts in, and no verdict lost when a process dies.

Rows go out in chunks. When a process dies, the rows that it had are judged again, each alone in a process that has nothing else, so that
a row which kills its process harms no other. A row that was there three times when a process died gets no score, and never a score of 0.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlvr.commands.service.rows import name_of, verdict_line
from rlvr.commands.service.watch import Figures
from rlvr.errors import ConfigError
from rlvr.task import Fault, Verdict

ROWS, TOGETHER, BYTES = 512, 64, 1 << 20
"""How many rows a chunk has at most, how many if they are judged together, and about how many bytes."""
CHUNK_S = 0.02
"""How long one chunk should take: short enough that all processes have work until the end."""
TRIES = 3
"""How many processes may die under one row."""
SILENT_S = 20.0
"""A process that is silent for so long hangs as a whole, and is killed."""
START_S = 120.0
"""How long a process may take to build its plugins."""
STARTS = 5
"""How many processes in a row may fail to start before rows that wait get no score."""

Told = Callable[[int, bytes], None]


class Chunk:
    """Rows that one process judges, and whom to tell.

    >>> Chunk("numeric", [b'{"reference": "4", "answer": "4"}'], [0], print).left
    {0}
    """

    __slots__ = ("left", "places", "rows", "told", "tries", "verifier")

    def __init__(self, verifier: str, rows: Sequence[bytes], places: Sequence[int], told: Told, tries: int = 0) -> None:
        self.verifier, self.rows, self.places, self.told, self.tries = verifier, rows, places, told, tries
        self.left = set(range(len(rows)))


class Hand:
    """One worker process.

    >>> await hand.start()                                                                   # doctest: +SKIP
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.process: subprocess.Popen[bytes] | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.running: dict[int, Chunk] = {}
        self.calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.heard, self.ready, self.fails = time.monotonic(), False, 0

    @property
    def alone(self) -> bool:
        """Whether it has a row that must be judged alone."""
        return any(chunk.tries for chunk in self.running.values())

    async def live(self) -> None:
        """Keep a process: start one, read what it says, and start another when it has died."""
        while not self.pool.closing:
            try:
                await self._life()
            except Exception as error:  # a process that cannot be started, or that does not keep to the protocol, is replaced
                self.pool.log(f"a worker process is given up: {type(error).__name__}: {error}")
            finally:
                self._buried()
            if not self.pool.closing:
                self.fails = 0 if self.ready else self.fails + 1
                self.ready = False
                self.pool.figures.count("worker_restarts")
                await asyncio.sleep(min(0.1 * 2**self.fails, 5.0))

    async def _life(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name not in self.pool.hidden}
        command = [sys.executable, "-m", "rlvr.commands.service.worker", str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
        reader, self.writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self.writer.write(json.dumps(self.pool.settings).encode() + b"\n")
        self.heard, rest = time.monotonic() + START_S - SILENT_S, b""
        while data := await reader.read(1 << 18):
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                self._said(line)
            self.heard = max(self.heard, time.monotonic()) if not self.ready else time.monotonic()
            self.pool.dispatch()

    def _said(self, line: bytes) -> None:
        kind, _, rest = line.partition(b" ")
        if kind == b"V":
            number, row, told = rest.split(b" ", 2)
            if (chunk := self.running.get(int(number))) is not None:
                self._judged(int(number), chunk, int(row), told)
        elif kind == b"T":
            number, count, seconds = rest.split(b" ")
            if (chunk := self.running.get(int(number))) is not None:
                self.pool.took(chunk.verifier, int(count), float(seconds))
        elif kind == b"R":
            at, _, body = rest.partition(b" ")
            if int(at) == 0:
                self._greeted(json.loads(body))
            elif (waiting := self.calls.pop(int(at), None)) is not None and not waiting.done():
                waiting.set_result(json.loads(body))

    def _judged(self, number: int, chunk: Chunk, row: int, told: bytes) -> None:
        if row in chunk.left:
            chunk.left.remove(row)
            self.pool.waiting -= 1
            chunk.told(chunk.places[row], told)
        if not chunk.left:
            del self.running[number]

    def _greeted(self, said: Mapping[str, Any]) -> None:
        if "error" in said:
            self.pool.trouble = str(said["error"])
            self.pool.log(f"a worker process could not be set up: {self.pool.trouble}")
            return
        self.ready, self.pool.batches, self.pool.trouble = True, set(said["batches"]), ""

    def give(self, number: int, chunk: Chunk) -> None:
        """Send a chunk."""
        assert self.writer is not None
        self.running[number] = chunk
        head = f"V {number} {len(chunk.rows)} {chunk.verifier}".encode()
        self.writer.write(b"\n".join([head, *chunk.rows, b""]))

    def call(self, number: int, body: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Send a call; a future of its result."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self.writer is None or not self.ready:
            answer.set_result(GONE)
            return answer
        try:
            line = f"C {number} {json.dumps(body)}\n".encode()
        except RecursionError:
            answer.set_result({"error": "the body is nested too deeply", "status": 422})
            return answer
        self.calls[number] = answer
        self.writer.write(line)
        return answer

    def leave(self, number: int) -> None:
        """Wait for a call no longer; its thread is replaced."""
        self.calls.pop(number, None)
        if self.writer is not None:
            self.writer.write(b"X %d\n" % number)

    def kill(self) -> None:
        """End the process and all that it started; `live` notices."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _buried(self) -> None:
        """The process has died: what it had is done again."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        if self.process is not None:
            self.kill()
            self.process.wait()
        for waiting in self.calls.values():
            if not waiting.done():
                waiting.set_result(GONE)
        self.calls.clear()
        lost, self.running = list(self.running.values()), {}
        for chunk in lost:
            self.pool.again(chunk)


GONE = {"error": "the worker process that held this has ended; open it again", "status": 410}


class Pool:
    """All worker processes, and the rows that wait for them.

    >>> pool = Pool({"verifiers": {"numeric": "numeric"}, "threads": 4, "deadline_s": 60}, workers=2)        # doctest: +SKIP
    >>> await pool.start(); pool.submit("numeric", rows, told)                                              # doctest: +SKIP
    """

    def __init__(
        self, settings: Mapping[str, Any], *, workers: int, figures: Figures, log: Callable[[str], None] = print, hidden: Sequence[str] = ()
    ) -> None:
        self.settings, self.figures, self.log, self.hidden = dict(settings), figures, log, set(hidden)
        self.hands = [Hand(self) for _ in range(workers)]
        self.threads = int(settings["threads"])
        self.queue, self.suspects = deque[Chunk](), deque[Chunk]()
        self.waiting, self.numbers, self.pace, self.closing, self.trouble = 0, 0, dict[str, float](), False, ""
        """Rows without a verdict yet; the last number used; seconds for a row, by verifier; why no process can be set up."""
        self.batches = set[str]()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the processes and wait until one is ready; ConfigError if the plugins cannot be built."""
        self.tasks = [asyncio.create_task(hand.live()) for hand in self.hands]
        until = time.monotonic() + START_S
        while not any(hand.ready for hand in self.hands):
            if self.trouble or time.monotonic() > until:
                await self.close()
                raise ConfigError(self.trouble or f"no worker process was ready within {START_S:g} s")
            await asyncio.sleep(0.02)
        self.tasks.append(asyncio.create_task(self._watch()))

    def submit(self, verifier: str, rows: Sequence[bytes], told: Told) -> None:
        """Have rows judged; `told` gets each row's place and its line, in any order."""
        self.waiting += len(rows)
        size = self._size(verifier, len(rows))
        first = 0
        while first < len(rows):
            last, weight = first, 0
            while last < min(len(rows), first + size) and weight < BYTES:
                weight += len(rows[last])
                last += 1
            self.queue.append(Chunk(verifier, rows[first:last], range(first, last), told))
            first = last
        self.dispatch()

    def _size(self, verifier: str, count: int) -> int:
        if verifier in self.batches:
            return TOGETHER
        even = -(-count // len(self.hands))
        return max(1, min(ROWS, even, int(CHUNK_S / max(self.pace.get(verifier, 0.005), 1e-6))))

    def took(self, verifier: str, count: int, seconds: float) -> None:
        """Remember how long a row takes."""
        each = seconds / count
        self.pace[verifier] = 0.8 * self.pace.get(verifier, each) + 0.2 * each
        self.figures.seconds(each, count)

    def soon(self) -> float:
        """About how many seconds the rows that wait will take."""
        pace = max(self.pace.values(), default=0.01)
        return self.waiting * pace / max(1, len(self.hands))

    def dispatch(self) -> None:
        """Give what waits to the processes that have room. A row under suspicion gets a process for itself."""
        for hand in self.hands:
            if hand.ready and self.suspects and not hand.running:
                self._give(hand, self.suspects.popleft())
        room = True
        while self.queue and room:
            room = False
            for hand in self.hands:
                most = self.threads + 1
                if self.queue and hand.ready and not hand.alone and len(hand.running) < most:
                    if self.suspects and len(self.hands) == 1:
                        break  # the only process is about to be empty for the suspects
                    self._give(hand, self.queue.popleft())
                    room = True

    def _give(self, hand: Hand, chunk: Chunk) -> None:
        self.numbers += 1
        hand.give(self.numbers, chunk)

    def again(self, chunk: Chunk) -> None:
        """The process that had this chunk died: each row without a verdict is tried again, alone."""
        for row in sorted(chunk.left):
            one = Chunk(chunk.verifier, [chunk.rows[row]], [chunk.places[row]], chunk.told, chunk.tries + 1)
            self.figures.count("rows_again")
            if one.tries < TRIES:
                self.suspects.append(one)
            else:
                self.fail(one, f"the process that judged this answer died {TRIES} times")

    def fail(self, chunk: Chunk, reason: str) -> None:
        """No score, because the machinery failed."""
        for row in sorted(chunk.left):
            self.waiting -= 1
            chunk.told(chunk.places[row], verdict_line(name_of(chunk.rows[row]), Verdict(None, reason, fault=Fault.INFRA)))
        chunk.left.clear()

    def drop(self, told: Told) -> None:
        """Forget the rows of a client that is gone, as far as no process has them."""
        for line in (self.queue, self.suspects):
            for chunk in [chunk for chunk in line if chunk.told == told]:
                line.remove(chunk)
                self.waiting -= len(chunk.left)

    async def call(self, hand: Hand, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Call something in one process."""
        self.numbers += 1
        number = self.numbers
        try:
            return await asyncio.wait_for(hand.call(number, body), timeout_s)
        except TimeoutError:
            hand.leave(number)
            return {"error": f"no answer within {timeout_s:g} s", "status": 504}

    @property
    def alive(self) -> int:
        """How many processes are ready."""
        return sum(hand.ready for hand in self.hands)

    async def _watch(self) -> None:
        """Kill processes that hang as a whole; give up on rows if no process can be started."""
        while not self.closing:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            for hand in self.hands:
                if hand.writer is not None and now - hand.heard > SILENT_S:
                    self.log(f"worker process {hand.process and hand.process.pid} was silent for {SILENT_S:g} s and is killed")
                    hand.kill()
            if all(hand.fails >= STARTS for hand in self.hands):
                while self.queue or self.suspects:
                    self.fail((self.queue or self.suspects).popleft(), f"no worker process can be started: {self.trouble or 'see the log'}")
            self.dispatch()

    async def close(self) -> None:
        """End the processes: each closes its plugins when its socket closes."""
        self.closing = True
        for hand in self.hands:
            if hand.writer is not None and not hand.writer.is_closing():
                hand.writer.write_eof()
        until = time.monotonic() + 6.0
        while time.monotonic() < until and any(hand.process is not None and hand.process.poll() is None for hand in self.hands):
            await asyncio.sleep(0.02)
        for hand in self.hands:
            hand.kill()
        for task in self.tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self.tasks, return_exceptions=True)
