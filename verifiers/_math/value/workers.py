"""A pool of warm worker processes for unbounded work, such as algebra; workers are killed when they exceed their limits.

A worker is a plain `python -I` that runs `worker_main.py`; a request and its reply are one line of JSON each. Algebra gets only trees:
no pickle, no text of the answer.

CPU time decides whose fault a failure is. If a worker used up its CPU budget, the answer is too much work: a fault of the answer.
If a worker died, or hardly got CPU time, a fresh worker gets the same request, several times, before an infrastructure error is raised.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import IO, Any, TypeAlias

import rlvr
from rlvr.verifiers._math.read.tree import Tree

MAIN = Path(__file__).with_name("worker_main.py")
ALGEBRA, PATTERNS = Path(__file__).with_name("algebra.py"), Path(__file__).parents[2] / "_patterns.py"
"""Files that handle requests in a worker."""
RETRIES = 8
PATIENCE = 20.0
"""Wall-clock timeout per attempt, as a multiple of the CPU budget: only a stalled machine reaches it."""
WINDOWS = 40
"""Maximum number of such periods to wait for a worker that makes progress."""
CRAWL = 0.002
"""Fraction of a CPU below which a worker counts as stalled."""
START_S = 120.0
START_TRIES = 3
WAIT_S = 300.0
REPLY_LIMIT = 65_536


class Overrun(Exception):
    """Raised if a request exceeds its CPU time or memory: the answer is too much work."""


class Lost(Exception):
    """Raised if several workers in a row died or never got CPU time: an infrastructure fault."""


Home: TypeAlias = "queue.LifoQueue[Worker | Lost]"
"""Queue of idle workers, and of errors of workers that did not start."""


class Worker:
    """One process and its two pipes."""

    def __init__(self, memory_mb: int, home: Home, code: Path) -> None:
        self.home = home
        """The queue of idle workers to which this one returns."""
        paths = [str(Path(rlvr.__file__).parents[1]), *(p for p in sys.path if p)]
        command = [sys.executable, "-I", "-B", str(MAIN), str(memory_mb), json.dumps(paths), str(code)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment()
        )
        self._buffer = b""

    def greet(self) -> None:
        """Wait until the worker has loaded its modules."""
        try:
            self._line(time.monotonic() + START_S)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            raise Lost(f"a worker did not start: {error}") from error

    def ask(self, question: dict[str, Any], wall_s: float) -> dict[str, Any]:
        """Send one request and return the reply; raises if the worker exits or does not reply."""
        stdin = self.process.stdin
        assert stdin is not None
        stdin.write(json.dumps(question).encode() + b"\n")
        stdin.flush()
        used = self.cpu()
        for _ in range(WINDOWS):
            try:
                reply = json.loads(self._line(time.monotonic() + wall_s))
                break
            except TimeoutError:
                before, used = used, self.cpu()
                if before is None or used is None or used - before < CRAWL * wall_s:
                    raise  # it is stalled; a worker that is only slow gets more time
        else:
            raise TimeoutError("it did not finish")
        assert isinstance(reply, dict)
        return reply

    def _line(self, deadline: float) -> bytes:
        stdout: IO[bytes] | None = self.process.stdout
        assert stdout is not None
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            poll = select.poll()
            poll.register(stdout, select.POLLIN)
            if left <= 0 or not poll.poll(1000 * left):
                raise TimeoutError("it did not reply in time")
            piece = os.read(stdout.fileno(), 65_536)
            if not piece or len(self._buffer) > REPLY_LIMIT:
                raise EOFError("it exited without a reply")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def cpu(self) -> float | None:
        """Return the CPU seconds used so far; None if the system does not report them."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None

    def kill(self) -> int | None:
        """Kill the process now; returns the exit status."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            return None


class Budget:
    """The remaining CPU seconds for one answer.

    >>> Budget(1.0).left
    1.0
    """

    def __init__(self, cpu_s: float) -> None:
        self.left = cpu_s


class Pool:
    """A few warm workers that any thread may use: started when needed or in advance; stopped by `close`.

    Args of the constructor: `code` is the file whose function `reply` handles the requests, and `work` names the work in messages.
    """

    def __init__(
        self,
        size: int = 1,
        *,
        cpu_s: float = 1.0,
        memory_mb: int = 1024,
        patience: float = PATIENCE,
        code: Path = ALGEBRA,
        work: str = "algebra",
    ) -> None:
        self.size, self.cpu_s, self.memory_mb, self.patience = size, cpu_s, memory_mb, patience
        self.code, self.work = code, work
        self._open()

    def _open(self) -> None:
        self._idle: Home = queue.LifoQueue()
        self._missing = self.size
        self._live: set[Worker] = set()
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end_all, self._live, self._owner)

    def _adopt(self) -> None:
        """Start with an empty pool after a fork, because the workers belong to the parent and their pipes must not be shared."""
        if os.getpid() != self._owner:
            self._open()

    def budget(self) -> Budget:
        """Make the CPU budget of a new answer."""
        return Budget(self.cpu_s)

    def pids(self) -> list[int]:
        """List the process ids of the live workers."""
        return [worker.process.pid for worker in list(self._live)]

    def warm(self, most: int | None = None) -> None:
        """Start missing workers in the background, without blocking the caller."""
        self._adopt()
        with self._lock:
            count = self._missing if most is None else min(most, self._missing)
            self._missing -= count
        for _ in range(count):
            try:
                threading.Thread(target=self._start, args=[self._idle], daemon=True).start()
            except RuntimeError as error:
                self._idle.put(Lost(f"a worker did not start: {error}"))

    def equal(self, a: Tree, b: Tree, budget: Budget) -> bool | None:
        """Let algebra decide whether two expressions are equal; None if it cannot."""
        same = self.ask({"a": a, "b": b}, budget).get("same")
        return same if isinstance(same, bool) else None

    def ask(self, question: dict[str, Any], budget: Budget) -> dict[str, Any]:
        """Send a request to a worker and return the reply; the CPU time is taken from the budget."""
        if budget.left <= 0:
            raise Overrun(f"its time for {self.work} is used up")
        question = question | {"cpu_s": budget.left}
        trouble = "it was not tried"
        for attempt in range(RETRIES):
            worker = self._borrow()
            start = worker.cpu() or 0.0
            try:
                reply = worker.ask(question, max(0.25 * self.patience, self.patience * budget.left))
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                used = (worker.cpu() or start) - start
                status = self._bury(worker)
                if worker.home is not self._idle:
                    raise Lost("the pool was closed") from error
                trouble = f"{type(error).__name__}, exit status {status}"
                if used >= 0.9 * budget.left or (attempt and status in (-24, -25)):
                    budget.left = 0.0
                    raise Overrun(f"{self.work} needs more than {self.cpu_s:g} s of processor time") from error
                continue
            except BaseException:
                self._bury(worker)
                raise
            budget.left -= float(reply.get("cpu", 0.0))
            worker.home.put(worker)
            if reply.get("over"):
                budget.left = 0.0
                raise Overrun(str(reply["over"])[:200])
            return reply
        raise Lost(f"{RETRIES} workers in a row gave no reply ({trouble})")

    def _borrow(self) -> Worker:
        self._adopt()
        home, failed, end = self._idle, 0, time.monotonic() + WAIT_S
        while True:
            if home.empty():
                self.warm(1)
            try:
                found = home.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty as error:
                raise Lost(f"no worker became free within {WAIT_S:g} s") from error
            if home is not self._idle:
                home.put(found)  # for the next thread that waits
                raise Lost("the pool was closed")
            if isinstance(found, Lost):
                failed += 1
                with self._lock:
                    self._missing += 1
                if failed == START_TRIES:
                    raise found
            elif found.process.poll() is None:
                return found
            else:
                self._bury(found)

    def _start(self, home: Home) -> None:
        """Start a worker and put it, or the error, into the queue; a worker that was killed meanwhile adds nothing."""
        found: Worker | Lost = Lost("no worker survived its start")
        for _ in range(RETRIES):
            try:
                worker = Worker(self.memory_mb, home, self.code)
            except OSError as error:
                found = Lost(f"a worker did not start: {error}")
                break
            self._live.add(worker)
            try:
                worker.greet()
            except Lost as error:
                if self._end(worker) == -signal.SIGKILL and home is self._idle:
                    continue
                found = error
            else:
                found = worker
            break
        home.put(found)
        if isinstance(found, Worker) and home is not self._idle:  # closed meanwhile
            self._end(found)

    def _bury(self, worker: Worker) -> int | None:
        """Kill a worker and immediately start another one; return the exit status."""
        status = self._end(worker)
        with self._lock:
            self._missing += worker.home is self._idle
        self.warm(1)
        return status

    def _end(self, worker: Worker) -> int | None:
        status = worker.kill()
        self._live.discard(worker)
        return status

    def close(self) -> None:
        """Stop every worker; the pool starts new workers at the next use."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            closed, self._idle, self._missing = self._idle, queue.LifoQueue(), self.size
        closed.put(Lost("the pool was closed"))
        for worker in list(self._live):
            self._end(worker)


def _end_all(live: set[Worker], owner: int) -> None:
    if os.getpid() == owner:
        for worker in list(live):
            worker.kill()
        live.clear()


def _environment() -> dict[str, str]:
    keep = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    return keep | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
