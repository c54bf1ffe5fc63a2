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

from rlvr.errors import ConfigError
from rlvr.mdp.verifier_executor import build_timeout_verdict
from rlvr.serve.chunks import FairQueue, OnLines, ProgressMarks, RowChunk, group_into_ranges
from rlvr.serve.metrics import ServiceMetrics
from rlvr.serve.rows import format_verdict_line, get_row_id
from rlvr.task import Fault, Verdict

MAX_CHUNK_ROWS, MAX_BATCH_ROWS, MAX_CHUNK_BYTES = 512, 64, 1 << 20
"""Maximum rows of a chunk, maximum rows of a batch that is verified together, and approximate maximum bytes of a chunk."""
TARGET_CHUNK_S = 0.04
"""The target duration of a chunk: short enough that all processes have work until the end."""
SPARE_THREADS = 1
"""Threads of a process beyond those that one request may use; none where one thread is asked for, for plugins that cannot run twice at once."""
MAX_DEATHS_VERIFYING, MAX_DEATHS_HOLDING = 3, 30
"""A row gets no score after this many deaths of processes that were verifying it, or that only held it."""
HEARTBEAT_TIMEOUT_S = 20.0
"""Heartbeat timeout: a process that sends nothing for so long is killed."""
SHARED_HEARTBEAT_TIMEOUT_S = 4.0
"""The same for a process without sessions: its rows are verified again, so a kill costs no verdict, and silence holds up all its rows."""
SILENCE_S = 1.5
"""A process that has sent nothing for so long gets no more rows. One call that keeps Python's lock, such as a regular expression, does that."""
START_TIMEOUT_S = 120.0
"""Timeout for a process to build its plugins."""
MAX_START_FAILURES = 5
"""Waiting rows get no score after this many failed starts in a row; a start ended by a signal does not count."""
KILL_STATUSES = (-signal.SIGKILL, -signal.SIGTERM)


