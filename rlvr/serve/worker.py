"""A worker process of the service: it holds the plugins, verifies answers in threads, and talks to the server over one socket.

The first line that it reads holds its settings. After it, every message is a line whose last word is the length of the body that follows:

    V CHUNK SLOT PLACE VERIFIER BYTES     verify rows, one a line as the client wrote it; PLACE is the index of the first in its request
    C CALL BYTES                          another call: to a session, or a program for the sandbox
    X CALL 0                              the call is abandoned

Messages to the server have the same form, in any order:

    V CHUNK ROW ROWS SECONDS BYTES        verdicts on ROWS rows of the chunk from ROW on, a line each, and the time they took
    G CHUNK ROW ROWS 0                    rows that are given back unverified, because the row before them takes long
    R CALL BYTES                          the result of a call
    H 0                                   heartbeat, twice a second

The row that is being verified is recorded in a shared file (`chunks`), which the server reads after the death of a worker.
The process ends when the socket closes, or if it could send no heartbeat for long, so it does not outlive the server.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from json import dumps, loads
from threading import Event, Lock, Thread
from typing import Any

from rlvr.contracts import Verifier
from rlvr.errors import RlvrError
from rlvr.mdp.sessions import verify_batch_safely, verify_transcript_safely
from rlvr.mdp.verifier_executor import DaemonThreadExecutor, TimedFuture, build_timeout_verdict
from rlvr.registry.plugins import build_from_config
from rlvr.serve.chunks import ProgressMarks
from rlvr.serve.rows import BadRow, format_error_line, format_verdict_line, get_row_id, parse_row
from rlvr.serve.session_host import SessionHost
from rlvr.task import Task

HEARTBEAT_INTERVAL_S = 0.5
FLUSH_INTERVAL_S = 0.05
"""How long verdicts are collected before they are sent together."""
POLL_INTERVAL_S = 0.05
"""The interval of the checks for timeouts and unsent verdicts."""
SLOW_ROW_S = 1.0
"""A row that takes longer does not hold up those after it in its chunk: other threads and processes get them."""
CLOSE_TIMEOUT_S = 5.0
MAX_TIMEOUTS_ALONE = 8
"""How many rows may time out alone after they timed out together; then it is not single rows that take too long, and the rest is reported."""


class WorkerChunk:
    """Some rows that one thread verifies, in order or together, and its progress."""

    def __init__(
        self, number: int, slot: int, verifier: Verifier, rows: Sequence[bytes], first_index: int, row_offset: int = 0, *,
        is_joint: bool = True, num_timeouts: int = 0,
    ) -> None:  # fmt: skip
        self.number, self.slot, self.verifier, self.rows, self.first_index, self.row_offset = (
            number,
            slot,
            verifier,
            rows,
            first_index,
            row_offset,
        )
        self.current_row, self.row_start_time, self.is_abandoned = 0, 0.0, False
        """The row that is being verified, the time it started, and whether the chunk was abandoned after a timeout."""
        self.end = len(rows)
        """The number of rows that are still the chunk's own: those after a slow one are given back."""
        self.unsent_lines, self.num_sent, self.last_flush_time = list[bytes](), 0, time.monotonic()
        """Unsent verdicts, the number of sent ones, and the time of the last sending."""
        self.job: TimedFuture | None = None
        self.is_joint, self.is_batched = is_joint, is_joint and _has_batch_verify(verifier)
        """Whether the rows are verified together, and not one after the other."""
        self.num_timeouts = num_timeouts
        """How many rows of the chunk timed out alone, after all of them did together."""


