"""The worker processes as the server sees them: rows out, verdicts in, and no verdict lost when a process dies.

Rows go out in chunks. When a process dies, the rows that it had are judged again; those that it was judging at that moment alone, in a
process that has nothing else, so that a row which kills its process harms no other. A row that was being judged three times when a process
died gets no score, and never a score of 0.
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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

from rlvr.commands.service.chunks import Chunk, Marks, Told, runs
from rlvr.commands.service.rows import name_of, verdict_line
from rlvr.commands.service.watch import Figures
from rlvr.errors import ConfigError
from rlvr.task import Fault, Verdict

ROWS, TOGETHER, BYTES = 512, 64, 1 << 20
"""How many rows a chunk has at most, how many if they are judged together, and about how many bytes."""
CHUNK_S = 0.04
"""How long one chunk should take: short enough that all processes have work until the end."""
TRIES, LOST = 3, 30
"""How many processes may die while they judge a row, and how many that only have it, until it gets no score."""
SILENT_S = 20.0
"""A process that is silent for so long hangs as a whole, and is killed."""
START_S = 120.0
"""How long a process may take to build its plugins."""
STARTS = 5
"""How many processes in a row may fail to start, for another reason than a signal, before rows that wait get no score."""
KILLED = (-signal.SIGKILL, -signal.SIGTERM)


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
        self.heard, self.ready, self.failed, self.fails = time.monotonic(), False, False, 0
        self.file = TemporaryFile()  # noqa: SIM115
        self.marks = Marks(self.file.fileno(), slots=pool.most)

    @property
    def alone(self) -> bool:
        """Whether it has a row that must be judged alone."""
        return any(chunk.alone for chunk in self.running.values())

    async def live(self) -> None:
        """Keep a process: start one, read what it says, and start another when it has died."""
        while not self.pool.closing:
            try:
                await self._life()
            except (EOFError, ConnectionError):
                pass  # it died
            except Exception as error:  # a process that cannot be started, or that does not keep to the protocol, is replaced
                self.pool.log(f"a worker process is given up: {type(error).__name__}: {error}")
            finally:
                self._buried()
            if not self.pool.closing:
                killed = self.process is not None and self.process.returncode in KILLED and not self.failed
                self.fails = 0 if self.ready or killed else self.fails + 1
                self.ready = self.failed = False
                self.pool.figures.count("worker_restarts")
                await asyncio.sleep(min(0.1 * 2**self.fails, 5.0))

    async def _life(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name not in self.pool.hidden}
        shared = [theirs.fileno(), self.file.fileno()]
        command = [sys.executable, "-m", "rlvr.commands.service.worker", *map(str, shared)]
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=shared, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
        reader, self.writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self.writer.write(json.dumps(self.pool.settings).encode() + b"\n")
        self.heard = time.monotonic() + START_S - SILENT_S
        while (line := await reader.readline()).endswith(b"\n") and (head := line.split()):  # a line that is cut says nothing
            body = await reader.readexactly(int(head[-1])) if len(head) > 1 else b""
            self._said(head, body)
            self.heard = max(self.heard, time.monotonic()) if not self.ready else time.monotonic()
            self.pool.dispatch()

    def _said(self, head: Sequence[bytes], body: bytes) -> None:
        kind, number = head[0], int(head[1]) if len(head) > 1 else 0
        if kind == b"V":
            chunk, row, count = self.running[number], int(head[2]), int(head[3])
            if seconds := float(head[4]):
                self.pool.took(chunk.verifier, count, seconds)
            self._judged(number, chunk, range(row, row + count), body)
        elif kind == b"R" and not number:
            self._greeted(json.loads(body))
        elif kind == b"R" and (waiting := self.calls.pop(number, None)) is not None and not waiting.done():
            waiting.set_result(json.loads(body))

    def _judged(self, number: int, chunk: Chunk, rows: range, lines: bytes) -> None:
        chunk.left.difference_update(rows)
        self.pool.waiting -= len(rows)
        chunk.told(lines, len(rows))
        if not chunk.left:
            del self.running[number]

    def _greeted(self, said: Mapping[str, Any]) -> None:
        if "error" in said:
            self.pool.trouble, self.failed = str(said["error"]), True
            self.pool.log(f"a worker process could not be set up: {self.pool.trouble}")
            return
        self.ready, self.pool.batches, self.pool.trouble = True, set(said["batches"]), ""

    def give(self, number: int, chunk: Chunk) -> None:
        """Send a chunk."""
        assert self.writer is not None
        chunk.slot = min(set(range(self.pool.most)) - {other.slot for other in self.running.values()})
        self.running[number] = chunk
        size = sum(map(len, chunk.rows)) + len(chunk.rows) - 1
        head = f"V {number} {chunk.slot} {chunk.place} {chunk.verifier} {size}\n".encode()
        self.writer.write(head + b"\n".join(chunk.rows))

    def call(self, number: int, body: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Send a call; a future of its result."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self.writer is None or not self.ready:
            answer.set_result(GONE)
            return answer
        try:
            data = json.dumps(body).encode()
        except RecursionError:
            answer.set_result({"error": "the body is nested too deeply", "status": 422})
            return answer
        self.calls[number] = answer
        self.writer.write(b"C %d %d\n" % (number, len(data)) + data)
        return answer

    def leave(self, number: int) -> None:
        """Wait for a call no longer; its thread is replaced."""
        self.calls.pop(number, None)
        if self.writer is not None:
            self.writer.write(b"X %d 0\n" % number)

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
            self.pool.again(chunk, self.marks.judged(chunk.slot, chunk.left))
        for slot in range(self.pool.most):
            self.marks.end(slot)


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
        self.threads = int(settings["threads"])
        self.most = self.threads + 1
        """How many chunks a process has at once: one waits, so that no thread does."""
        self.hands = [Hand(self) for _ in range(workers)]
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

    def submit(self, verifier: str, rows: Sequence[bytes], told: Told, *, done: Collection[int] = ()) -> None:
        """Have rows judged, but for those in the places `done`; `told` gets lines of rows in any order."""
        every = runs(place for place in range(len(rows)) if place not in done) if done else [range(len(rows))]
        size = self._size(verifier, len(rows) - len(done))
        self.waiting += len(rows) - len(done)
        for run in every:
            first = run.start
            while first < run.stop:
                last = min(run.stop, first + size)
                while last > first + 1 and sum(map(len, rows[first:last])) > BYTES:
                    last = (first + last) // 2
                self.queue.append(Chunk(verifier, rows[first:last], first, told))
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
        ready = [hand for hand in self.hands if hand.ready]
        for hand in ready:
            if self.suspects and not hand.running:
                self._give(hand, self.suspects.popleft())
        open_to = [hand for hand in ready if not hand.alone]
        if self.suspects and open_to and len(open_to) == len(ready):
            open_to.remove(min(open_to, key=lambda hand: len(hand.running)))  # it gets nothing new until it is free for a suspect
        while self.queue and (open_to := [hand for hand in open_to if len(hand.running) < self.most]):
            for hand in open_to[: len(self.queue)]:
                self._give(hand, self.queue.popleft())

    def _give(self, hand: Hand, chunk: Chunk) -> None:
        self.numbers += 1
        hand.give(self.numbers, chunk)

    def again(self, chunk: Chunk, judged: Collection[int]) -> None:
        """The process that had this chunk died while it judged some of its rows: those are judged again alone, the others as before."""
        self.figures.count("rows_again", len(chunk.left))
        tries, lost = chunk.tries, chunk.lost + 1
        for row in sorted(judged):
            one = chunk.part(range(row, row + 1), tries=tries + 1, lost=lost)
            if one.tries < TRIES:
                self.suspects.append(one)
            else:
                self.fail(one, f"the process that judged this answer died {TRIES} times")
        for run in runs(sorted(chunk.left.difference(judged))):
            rest = chunk.part(run, tries=tries, lost=lost)
            if lost >= LOST:
                self.fail(rest, f"the processes that had this answer died {LOST} times")
            elif rest.alone:
                self.suspects += [rest.part(range(row, row + 1), tries=tries, lost=lost) for row in range(len(run))]
            else:
                self.queue.appendleft(rest)

    def fail(self, chunk: Chunk, reason: str) -> None:
        """No score, because the machinery failed."""
        verdict = Verdict(None, reason, fault=Fault.INFRA)
        lines = [verdict_line(name_of(row), verdict, chunk.place + at) for at, row in enumerate(chunk.rows)]
        self.waiting -= len(lines)
        chunk.told(b"\n".join([*lines, b""]), len(lines))

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
        served = time.monotonic()
        while not self.closing:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            for hand in self.hands:
                if hand.writer is not None and now - hand.heard > SILENT_S:
                    self.log(f"worker process {hand.process and hand.process.pid} was silent for {SILENT_S:g} s and is killed")
                    hand.failed = not hand.ready
                    hand.kill()
            served = now if self.alive else served
            if all(hand.fails >= STARTS for hand in self.hands) or now - served > START_S:
                why = self.trouble or (f"none was ready for {START_S:g} s" if now - served > START_S else "see the log")
                while self.queue or self.suspects:
                    self.fail((self.queue or self.suspects).popleft(), f"no worker process can be started: {why}")
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
        for hand in self.hands:
            hand.marks.close()
            hand.file.close()