class WorkerProcess:
    """The server's handle of one worker process: its socket, the chunks and calls that it works on, and its restarts."""

    def __init__(self, pool: ServicePool) -> None:
        self.pool = pool
        self.process: subprocess.Popen[bytes] | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.running_chunks: dict[int, RowChunk] = {}
        self.pending_calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.last_message_time, self.is_ready, self.has_setup_error, self.num_failed_starts = time.monotonic(), False, False, 0
        self.file = TemporaryFile()  # noqa: SIM115
        self.marks = ProgressMarks(self.file.fileno(), slots=pool.max_chunks)

    @property
    def has_quarantined_row(self) -> bool:
        """Whether the process has a quarantined row, so that it gets no others."""
        return any(chunk.needs_own_process for chunk in self.running_chunks.values())

    @property
    def silence_s(self) -> float:
        """The seconds since the last message of the process."""
        return time.monotonic() - self.last_message_time

    @property
    def heartbeat_timeout_s(self) -> float:
        """The heartbeat timeout of the process now: a row that runs alone has the whole time of a verdict."""
        if not self.is_ready or self.pool.has_sessions:
            return HEARTBEAT_TIMEOUT_S
        return max(SHARED_HEARTBEAT_TIMEOUT_S, self.pool.call_timeout_s) if self.has_quarantined_row else SHARED_HEARTBEAT_TIMEOUT_S

    def pop_overdue_row(self) -> RowChunk | None:
        """Remove and return the only row of the process, if its time is over: it alone can be why the process is silent."""
        number, chunk = next(iter(self.running_chunks.items()), (0, None))
        if chunk is None or len(self.running_chunks) > 1 or len(chunk.pending_rows) > 1 or self.pending_calls:
            return None
        if time.monotonic() - chunk.sent_time <= self.pool.call_timeout_s:
            return None
        del self.running_chunks[number]
        (row,) = chunk.pending_rows
        return chunk.slice_rows(range(row, row + 1), num_deaths_verifying=0, num_deaths_holding=0)

    def count_request_chunks(self, client_callback: OnLines) -> int:
        """Count the chunks of one request that the process works on."""
        return sum(chunk.on_lines == client_callback for chunk in self.running_chunks.values())

    async def run_forever(self) -> None:
        """Start the process, read its messages, and start another when it dies, until the pool closes."""
        while not self.pool.is_closing:
            try:
                await self._run_process()
            except (EOFError, ConnectionError):
                pass  # the process died
            except Exception as error:  # a process that cannot be started, or that violates the protocol, is replaced
                self.pool.log(f"a worker process is replaced: {type(error).__name__}: {error}")
            finally:
                self._handle_death()
            if not self.pool.is_closing:
                killed = self.process is not None and self.process.returncode in KILL_STATUSES and not self.has_setup_error
                self.num_failed_starts = 0 if self.is_ready or killed else self.num_failed_starts + 1
                self.is_ready = self.has_setup_error = False
                self.pool.metrics.count("worker_restarts")
                await asyncio.sleep(min(0.1 * 2**self.num_failed_starts, 5.0))

    async def _run_process(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name not in self.pool.hidden_variables}
        shared = [theirs.fileno(), self.file.fileno()]
        command = [sys.executable, "-m", "rlvr.serve.worker", *map(str, shared)]
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=shared, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
        reader, self.writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self.writer.write(
            json.dumps(self.pool.settings | {"slots": self.pool.max_chunks, "max_silence_s": self.pool.max_silence_s}).encode() + b"\n"
        )
        self.last_message_time = time.monotonic() + START_TIMEOUT_S - HEARTBEAT_TIMEOUT_S
        while (line := await reader.readline()).endswith(b"\n") and (head := line.split()):  # an incomplete line is ignored
            body = await reader.readexactly(int(head[-1])) if len(head) > 1 else b""
            self._handle_message(head, body)
            self.last_message_time = max(self.last_message_time, time.monotonic()) if not self.is_ready else time.monotonic()
            self.pool.dispatch()

    def _handle_message(self, head: Sequence[bytes], body: bytes) -> None:
        kind, number = head[0], int(head[1]) if len(head) > 1 else 0
        if kind == b"V":
            chunk, row, count = self.running_chunks[number], int(head[2]), int(head[3])
            if seconds := float(head[4]):
                self.pool.record_duration(chunk.verifier, count, seconds)
            self._store_verdicts(number, chunk, range(row, row + count), body)
        elif kind == b"G":
            chunk, row, count = self.running_chunks[number], int(head[2]), int(head[3])
            chunk.pending_rows.difference_update(range(row, row + count))
            self.pool.requeue_rows(chunk, range(row, row + count))
            if not chunk.pending_rows:  # the slow row ended just then
                del self.running_chunks[number]
        elif kind == b"R" and not number:
            self._handle_greeting(json.loads(body))
        elif kind == b"R" and (waiting := self.pending_calls.pop(number, None)) is not None and not waiting.done():
            waiting.set_result(json.loads(body))

    def _store_verdicts(self, number: int, chunk: RowChunk, rows: range, lines: bytes) -> None:
        chunk.pending_rows.difference_update(rows)
        self.pool.num_waiting_rows -= len(rows)
        chunk.on_lines(lines, len(rows))
        if not chunk.pending_rows:
            del self.running_chunks[number]

    def _handle_greeting(self, said: Mapping[str, Any]) -> None:
        if "error" in said:
            self.pool.setup_error, self.has_setup_error = str(said["error"]), True
            self.pool.log(f"a worker process could not be set up: {self.pool.setup_error}")
            return
        self.is_ready, self.pool.batching_verifiers, self.pool.setup_error = True, set(said["batches"]), ""

    def send_chunk(self, chunk_number: int, chunk: RowChunk) -> None:
        """Send a chunk of rows to the process for verification."""
        assert self.writer is not None
        chunk.slot = min(set(range(self.pool.max_chunks)) - {other.slot for other in self.running_chunks.values()})
        chunk.sent_time = time.monotonic()
        self.running_chunks[chunk_number] = chunk
        size = sum(map(len, chunk.rows)) + len(chunk.rows) - 1
        head = f"V {chunk_number} {chunk.slot} {chunk.first_index} {chunk.verifier} {size}\n".encode()
        self.writer.write(head + b"\n".join(chunk.rows))

    def start_call(self, call_number: int, body: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Send a call and return a future of its result."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self.writer is None or not self.is_ready:
            answer.set_result(WORKER_GONE_REPLY)
            return answer
        try:
            data = json.dumps(body).encode()
        except RecursionError:
            answer.set_result({"error": "the body is nested too deeply", "status": 422})
            return answer
        self.pending_calls[call_number] = answer
        self.writer.write(b"C %d %d\n" % (call_number, len(data)) + data)
        return answer

    def abandon_call(self, call_number: int) -> None:
        """Abandon a call; the worker replaces its thread."""
        self.pending_calls.pop(call_number, None)
        if self.writer is not None:
            self.writer.write(b"X %d 0\n" % call_number)

    def kill(self) -> None:
        """Kill the process group; the reading loop then starts a new process."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _handle_death(self) -> None:
        """Clean up after the death of the process: fail its calls and retry its chunks."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        if self.process is not None:
            self.kill()
            self.process.wait()
        for waiting in self.pending_calls.values():
            if not waiting.done():
                waiting.set_result(WORKER_GONE_REPLY)
        self.pending_calls.clear()
        lost, self.running_chunks = list(self.running_chunks.values()), {}
        for chunk in lost:
            self.pool.retry_chunk(chunk, self.marks.find_rows_in_progress(chunk.slot, chunk.pending_rows))
        for slot in range(self.pool.max_chunks):
            self.marks.clear(slot)


WORKER_GONE_REPLY = {"error": "the worker process that held this has ended; open it again", "status": 410}


class ServicePool:
    """All worker processes, and the queue of rows for them."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        workers: int,
        metrics: ServiceMetrics,
        log: Callable[[str], None] = print,
        hidden_variables: Sequence[str] = (),
    ) -> None:
        self.settings, self.metrics, self.log, self.hidden_variables = dict(settings), metrics, log, set(hidden_variables)
        self.threads = int(settings["threads"])
        self.call_timeout_s = float(settings.get("call_timeout_s", 60.0))
        self.has_sessions = bool(settings.get("envs") or settings.get("sandbox"))
        """The timeout of one verdict; and whether the processes hold what is lost with them, such as sessions."""
        self.max_silence_s = max(HEARTBEAT_TIMEOUT_S if self.has_sessions else SHARED_HEARTBEAT_TIMEOUT_S, self.call_timeout_s) + 5.0
        """A process that is silent for so long ends itself: there is no server any more that would kill it."""
        self.max_chunks = self.threads + (SPARE_THREADS if self.threads > 1 else 0) + 1
        """Maximum chunks of a process: one more than its threads, so that no thread waits for work."""
        self.max_request_chunks = self.threads
        """Maximum chunks of one request in a process: its slow answers leave a thread for other requests."""
        self.worker_processes = [WorkerProcess(self) for _ in range(workers)]
        self.queue, self.quarantined = FairQueue(), deque[RowChunk]()
        self.num_waiting_rows, self.last_number, self.seconds_per_row, self.is_closing, self.setup_error = (
            0,
            0,
            dict[str, float](),
            False,
            "",
        )
        """Rows without a verdict; the last chunk or call number; seconds per row by verifier; whether the pool closes; the setup error."""
        self.batching_verifiers = set[str]()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the processes and wait until one is ready; raise ConfigError if the plugins cannot be built."""
        self.tasks = [asyncio.create_task(hand.run_forever()) for hand in self.worker_processes]
        until = time.monotonic() + START_TIMEOUT_S
        while not any(hand.is_ready for hand in self.worker_processes):
            if self.setup_error or time.monotonic() > until:
                await self.close()
                raise ConfigError(self.setup_error or f"no worker process was ready within {START_TIMEOUT_S:g} s")
            await asyncio.sleep(0.02)
        self.tasks.append(asyncio.create_task(self._watch_processes()))

    def submit(self, verifier: str, rows: Sequence[bytes], on_lines: OnLines, *, done_rows: Collection[int] = ()) -> None:
        """Queue rows for verification, except those with an index in `done_rows`; `on_lines` is called with verdict lines in any order."""
        every = group_into_ranges(place for place in range(len(rows)) if place not in done_rows) if done_rows else [range(len(rows))]
        size = self._compute_chunk_size(verifier, len(rows) - len(done_rows))
        self.num_waiting_rows += len(rows) - len(done_rows)
        for run in every:
            first = run.start
            while first < run.stop:
                last = min(run.stop, first + size)
                while last > first + 1 and sum(map(len, rows[first:last])) > MAX_CHUNK_BYTES:
                    last = (first + last) // 2
                self.queue.append(RowChunk(verifier, rows[first:last], first, on_lines))
                first = last
        self.dispatch()

    def _compute_chunk_size(self, verifier: str, count: int) -> int:
        if verifier in self.batching_verifiers:
            return MAX_BATCH_ROWS
        even = -(-count // len(self.worker_processes))
        return max(1, min(MAX_CHUNK_ROWS, even, int(TARGET_CHUNK_S / max(self.seconds_per_row.get(verifier, 0.005), 1e-6))))

    def record_duration(self, verifier: str, num_rows: int, seconds: float) -> None:
        """Update the moving average of the time per row."""
        each = seconds / num_rows
        self.seconds_per_row[verifier] = 0.8 * self.seconds_per_row.get(verifier, each) + 0.2 * each
        self.metrics.observe(each, num_rows)

    def estimate_wait_s(self) -> float:
        """Estimate the seconds until all waiting rows are verified."""
        pace = max(self.seconds_per_row.values(), default=0.01)
        return self.num_waiting_rows * pace / max(1, len(self.worker_processes))

    def dispatch(self) -> None:
        """Send waiting chunks to processes with room; a quarantined row gets a process of its own."""
        ready = [hand for hand in self.worker_processes if hand.is_ready and hand.silence_s < SILENCE_S]
        for hand in ready:
            if self.quarantined and not hand.running_chunks:
                self._send_chunk(hand, self.quarantined.popleft())
        open_to = [hand for hand in ready if not hand.has_quarantined_row]
        if self.quarantined and open_to and len(open_to) == len(ready):
            open_to.remove(
                min(open_to, key=lambda hand: len(hand.running_chunks))
            )  # gets no more chunks, to become free for a quarantined row
        while self.queue and (open_to := [hand for hand in open_to if len(hand.running_chunks) < self.max_chunks]):
            open_to.sort(key=lambda hand: len(hand.running_chunks))  # a slow answer takes time from all others in its process
            open_to = [hand for hand in open_to if self._send_next(hand)]

    def _send_next(self, worker: WorkerProcess) -> bool:
        """Send the next chunk to a process; False if there is none for it."""
        chunk = self.queue.take(lambda chunk: worker.count_request_chunks(chunk.on_lines) < self.max_request_chunks)
        if chunk is not None:
            self._send_chunk(worker, chunk)
        return chunk is not None

    def _send_chunk(self, worker: WorkerProcess, chunk: RowChunk) -> None:
        self.last_number += 1
        worker.send_chunk(self.last_number, chunk)

    def retry_chunk(self, chunk: RowChunk, rows_in_progress: Collection[int]) -> None:
        """Queue the rows of a chunk whose process died: quarantine the rows that it was verifying, requeue the others."""
        self.metrics.count("rows_again", len(chunk.pending_rows))
        tries, lost = chunk.num_deaths_verifying, chunk.num_deaths_holding + 1
        for row in sorted(rows_in_progress):
            one = chunk.slice_rows(range(row, row + 1), num_deaths_verifying=tries + 1, num_deaths_holding=lost)
            if one.num_deaths_verifying < MAX_DEATHS_VERIFYING:
                self.quarantined.append(one)
            else:
                self.fail_chunk(one, f"the worker process died {MAX_DEATHS_VERIFYING} times while verifying this answer")
        for run in group_into_ranges(sorted(chunk.pending_rows.difference(rows_in_progress))):
            rest = chunk.slice_rows(run, num_deaths_verifying=tries, num_deaths_holding=lost)
            if lost >= MAX_DEATHS_HOLDING:
                self.fail_chunk(rest, f"the worker processes that held this answer died {MAX_DEATHS_HOLDING} times")
            elif rest.needs_own_process:
                self.quarantined += [
                    rest.slice_rows(range(row, row + 1), num_deaths_verifying=tries, num_deaths_holding=lost) for row in range(len(run))
                ]
            else:
                self.queue.appendleft(rest)

    def requeue_rows(self, chunk: RowChunk, rows: range) -> None:
        """Queue rows again that a process has given back, in parts for all threads: others of them may take as long."""
        size = -(-len(rows) // (len(self.worker_processes) * self.threads))
        for first in reversed(range(rows.start, rows.stop, size)):
            deaths = {"num_deaths_verifying": chunk.num_deaths_verifying, "num_deaths_holding": chunk.num_deaths_holding}
            self.queue.appendleft(chunk.slice_rows(range(first, min(first + size, rows.stop)), **deaths))

    def fail_chunk(self, chunk: RowChunk, reason: str) -> None:
        """Report all rows of a chunk as unscored, with fault `infra`."""
        verdict = Verdict(None, reason, fault=Fault.INFRA)
        lines = [format_verdict_line(get_row_id(row), verdict, chunk.first_index + at) for at, row in enumerate(chunk.rows)]
        self.num_waiting_rows -= len(lines)
        chunk.on_lines(b"\n".join([*lines, b""]), len(lines))

    def cancel_rows(self, client_callback: OnLines) -> None:
        """Remove the queued rows of a client that has disconnected.

        The client is known by its callback. Rows that a process already has are finished.
        """
        lines: tuple[FairQueue | deque[RowChunk], ...] = (self.queue, self.quarantined)
        for line in lines:
            for chunk in [chunk for chunk in line if chunk.on_lines == client_callback]:
                line.remove(chunk)
                self.num_waiting_rows -= len(chunk.pending_rows)

    async def call(self, worker: WorkerProcess, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Run a call in one process and wait for its result, up to the timeout."""
        self.last_number += 1
        number = self.last_number
        try:
            return await asyncio.wait_for(worker.start_call(number, body), timeout_s)
        except TimeoutError:
            worker.abandon_call(number)
            return {"error": f"no reply within {timeout_s:g} s", "status": 504}

    @property
    def num_ready_workers(self) -> int:
        """The number of ready processes."""
        return sum(hand.is_ready for hand in self.worker_processes)

    async def _watch_processes(self) -> None:
        """Kill processes without a heartbeat; fail the waiting rows if no process can be started."""
        served = time.monotonic()
        while not self.is_closing:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            for hand in self.worker_processes:
                if hand.writer is not None and hand.silence_s > hand.heartbeat_timeout_s:
                    self.log(
                        f"worker process {hand.process and hand.process.pid} was silent for {hand.heartbeat_timeout_s:g} s and is killed"
                    )
                    hand.has_setup_error = not hand.is_ready
                    if overdue := hand.pop_overdue_row():
                        self.fail_chunk(overdue, build_timeout_verdict(self.call_timeout_s).reason)
                    hand.kill()
            served = now if self.num_ready_workers else served
            if all(hand.num_failed_starts >= MAX_START_FAILURES for hand in self.worker_processes) or now - served > START_TIMEOUT_S:
                why = self.setup_error or (f"none was ready for {START_TIMEOUT_S:g} s" if now - served > START_TIMEOUT_S else "see the log")
                while chunk := self.queue.take() or (self.quarantined.popleft() if self.quarantined else None):
                    self.fail_chunk(chunk, f"no worker process can be started: {why}")
            self.dispatch()

    async def close(self) -> None:
        """Stop the processes; each closes its plugins when its socket closes."""
        self.is_closing = True
        for hand in self.worker_processes:
            if hand.writer is not None and not hand.writer.is_closing():
                hand.writer.write_eof()
        until = time.monotonic() + 6.0
        while time.monotonic() < until and any(hand.process is not None and hand.process.poll() is None for hand in self.worker_processes):
            await asyncio.sleep(0.02)
        for hand in self.worker_processes:
            hand.kill()
        for task in self.tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self.tasks, return_exceptions=True)
        for hand in self.worker_processes:
            hand.marks.close()
            hand.file.close()
