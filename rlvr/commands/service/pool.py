"""The server's pool of worker processes: it sends rows, receives verdicts, and retries the rows of a process that died.

Rows are sent in chunks. When a process dies, its rows are verified again. A row that was being verified at that moment is quarantined: it
runs in a process without other rows, so that a row that kills its process harms no other row. A row that was being verified in three
deaths gets no score (fault `infra`), never a score of 0.
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
"""Maximum rows of a chunk, maximum rows of a batch that is verified together, and approximate maximum bytes of a chunk."""
CHUNK_S = 0.04
"""The target duration of a chunk: short enough that all processes have work until the end."""
TRIES, LOST = 3, 30
"""A row gets no score after this many deaths of processes that were verifying it, or that only held it."""
SILENT_S = 20.0
"""Heartbeat timeout: a process that sends nothing for so long is killed."""
START_S = 120.0
"""Timeout for a process to build its plugins."""
STARTS = 5
"""Waiting rows get no score after this many failed starts in a row; a start ended by a signal does not count."""
KILLED = (-signal.SIGKILL, -signal.SIGTERM)


class Hand:
    """One worker process: its socket, its chunks and calls, and its restarts."""

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
        """Whether the process has a quarantined row, so that it gets no others."""
        return any(chunk.alone for chunk in self.running.values())

    async def live(self) -> None:
        """Start the process, read its messages, and start another when it dies, until the pool closes."""
        while not self.pool.closing:
            try:
                await self._life()
            except (EOFError, ConnectionError):
                pass  # the process died
            except Exception as error:  # a process that cannot be started, or that violates the protocol, is replaced
                self.pool.log(f"a worker process is replaced: {type(error).__name__}: {error}")
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
        while (line := await reader.readline()).endswith(b"\n") and (head := line.split()):  # an incomplete line is ignored
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
        """Send a call and return a future of its result."""
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
        """Abandon a call; the worker replaces its thread."""
        self.calls.pop(number, None)
        if self.writer is not None:
            self.writer.write(b"X %d 0\n" % number)

    def kill(self) -> None:
        """Kill the process group; the reading loop then starts a new process."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _buried(self) -> None:
        """Clean up after the death of the process: fail its calls and retry its chunks."""
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
    """All worker processes, and the queue of rows for them."""

    def __init__(
        self, settings: Mapping[str, Any], *, workers: int, figures: Figures, log: Callable[[str], None] = print, hidden: Sequence[str] = ()
    ) -> None:
        self.settings, self.figures, self.log, self.hidden = dict(settings), figures, log, set(hidden)
        self.threads = int(settings["threads"])
        self.most = self.threads + 1
        """Maximum chunks of a process: one more than its threads, so that no thread waits for work."""
        self.hands = [Hand(self) for _ in range(workers)]
        self.queue, self.suspects = deque[Chunk](), deque[Chunk]()
        self.waiting, self.numbers, self.pace, self.closing, self.trouble = 0, 0, dict[str, float](), False, ""
        """Rows without a verdict; the last chunk or call number; seconds per row by verifier; whether the pool closes; the setup error."""
        self.batches = set[str]()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the processes and wait until one is ready; raise ConfigError if the plugins cannot be built."""
        self.tasks = [asyncio.create_task(hand.live()) for hand in self.hands]
        until = time.monotonic() + START_S
        while not any(hand.ready for hand in self.hands):
            if self.trouble or time.monotonic() > until:
                await self.close()
                raise ConfigError(self.trouble or f"no worker process was ready within {START_S:g} s")
            await asyncio.sleep(0.02)
        self.tasks.append(asyncio.create_task(self._watch()))

    def submit(self, verifier: str, rows: Sequence[bytes], told: Told, *, done: Collection[int] = ()) -> None:
        """Queue rows for verification, except those with an index in `done`; `told` is called with verdict lines in any order."""
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
        """Update the moving average of the time per row."""
        each = seconds / count
        self.pace[verifier] = 0.8 * self.pace.get(verifier, each) + 0.2 * each
        self.figures.seconds(each, count)

    def soon(self) -> float:
        """Estimate the seconds until all waiting rows are verified."""
        pace = max(self.pace.values(), default=0.01)
        return self.waiting * pace / max(1, len(self.hands))

    def dispatch(self) -> None:
        """Send waiting chunks to processes with room; a quarantined row gets a process of its own."""
        ready = [hand for hand in self.hands if hand.ready]
        for hand in ready:
            if self.suspects and not hand.running:
                self._give(hand, self.suspects.popleft())
        open_to = [hand for hand in ready if not hand.alone]
        if self.suspects and open_to and len(open_to) == len(ready):
            open_to.remove(min(open_to, key=lambda hand: len(hand.running)))  # gets no more chunks, to become free for a quarantined row
        while self.queue and (open_to := [hand for hand in open_to if len(hand.running) < self.most]):
            for hand in open_to[: len(self.queue)]:
                self._give(hand, self.queue.popleft())

    def _give(self, hand: Hand, chunk: Chunk) -> None:
        self.numbers += 1
        hand.give(self.numbers, chunk)

    def again(self, chunk: Chunk, judged: Collection[int]) -> None:
        """Queue the rows of a chunk whose process died: quarantine the rows that it was verifying, requeue the others."""
        self.figures.count("rows_again", len(chunk.left))
        tries, lost = chunk.tries, chunk.lost + 1
        for row in sorted(judged):
            one = chunk.part(range(row, row + 1), tries=tries + 1, lost=lost)
            if one.tries < TRIES:
                self.suspects.append(one)
            else:
                self.fail(one, f"the worker process died {TRIES} times while verifying this answer")
        for run in runs(sorted(chunk.left.difference(judged))):
            rest = chunk.part(run, tries=tries, lost=lost)
            if lost >= LOST:
                self.fail(rest, f"the worker processes that held this answer died {LOST} times")
            elif rest.alone:
                self.suspects += [rest.part(range(row, row + 1), tries=tries, lost=lost) for row in range(len(run))]
            else:
                self.queue.appendleft(rest)

    def fail(self, chunk: Chunk, reason: str) -> None:
        """Report all rows of a chunk as unscored, with fault `infra`."""
        verdict = Verdict(None, reason, fault=Fault.INFRA)
        lines = [verdict_line(name_of(row), verdict, chunk.place + at) for at, row in enumerate(chunk.rows)]
        self.waiting -= len(lines)
        chunk.told(b"\n".join([*lines, b""]), len(lines))

    def drop(self, told: Told) -> None:
        """Remove the queued rows of a client that disconnected; rows that a process has already are finished."""
        for line in (self.queue, self.suspects):
            for chunk in [chunk for chunk in line if chunk.told == told]:
                line.remove(chunk)
                self.waiting -= len(chunk.left)

    async def call(self, hand: Hand, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Run a call in one process and wait for its result, up to the timeout."""
        self.numbers += 1
        number = self.numbers
        try:
            return await asyncio.wait_for(hand.call(number, body), timeout_s)
        except TimeoutError:
            hand.leave(number)
            return {"error": f"no reply within {timeout_s:g} s", "status": 504}

    @property
    def alive(self) -> int:
        """The number of ready processes."""
        return sum(hand.ready for hand in self.hands)

    async def _watch(self) -> None:
        """Kill processes without a heartbeat; fail the waiting rows if no process can be started."""
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
        """Stop the processes; each closes its plugins when its socket closes."""
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