class ServiceWorker:
    """Main object of a worker process: serves verifiers, sessions and a sandbox to the server over one socket, until it closes."""

    def __init__(self, connection: socket.socket, settings: dict[str, Any], progress_marks: ProgressMarks) -> None:
        self.connection, self.call_timeout_s, self.progress_marks = connection, float(settings["call_timeout_s"]), progress_marks
        self.max_silence_s = float(settings.get("max_silence_s", 60.0))
        self.verifiers: dict[str, Verifier] = {
            name: build_from_config("verifier", wanted) for name, wanted in settings["verifiers"].items()
        }
        self.session_host = SessionHost(settings.get("envs", {}), settings.get("sandbox"))
        self.executor, self.call_executor = (
            DaemonThreadExecutor(int(settings["slots"]) - 1),
            DaemonThreadExecutor(int(settings["threads"]), name="call"),
        )
        self.chunks: dict[int, WorkerChunk] = {}
        self.calls: dict[int, TimedFuture] = {}
        self.abandoned_calls = set[int]()
        """Abandoned calls that are still running."""
        self.lock, self.send_lock = Lock(), Lock()
        self.stopping = Event()
        self.devnull = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends

    def serve(self, stream: Any) -> None:
        """Read and execute messages until the server closes the socket."""
        for verifier in self.verifiers.values():
            verifier.prepare()
        self._postpone_exit()
        told = dumps({"ready": True, "batches": [n for n, v in self.verifiers.items() if _has_batch_verify(v)]}).encode()
        self.send_to_server(b"R 0 %d\n" % len(told) + told)
        Thread(target=self._run_watchdog, name="watch", daemon=True).start()
        keys = 0
        while head := stream.readline().split():
            body = stream.read(int(head[-1]))
            if head[0] == b"V":
                number, slot, place = map(int, head[1:4])
                keys += 1
                self._start_chunk(keys, WorkerChunk(number, slot, self.verifiers[head[4].decode()], body.split(b"\n"), place))
            elif head[0] == b"C":
                self.calls = {at: job for at, job in self.calls.items() if not job.done()}
                self.calls[int(head[1])] = self.call_executor.submit(self._run_call, int(head[1]), body)
            elif (job := self.calls.pop(int(head[1]), None)) is not None:
                with self.lock:
                    self.abandoned_calls.add(int(head[1]))
                self.call_executor.abandon(job)
                if job.done():  # the call had ended, or never started
                    self.abandoned_calls.discard(int(head[1]))
        self.stopping.set()

    def send_to_server(self, message: bytes) -> None:
        """Send a message to the server."""
        with self.send_lock:
            try:
                self.connection.sendall(message)
            except OSError:
                os._exit(0)  # the server is gone

    def close(self) -> None:
        """Close the plugins, within a time limit."""
        closing = Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)

    def _close(self) -> None:
        self.session_host.close()
        for verifier in self.verifiers.values():
            verifier.close()

    def _start_chunk(self, key: int, chunk: WorkerChunk) -> None:
        with self.lock:
            self.chunks[key] = chunk
        chunk.job = self.executor.submit(self._verify_batch if chunk.is_batched else self._verify_each, key, chunk)

    def _verify_each(self, key: int, chunk: WorkerChunk) -> None:
        chunk.row_start_time = chunk.last_flush_time = time.monotonic()
        for row, line in enumerate(chunk.rows):
            self.progress_marks.mark_row(chunk.slot, chunk.row_offset + row)
            told = self._verify_line(chunk.verifier, line, chunk.first_index + row)
            now = time.monotonic()
            with self.lock:
                if chunk.is_abandoned:
                    return
                chunk.unsent_lines.append(told)
                is_last = row + 1 == chunk.end
                chunk.current_row, chunk.row_start_time = row + 1, 0.0 if is_last else now
            if is_last:
                break
            if now - chunk.last_flush_time > FLUSH_INTERVAL_S:
                self._send_unsent_verdicts(chunk)
        self._finish_chunk(key, chunk)

    def _verify_line(self, verifier: Verifier, line: bytes, place: int) -> bytes:
        try:
            name, task, answer = parse_row(line)
        except BadRow as error:
            return format_error_line(str(error), place)
        return format_verdict_line(name, verify_transcript_safely(verifier, task, answer), place)

    def _verify_batch(self, key: int, chunk: WorkerChunk) -> None:
        """Verify all rows of a chunk together, with a verifier that implements `verify_many`."""
        chunk.row_start_time = chunk.last_flush_time = time.monotonic()
        self.progress_marks.mark_joint_verification(chunk.slot)
        good, told = _parse_rows(chunk)
        verdicts = verify_batch_safely(chunk.verifier, [task for _, task, _ in good.values()], [answer for *_, answer in good.values()])
        for (row, (name, _, _)), verdict in zip(good.items(), verdicts, strict=True):
            told[row] = format_verdict_line(name, verdict, chunk.first_index + row)
        with self.lock:
            if chunk.is_abandoned:
                return
            chunk.unsent_lines, chunk.row_start_time = [told[row] for row in sorted(told)], 0.0
        self._finish_chunk(key, chunk)

    def _finish_chunk(self, key: int, chunk: WorkerChunk) -> None:
        with self.lock:
            del self.chunks[key]
        self.progress_marks.clear(chunk.slot)  # before the last verdicts are sent: after them the server reuses the slot for another chunk
        self._send_unsent_verdicts(chunk)

    def _send_unsent_verdicts(self, chunk: WorkerChunk) -> None:
        """Send the unsent verdicts of a chunk."""
        now = time.monotonic()
        with self.lock:
            lines, chunk.unsent_lines = chunk.unsent_lines, []
            row, chunk.num_sent = chunk.row_offset + chunk.num_sent, chunk.num_sent + len(lines)
            seconds, chunk.last_flush_time = now - chunk.last_flush_time, now
        if lines:
            self._send_lines(chunk, row, seconds, lines)

    def _send_lines(self, chunk: WorkerChunk, row: int, seconds: float, lines: Sequence[bytes]) -> None:
        body = b"\n".join([*lines, b""])
        self.send_to_server(b"V %d %d %d %.6f %d\n" % (chunk.number, row, len(lines), seconds, len(body)) + body)

    def _run_call(self, number: int, line: bytes) -> None:
        body: dict[str, Any] = {}
        try:
            body = loads(line)
            said = self.session_host.handle_request(body)
        except RlvrError as error:
            said = {"error": str(error), "status": 422}
        except (Exception, SystemExit) as error:
            said = {"error": f"{type(error).__name__}: {error}"[:500], "status": 500}
        with self.lock:
            left = number in self.abandoned_calls
            self.abandoned_calls.discard(number)
        if left and body.get("what") == "open" and "error" not in said:  # the client already got a timeout, so the session has no owner
            self.session_host.handle_request({"what": "drop", "session": body["session"]})
        told = dumps(said, default=str).encode()
        self.send_to_server(b"R %d %d\n" % (number, len(told)) + told)

    # ---- time

    def _run_watchdog(self) -> None:
        """Thread of the worker: send heartbeats and unsent verdicts, and time out rows that are verified for too long."""
        beat = 0.0
        while not self.stopping.wait(min(POLL_INTERVAL_S, self.call_timeout_s / 4)):
            now = time.monotonic()
            with self.lock:
                overdue = [
                    (key, chunk)
                    for key, chunk in self.chunks.items()
                    if chunk.row_start_time and now - chunk.row_start_time > self.call_timeout_s
                ]
                waiting = [chunk for chunk in self.chunks.values() if chunk.unsent_lines and now - chunk.last_flush_time > FLUSH_INTERVAL_S]
                for key, chunk in overdue:
                    chunk.is_abandoned = True
                    del self.chunks[key]
                returned = [(chunk, rows) for chunk in self.chunks.values() if (rows := _take_rows_after_slow(chunk, now))]
            for chunk in waiting:
                self._send_unsent_verdicts(chunk)
            for chunk, rows in returned:
                self.send_to_server(b"G %d %d %d 0\n" % (chunk.number, chunk.row_offset + rows.start, len(rows)))
            for key, chunk in overdue:
                self._time_out_row(key, chunk)
            if (
                self.executor.has_too_many_hung_threads or self.call_executor.has_too_many_hung_threads
            ):  # too many threads hang: end the process before waiting jobs wait for ever
                os._exit(1)
            if now - beat >= HEARTBEAT_INTERVAL_S:
                beat = now
                self._postpone_exit()
                self.send_to_server(b"H 0\n")

    def _postpone_exit(self) -> None:
        """End the process if this is not called again in time. That needs no lock of Python, which a row may keep, from the first one on."""
        faulthandler.dump_traceback_later(self.max_silence_s, file=self.devnull, exit=True)

    def _time_out_row(self, chunk_key: int, chunk: WorkerChunk) -> None:
        """Report a timed-out row as unscored, and verify the rows after it in another thread. Rows that were verified together are verified
        again, one after the other: only some of them may take too long.
        """
        if chunk.job is not None:
            self.executor.abandon(chunk.job)
        self._send_unsent_verdicts(chunk)
        self.progress_marks.clear(chunk.slot)
        done, num_timeouts = chunk.current_row, chunk.num_timeouts
        if not (chunk.is_batched and len(chunk.rows) > 1):
            num_timeouts += not chunk.is_joint
            end = chunk.end if num_timeouts >= MAX_TIMEOUTS_ALONE else done + 1
            verdict = build_timeout_verdict(self.call_timeout_s)
            lines = [format_verdict_line(get_row_id(chunk.rows[row]), verdict, chunk.first_index + row) for row in range(done, end)]
            self._send_lines(chunk, chunk.row_offset + done, 0.0, lines)  # 0 s: a timeout must not change the average time per row
            done = end
        if rest := chunk.rows[done : chunk.end]:
            is_joint = chunk.is_joint and not chunk.is_batched
            self._start_chunk(
                chunk_key,
                WorkerChunk(
                    chunk.number, chunk.slot, chunk.verifier, rest, chunk.first_index + done, chunk.row_offset + done,
                    is_joint=is_joint, num_timeouts=num_timeouts,
                ),
            )  # fmt: skip


