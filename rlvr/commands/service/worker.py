"""A worker process of the service: it holds the plugins, judges answers in threads, and talks to the server over one socket.

What it reads is lines; the first holds its settings:

    V CHUNK ROWS VERIFIER     judge the next ROWS lines, each of which is a row as the client wrote it
    C CALL {...}              call something else: a session, a program for the sandbox
    X CALL                    nobody waits for that call any more

What it writes is lines as well, in any order:

    V CHUNK ROW {...}         the verdict on one row
    T CHUNK ROWS SECONDS      how long so many rows took, before the last of them
    R CALL {...}              the result of a call
    H                         it is alive, twice a second

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

from rlvr.commands.service.desk import Desk
from rlvr.commands.service.rows import BadRow, error_line, name_of, task_of, verdict_line
from rlvr.contracts import Transcript, Verifier
from rlvr.errors import RlvrError
from rlvr.mdp.judges import Job, Judges, late
from rlvr.mdp.sessions import judged_whole
from rlvr.plugins.registry import from_config
from rlvr.task import Fault, Task, Verdict

HEARTBEAT_S = 0.5
FLUSH_S = 0.02
"""How long a verdict waits for others, to be sent together."""
LOOK_S = 0.05
"""How often deadlines and verdicts that wait are looked at."""
CLOSING_S = 5.0


class Chunk:
    """Some rows that one thread judges in their order.

    >>> Chunk(7, verifier, [b'{"reference": "4", "answer": "4"}']).row                        # doctest: +SKIP
    0
    """

    def __init__(self, number: int, verifier: Verifier, rows: Sequence[bytes], first: int = 0) -> None:
        self.number, self.verifier, self.rows, self.first = number, verifier, rows, first
        self.row, self.since, self.left = 0, 0.0, False
        """The row that is being judged, since when, and whether it was given up."""
        self.job: Job | None = None
        self.whole = batches(verifier)


class Worker:
    """Serves one socket until it closes.

    >>> Worker(socket, {"verifiers": {"numeric": "numeric"}, "threads": 4, "deadline_s": 60}).serve()   # doctest: +SKIP
    """

    def __init__(self, link: socket.socket, settings: dict[str, Any]) -> None:
        self.link, self.deadline_s = link, float(settings["deadline_s"])
        self.verifiers: dict[str, Verifier] = {name: from_config("verifier", wanted) for name, wanted in settings["verifiers"].items()}
        self.desk = Desk(settings.get("envs", {}), settings.get("sandbox"))
        self.judges, self.callers = Judges(int(settings["threads"])), Judges(int(settings["threads"]), name="call")
        self.chunks: dict[int, Chunk] = {}
        self.calls: dict[int, Job] = {}
        self.left = set[int]()
        """Calls that nobody waits for any more, and that have not ended."""
        self.lock, self.out, self.buffer, self.flushed = Lock(), Lock(), list[bytes](), 0.0
        self.stopping = Event()

    def serve(self, lines: Any) -> None:
        """Read and work until the server closes the socket."""
        for verifier in self.verifiers.values():
            verifier.ready()
        self.send(b"R 0 " + dumps({"ready": True, "batches": [n for n, v in self.verifiers.items() if batches(v)]}).encode())
        Thread(target=self._watch, name="watch", daemon=True).start()
        keys = 0
        while line := lines.readline():
            kind, _, rest = line.partition(b" ")
            if kind == b"V":
                number, count, name = rest.split(b" ", 2)
                rows = [lines.readline()[:-1] for _ in range(int(count))]
                keys += 1
                self._start(keys, Chunk(int(number), self.verifiers[name.strip().decode()], rows))
            elif kind == b"C":
                number, _, body = rest.partition(b" ")
                self.calls = {at: job for at, job in self.calls.items() if not job.done()}
                self.calls[int(number)] = self.callers.submit(self._call, int(number), body)
            elif kind == b"X" and (job := self.calls.pop(int(rest), None)) is not None:
                with self.lock:
                    self.left.add(int(rest))
                self.callers.give_up(job)
                if job.done():  # it had ended, or never begun
                    self.left.discard(int(rest))
        self.stopping.set()

    def send(self, line: bytes, *, wait: bool = False) -> None:
        """Write a line; one that may wait is sent with those that follow it."""
        with self.out:
            self.buffer.append(line)
            now = time.monotonic()
            if wait and now - self.flushed < FLUSH_S:
                return
            data, self.flushed = b"\n".join([*self.buffer, b""]), now
            self.buffer.clear()
            try:
                self.link.sendall(data)
            except OSError:
                os._exit(0)  # the server is gone

    def close(self) -> None:
        """Close the plugins, for a short while."""
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
        last, began = len(chunk.rows) - 1, time.monotonic()
        for row, line in enumerate(chunk.rows):
            with self.lock:
                chunk.row, chunk.since = row, time.monotonic()
            told = self._judged(chunk.verifier, line)
            with self.lock:
                if chunk.left:
                    return
                chunk.since = 0.0
                if row == last:
                    del self.chunks[key]
            if row == last:
                self.send(b"T %d %d %.6f" % (chunk.number, last + 1, time.monotonic() - began), wait=True)
            self.send(b"V %d %d " % (chunk.number, chunk.first + row) + told, wait=row < last)

    def _judged(self, verifier: Verifier, line: bytes) -> bytes:
        try:
            name, task, answer = task_of(line)
        except BadRow as error:
            return error_line(str(error))
        return verdict_line(name, judged_whole(verifier, task, Transcript(answer)))

    def _judge_all(self, key: int, chunk: Chunk) -> None:
        """The same for a verifier that judges many answers together."""
        began = time.monotonic()
        with self.lock:
            chunk.since = began
        told: dict[int, bytes] = {}
        good: list[tuple[int, Any, Task, str]] = []
        for row, line in enumerate(chunk.rows):
            try:
                good.append((row, *task_of(line)))
            except BadRow as error:
                told[row] = error_line(str(error))
        for (row, name, _, _), verdict in zip(good, many_judged(chunk.verifier, good), strict=True):
            told[row] = verdict_line(name, verdict)
        with self.lock:
            if chunk.left:
                return
            del self.chunks[key]
        self.send(b"T %d %d %.6f" % (chunk.number, len(chunk.rows), time.monotonic() - began), wait=True)
        for row in sorted(told):
            self.send(b"V %d %d " % (chunk.number, chunk.first + row) + told[row], wait=row < len(told) - 1)

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
        if left and body.get("what") == "open" and "error" not in said:  # it was opened after its client was told that it was not
            self.desk.answer({"what": "drop", "session": body["session"]})
        self.send(b"R %d " % number + dumps(said, default=str).encode())

    # ---- time

    def _watch(self) -> None:
        """Tell the server that this process lives, send what waits, and give up what has had its time."""
        beat = 0.0
        while not self.stopping.wait(min(LOOK_S, self.deadline_s / 4)):
            now = time.monotonic()
            with self.lock:
                overdue = [(key, chunk) for key, chunk in self.chunks.items() if chunk.since and now - chunk.since > self.deadline_s]
                for key, chunk in overdue:
                    chunk.left = True
                    del self.chunks[key]
            for key, chunk in overdue:
                self._late(key, chunk)
            if self.buffer or now - beat >= HEARTBEAT_S:
                beat = now
                self.send(b"H")

    def _late(self, key: int, chunk: Chunk) -> None:
        """The row that ran too long has no score; another thread judges the rows after it."""
        if chunk.job is not None:
            self.judges.give_up(chunk.job)
        gone = range(len(chunk.rows)) if chunk.whole else [chunk.row]
        for row in gone:
            self.send(b"V %d %d " % (chunk.number, chunk.first + row) + verdict_line(name_of(chunk.rows[row]), late(self.deadline_s)))
        if rest := chunk.rows[gone[-1] + 1 :]:
            self._start(key, Chunk(chunk.number, chunk.verifier, rest, chunk.first + gone[-1] + 1))


def batches(verifier: Verifier) -> bool:
    """Whether a verifier has its own way to judge many answers."""
    return type(verifier).verify_many is not Verifier.verify_many


def many_judged(verifier: Verifier, good: Sequence[tuple[int, Any, Task, str]]) -> list[Verdict]:
    """A verdict for each row, whatever the verifier does. If judging them together fails, each is judged alone."""
    try:
        verdicts = list(verifier.verify_many([task for _, _, task, _ in good], [answer for *_, answer in good]))
        if len(verdicts) == len(good) and all(isinstance(verdict, Verdict) for verdict in verdicts):
            return verdicts
    except (Exception, SystemExit) as error:
        if len(good) == 1:
            return [Verdict(None, f"{type(verifier).__name__} raised {type(error).__name__}: {error}", fault=Fault.INFRA)]
    return [judged_whole(verifier, task, Transcript(answer)) for _, _, task, answer in good]


def main(descriptor: int) -> None:
    """The process: what a plugin prints goes to standard error."""
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server, which lets the workers finish
    link = socket.socket(fileno=descriptor)
    lines = link.makefile("rb", buffering=1 << 16)
    settings = loads(lines.readline())
    try:
        worker = Worker(link, settings)
        worker.serve(lines)
    except (Exception, SystemExit) as error:
        told = str(error) if isinstance(error, RlvrError) else f"{type(error).__name__}: {error}"
        link.sendall(b"R 0 " + dumps({"error": told}).encode() + b"\n")
        os._exit(1)
    worker.close()
    sys.stderr.flush()
    os._exit(0)  # threads that hang must not keep the process


if __name__ == "__main__":
    main(int(sys.argv[1]))
