"""A worker process of the service: it holds the plugins, verifies answers in threads, and talks to the server over one socket.

The first line that it reads holds its settings. After it, every message is a line whose last word is the length of the body that follows:

    V CHUNK SLOT PLACE VERIFIER BYTES     verify rows, one a line as the client wrote it; PLACE is the index of the first in its request
    C CALL BYTES                          another call: to a session, or a program for the sandbox
    X CALL 0                              the call is abandoned

Messages to the server have the same form, in any order:

    V CHUNK ROW ROWS SECONDS BYTES        verdicts on ROWS rows of the chunk from ROW on, a line each, and the time they took
    R CALL BYTES                          the result of a call
    H 0                                   heartbeat, twice a second

The row that is being verified is recorded in a shared file (`chunks`), which the server reads after the death of a worker.
The process ends when the socket closes, so it never outlives the server.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from json import dumps, loads
from threading import Event, Lock, Thread
from typing import Any

from rlvr.commands.service.chunks import Marks
from rlvr.commands.service.desk import Desk
from rlvr.commands.service.rows import BadRow, error_line, name_of, task_of, verdict_line
from rlvr.contracts import Verifier
from rlvr.errors import RlvrError
from rlvr.mdp.judges import Job, Judges, late
from rlvr.mdp.sessions import judged_whole
from rlvr.plugins.registry import from_config
from rlvr.task import Fault, Task, Verdict

HEARTBEAT_S = 0.5
FLUSH_S = 0.05
"""How long verdicts are collected before they are sent together."""
LOOK_S = 0.05
"""The interval of the checks for timeouts and unsent verdicts."""
CLOSING_S = 5.0


class Chunk:
    """Some rows that one thread verifies in order, and its progress."""

    def __init__(self, number: int, slot: int, verifier: Verifier, rows: Sequence[bytes], place: int, first: int = 0) -> None:
        self.number, self.slot, self.verifier, self.rows, self.place, self.first = number, slot, verifier, rows, place, first
        self.row, self.since, self.left = 0, 0.0, False
        """The row that is being verified, the time it started, and whether the chunk was abandoned after a timeout."""
        self.lines, self.sent, self.flushed = list[bytes](), 0, time.monotonic()
        """Unsent verdicts, the number of sent ones, and the time of the last sending."""
        self.job: Job | None = None
        self.whole = batches(verifier)


class Worker:
    """Serves the verifiers, sessions and sandbox over one socket until it closes."""

    def __init__(self, link: socket.socket, settings: dict[str, Any], marks: Marks) -> None:
        self.link, self.deadline_s, self.marks = link, float(settings["deadline_s"]), marks
        self.verifiers: dict[str, Verifier] = {name: from_config("verifier", wanted) for name, wanted in settings["verifiers"].items()}
        self.desk = Desk(settings.get("envs", {}), settings.get("sandbox"))
        self.judges, self.callers = Judges(int(settings["threads"])), Judges(int(settings["threads"]), name="call")
        self.chunks: dict[int, Chunk] = {}
        self.calls: dict[int, Job] = {}
        self.left = set[int]()
        """Abandoned calls that are still running."""
        self.lock, self.out = Lock(), Lock()
        self.stopping = Event()

    def serve(self, lines: Any) -> None:
        """Read and execute messages until the server closes the socket."""
        for verifier in self.verifiers.values():
            verifier.ready()
        told = dumps({"ready": True, "batches": [n for n, v in self.verifiers.items() if batches(v)]}).encode()
        self.send(b"R 0 %d\n" % len(told) + told)
        Thread(target=self._watch, name="watch", daemon=True).start()
        keys = 0
        while head := lines.readline().split():
            body = lines.read(int(head[-1]))
            if head[0] == b"V":
                number, slot, place = map(int, head[1:4])
                keys += 1
                self._start(keys, Chunk(number, slot, self.verifiers[head[4].decode()], body.split(b"\n"), place))
            elif head[0] == b"C":
                self.calls = {at: job for at, job in self.calls.items() if not job.done()}
                self.calls[int(head[1])] = self.callers.submit(self._call, int(head[1]), body)
            elif (job := self.calls.pop(int(head[1]), None)) is not None:
                with self.lock:
                    self.left.add(int(head[1]))
                self.callers.give_up(job)
                if job.done():  # the call had ended, or never started
                    self.left.discard(int(head[1]))
        self.stopping.set()

    def send(self, message: bytes) -> None:
        """Send a message to the server."""
        with self.out:
            try:
                self.link.sendall(message)
            except OSError:
                os._exit(0)  # the server is gone

    def close(self) -> None:
        """Close the plugins, within a time limit."""
        closing = Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(CLOSING_S)

    def _close(self) -> None:
        self.desk.close()
        for verifier in self.verifiers.values():
            verifier.close()

    def _start(self, key: int, chunk: Chunk) -> None:
        with self.lock:
            self.chunks[key] = chunk
        chunk.job = self.judges.submit(self._judge_all if chunk.whole else self._judge_each, key, chunk)

    def _judge_each(self, key: int, chunk: Chunk) -> None:
        last = len(chunk.rows) - 1
        chunk.since = chunk.flushed = time.monotonic()
        for row, line in enumerate(chunk.rows):
            self.marks.begin(chunk.slot, chunk.first + row)
            told = self._judged(chunk.verifier, line, chunk.place + row)
            now = time.monotonic()
            with self.lock:
                if chunk.left:
                    return
                chunk.lines.append(told)
                chunk.row, chunk.since = row + 1, now if row < last else 0.0
            if now - chunk.flushed > FLUSH_S:
                self._flush(chunk)
        self._ended(key, chunk)

    def _judged(self, verifier: Verifier, line: bytes, place: int) -> bytes:
        try:
            name, task, answer = task_of(line)
        except BadRow as error:
            return error_line(str(error), place)
        return verdict_line(name, judged_whole(verifier, task, answer), place)

    def _judge_all(self, key: int, chunk: Chunk) -> None:
        """Verify all rows of a chunk together, with a verifier that implements `verify_many`."""
        chunk.since = chunk.flushed = time.monotonic()
        self.marks.begin_all(chunk.slot)
        told: dict[int, bytes] = {}
        good: list[tuple[int, Any, Task, str]] = []
        for row, line in enumerate(chunk.rows):
            try:
                good.append((row, *task_of(line)))
            except BadRow as error:
                told[row] = error_line(str(error), chunk.place + row)
        for (row, name, _, _), verdict in zip(good, many_judged(chunk.verifier, good), strict=True):
            told[row] = verdict_line(name, verdict, chunk.place + row)
        with self.lock:
            if chunk.left:
                return
            chunk.lines, chunk.since = [told[row] for row in sorted(told)], 0.0
        self._ended(key, chunk)

    def _ended(self, key: int, chunk: Chunk) -> None:
        with self.lock:
            del self.chunks[key]
        self.marks.end(chunk.slot)  # before the last verdicts are sent: after them the server reuses the slot for another chunk
        self._flush(chunk)

    def _flush(self, chunk: Chunk) -> None:
        """Send the unsent verdicts of a chunk."""
        now = time.monotonic()
        with self.lock:
            lines, chunk.lines = chunk.lines, []
            row, chunk.sent = chunk.first + chunk.sent, chunk.sent + len(lines)
            seconds, chunk.flushed = now - chunk.flushed, now
        if lines:
            self._tell(chunk, row, seconds, lines)

    def _tell(self, chunk: Chunk, row: int, seconds: float, lines: Sequence[bytes]) -> None:
        body = b"\n".join([*lines, b""])
        self.send(b"V %d %d %d %.6f %d\n" % (chunk.number, row, len(lines), seconds, len(body)) + body)

    def _call(self, number: int, line: bytes) -> None:
        body: dict[str, Any] = {}
        try:
            body = loads(line)
            said = self.desk.answer(body)
        except RlvrError as error:
            said = {"error": str(error), "status": 422}
        except (Exception, SystemExit) as error:
            said = {"error": f"{type(error).__name__}: {error}"[:500], "status": 500}
        with self.lock:
            left = number in self.left
            self.left.discard(number)
        if left and body.get("what") == "open" and "error" not in said:  # the client already got a timeout, so the session has no owner
            self.desk.answer({"what": "drop", "session": body["session"]})
        told = dumps(said, default=str).encode()
        self.send(b"R %d %d\n" % (number, len(told)) + told)

    # ---- time

    def _watch(self) -> None:
        """Send heartbeats and unsent verdicts, and time out rows that exceed the deadline."""
        beat = 0.0
        while not self.stopping.wait(min(LOOK_S, self.deadline_s / 4)):
            now = time.monotonic()
            with self.lock:
                overdue = [(key, chunk) for key, chunk in self.chunks.items() if chunk.since and now - chunk.since > self.deadline_s]
                waiting = [chunk for chunk in self.chunks.values() if chunk.lines and now - chunk.flushed > FLUSH_S]
                for key, chunk in overdue:
                    chunk.left = True
                    del self.chunks[key]
            for chunk in waiting:
                self._flush(chunk)
            for key, chunk in overdue:
                self._late(key, chunk)
            if self.judges.spent or self.callers.spent:  # too many threads hang: end the process before waiting jobs wait for ever
                os._exit(1)
            if now - beat >= HEARTBEAT_S:
                beat = now
                self.send(b"H 0\n")

    def _late(self, key: int, chunk: Chunk) -> None:
        """Report a timed-out row as unscored, and verify the rows after it in another thread."""
        if chunk.job is not None:
            self.judges.give_up(chunk.job)
        gone = range(len(chunk.rows)) if chunk.whole else range(chunk.row, chunk.row + 1)
        self._flush(chunk)
        self.marks.end(chunk.slot)
        verdict, first = late(self.deadline_s), chunk.first + gone.start
        lines = [verdict_line(name_of(chunk.rows[row]), verdict, chunk.place + row) for row in gone]
        self._tell(chunk, first, 0.0, lines)  # 0 s: a timeout must not change the average time per row
        if rest := chunk.rows[gone.stop :]:
            self._start(key, Chunk(chunk.number, chunk.slot, chunk.verifier, rest, chunk.place + gone.stop, first + len(gone)))


def batches(verifier: Verifier) -> bool:
    """Whether a verifier overrides `verify_many`."""
    return type(verifier).verify_many is not Verifier.verify_many


def many_judged(verifier: Verifier, good: Sequence[tuple[int, Any, Task, str]]) -> list[Verdict]:
    """Verify rows with `verify_many`; if it fails or returns wrong results, verify each row alone. Always returns a verdict per row."""
    try:
        verdicts = list(verifier.verify_many([task for _, _, task, _ in good], [answer for *_, answer in good]))
        if len(verdicts) == len(good) and all(isinstance(verdict, Verdict) for verdict in verdicts):
            return verdicts
    except (Exception, SystemExit) as error:
        if len(good) == 1:
            return [Verdict(None, f"{type(verifier).__name__} raised {type(error).__name__}: {error}", fault=Fault.INFRA)]
    return [judged_whole(verifier, task, answer) for _, _, task, answer in good]


def main(descriptor: int, shared: int) -> None:
    """Run the worker process; the output of plugins is redirected to standard error."""
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server, which lets the workers finish
    link = socket.socket(fileno=descriptor)
    lines = link.makefile("rb", buffering=1 << 16)
    settings = loads(lines.readline())
    try:
        worker = Worker(link, settings, Marks(shared, slots=int(settings["threads"]) + 1))
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