def _take_rows_after_slow(chunk: WorkerChunk, now: float) -> range:
    """Take the rows after one that takes long from a chunk whose rows are verified one after the other, the first time."""
    rows = range(chunk.current_row + 1, chunk.end)
    if not rows or not chunk.is_joint or chunk.is_batched or not chunk.row_start_time or now - chunk.row_start_time < SLOW_ROW_S:
        return range(0)
    chunk.end = rows.start
    return rows


def _parse_rows(chunk: WorkerChunk) -> tuple[dict[int, tuple[Any, Task, str]], dict[int, bytes]]:
    """Parse the rows of a chunk: id, task and answer of the good ones, and a line with the error of each other one."""
    good, told = dict[int, tuple[Any, Task, str]](), dict[int, bytes]()
    for row, line in enumerate(chunk.rows):
        try:
            good[row] = parse_row(line)
        except BadRow as error:
            told[row] = format_error_line(str(error), chunk.first_index + row)
    return good, told


def _has_batch_verify(verifier: Verifier) -> bool:
    """Whether a verifier overrides `verify_many`."""
    return verifier.traits.has_batch_method


def main(socket_fd: int, marks_fd: int) -> None:
    """Run the worker process: read the settings from the socket, build the plugins and serve; plugin output goes to standard error."""
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server, which lets the workers finish
    link = socket.socket(fileno=socket_fd)
    lines = link.makefile("rb", buffering=1 << 16)
    settings = loads(lines.readline())
    try:
        worker = ServiceWorker(link, settings, ProgressMarks(marks_fd, slots=int(settings["slots"])))
        worker.serve(lines)
    except (Exception, SystemExit) as error:
        told = str(error) if isinstance(error, RlvrError) else f"{type(error).__name__}: {error}"
        body = dumps({"error": told}).encode()
        link.sendall(b"R 0 %d\n" % len(body) + body)
        os._exit(1)
    worker.close()
    sys.stderr.flush()
    os._exit(0)  # hanging threads must not keep the process alive


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
