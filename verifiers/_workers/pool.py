"""A pool of warm worker processes for unbounded work, such as algebra; workers are killed when they exceed their limits.

A worker is a plain `python -I` that runs `worker_main.py`; a request and its reply are one line of JSON each, never a pickle.

CPU time decides whose fault a failure is. If a worker used up its CPU budget, the answer is too much work: a fault of the answer.
If a worker died, or hardly got CPU time, a fresh worker gets the same request, several times, before an infrastructure error is raised.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

import rlvr

WORKER_FILE = Path(__file__).with_name("worker_main.py")
PATTERNS_FILE = Path(__file__).with_name("patterns.py")
"""The file that handles requests for regular expressions and JSON schemas in a worker."""
MAX_ATTEMPTS = 8
MAX_EXITS = 3
"""Attempts that may end by an exit of the worker itself: other than a kill, that hardly ever comes from outside."""
WALL_FACTOR = 20.0
"""Wall-clock timeout per attempt, as a multiple of the CPU budget: only a stalled machine reaches it."""
MAX_WAIT_PERIODS = 40
"""Maximum number of such periods to wait for a worker that makes progress."""
MIN_CPU_FRACTION = 0.002
"""Fraction of a CPU below which a worker counts as stalled."""
CPU_MARGIN_S = 5.0
"""CPU seconds beyond the budget after which a worker that still does not end is killed from outside."""
START_TIMEOUT_S = 120.0
MAX_START_FAILURES = 3
QUEUE_TIMEOUT_S = 300.0
MAX_REPLY_BYTES = 65_536


class BudgetExceeded(Exception):
    """Raised if a request exceeds its CPU time or memory: the answer is too much work."""


class WorkersFailed(Exception):
    """Raised if workers do not start, none becomes free, or several in a row die: an infrastructure fault."""


class WorkersDied(WorkersFailed):
    """Raised if several workers in a row got a request and gave no reply."""


Home: TypeAlias = "queue.LifoQueue[Worker | WorkersFailed]"
"""Queue of idle workers, and of errors of workers that did not start."""


class Worker:
    """The parent's handle of one worker process: the process and the two pipes to it."""

    def __init__(
        self, memory_mb: int, idle_queue: Home, handler_file: Path, environment: Mapping[str, str] | None = None, *, for_one: bool = False
    ) -> None:
        self.idle_queue = idle_queue
        """The queue of idle workers to which this one returns."""
        self.for_one = for_one
        """Whether it was started for one request, after which it ends."""
        paths = [str(Path(rlvr.__file__).parents[1]), *(p for p in sys.path if p)]
        command = [sys.executable, "-I", "-B", str(WORKER_FILE), str(memory_mb), json.dumps(paths), str(handler_file)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_build_environment() if environment is None else dict(environment),
            start_new_session=True,  # Ctrl-C is for this process: a run goes on to the end of its step
        )
        self._buffer = b""

    def wait_until_ready(self) -> None:
        """Wait until the worker has loaded its modules."""
        try:
            self._read_line(time.monotonic() + START_TIMEOUT_S)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            raise WorkersFailed(f"a worker did not start: {error}") from error

    def send_request(self, request: dict[str, Any], wall_timeout_s: float) -> dict[str, Any]:
        """Send one request and return the reply; raises if the worker exits or does not reply."""
        stdin = self.process.stdin
        assert stdin is not None
        request_id = secrets.token_hex(8)
        stdin.write(json.dumps(request | {"id": request_id}).encode() + b"\n")
        stdin.flush()
        used = start = self.read_cpu_s()
        for _ in range(MAX_WAIT_PERIODS):
            try:
                reply = json.loads(self._read_line(time.monotonic() + wall_timeout_s))
                break
            except TimeoutError:
                before, used = used, self.read_cpu_s()
                if start is not None and used is not None and used - start > float(request["cpu_s"]) + CPU_MARGIN_S:
                    raise  # it ignores its limits
                if before is None or used is None or used - before < MIN_CPU_FRACTION * wall_timeout_s:
                    raise  # it is stalled; a worker that is only slow gets more time
        else:
            raise TimeoutError("it did not finish")
        if not isinstance(reply, dict) or reply.get("id") != request_id or self._buffer:
            raise ValueError("what it wrote is not the reply to this request")
        return reply

    def _read_line(self, deadline: float) -> bytes:
        stdout: IO[bytes] | None = self.process.stdout
        assert stdout is not None
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            poll = select.poll()
            poll.register(stdout, select.POLLIN)
            if left <= 0 or not poll.poll(1000 * left):
                raise TimeoutError("it did not reply in time")
            piece = os.read(stdout.fileno(), 65_536)
            if not piece or len(self._buffer) > MAX_REPLY_BYTES:
                raise EOFError("it exited without a reply")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def read_cpu_s(self) -> float | None:
        """Return the CPU seconds used so far; None if the system does not report them."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None

    def kill(self) -> int | None:
        """Kill the process now, with what it started in its group; returns the exit status."""
        if self.process.poll() is None:  # otherwise its id may be that of another group
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            return None


class CpuBudget:
    """The remaining CPU seconds for one answer.

    >>> CpuBudget(1.0).cpu_s_left
    1.0
    """

    def __init__(self, cpu_s: float) -> None:
        self.cpu_s_left = cpu_s


class WorkerPool:
    """A few warm worker processes that any thread may use: started when needed or in advance; stopped by `close`.

    Args of the constructor: `handler_file` is the file whose function `handle_request` handles the requests, `work_name` names the work in
    messages, and `environment` replaces the few environment variables that a worker has.
    """

    def __init__(
        self,
        size: int = 1,
        *,
        cpu_s: float = 1.0,
        memory_mb: int = 1024,
        wall_factor: float = WALL_FACTOR,
        handler_file: Path,
        work_name: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.size, self.cpu_s, self.memory_mb, self.wall_factor = size, cpu_s, memory_mb, wall_factor
        self.handler_file, self.work_name, self.environment = handler_file, work_name, environment
        self._reset()

    def _reset(self) -> None:
        self._idle: Home = queue.LifoQueue()
        self._num_to_start = self.size
        self._workers: set[Worker] = set()
        self._lock = threading.Lock()
        self._single_slots = threading.BoundedSemaphore(self.size)
        self._retired_pids = set[int]()
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _kill_all, self._workers, self._owner)

    def _reset_after_fork(self) -> None:
        """Start with an empty pool after a fork, because the workers belong to the parent and their pipes must not be shared."""
        if os.getpid() != self._owner:
            self._reset()

    def new_budget(self) -> CpuBudget:
        """Make the CPU budget of a new answer."""
        return CpuBudget(self.cpu_s)

    def list_pids(self) -> list[int]:
        """List the process ids of the live workers."""
        return [worker.process.pid for worker in list(self._workers)]

    def retire_worker(self, pid: int) -> None:
        """Replace a worker before it gets another request."""
        self._retired_pids.add(pid)

    def start_workers(self, max_workers: int | None = None) -> None:
        """Start missing workers in the background, without blocking the caller."""
        self._reset_after_fork()
        with self._lock:
            count = self._num_to_start if max_workers is None else min(max_workers, self._num_to_start)
            self._num_to_start -= count
        for _ in range(count):
            try:
                threading.Thread(target=self._start_worker, args=[self._idle], daemon=True).start()
            except RuntimeError as error:
                self._idle.put(WorkersFailed(f"a worker did not start: {error}"))

    def send_request(
        self,
        request: dict[str, Any],
        budget: CpuBudget,
        *,
        to_new_worker: bool = False,
        is_sound: Callable[[Worker, Mapping[str, Any]], bool] = lambda worker, reply: True,
    ) -> dict[str, Any]:
        """Send a request to a worker and return the reply; the CPU time is taken from the budget.

        Args:
            request: what the handler gets.
            budget: the CPU time of the answer.
            to_new_worker: start a worker for this request, which ends after it; the others go on meanwhile.
            is_sound: whether the worker that gave this reply goes on; otherwise it is replaced. The reply tells which, as `is_sound`, and
                has the worker's `pid`.
        """
        self._reset_after_fork()
        with self._single_slots if to_new_worker else contextlib.nullcontext():
            return self._try_workers(request, budget, to_new_worker, is_sound)

    def _try_workers(
        self, request: dict[str, Any], budget: CpuBudget, to_new_worker: bool, is_sound: Callable[[Worker, Mapping[str, Any]], bool]
    ) -> dict[str, Any]:
        if budget.cpu_s_left <= 0:
            raise BudgetExceeded(f"its time for {self.work_name} is used up")
        request = request | {"cpu_s": budget.cpu_s_left}
        trouble, exits, attempt = "it was not tried", 0, 0
        for attempt in range(MAX_ATTEMPTS):
            worker = self._start_single_worker() if to_new_worker else self._take_worker()
            start = worker.read_cpu_s() or 0.0
            try:
                reply = worker.send_request(request, max(0.25 * self.wall_factor, self.wall_factor * budget.cpu_s_left))
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                used = (worker.read_cpu_s() or start) - start
                status = self._replace_worker(worker)
                if worker.idle_queue is not self._idle:
                    raise WorkersFailed("the pool was closed") from error
                trouble = f"{type(error).__name__}, exit status {status}"
                if used >= 0.9 * budget.cpu_s_left or (attempt and status in (-24, -25)):
                    budget.cpu_s_left = 0.0
                    raise BudgetExceeded(f"{self.work_name} needs more than {self.cpu_s:g} s of processor time") from error
                exits += status not in (None, -signal.SIGKILL)
                if exits == MAX_EXITS:
                    break
                continue
            except BaseException:
                self._replace_worker(worker)
                raise
            budget.cpu_s_left -= float(reply.get("cpu", 0.0))
            reply["is_sound"], reply["pid"] = is_sound(worker, reply), worker.process.pid
            if worker.for_one or not reply["is_sound"]:
                self._replace_worker(worker)
            else:
                worker.idle_queue.put(worker)
            if reply.get("over"):
                budget.cpu_s_left = 0.0
                raise BudgetExceeded(str(reply["over"])[:200])
            return reply
        raise WorkersDied(f"{attempt + 1} workers in a row gave no reply ({trouble})")

    def _take_worker(self) -> Worker:
        self._reset_after_fork()
        home, failed, end = self._idle, 0, time.monotonic() + QUEUE_TIMEOUT_S
        while True:
            if home.empty():
                self.start_workers(1)
            try:
                found = home.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty as error:
                raise WorkersFailed(f"no worker became free within {QUEUE_TIMEOUT_S:g} s") from error
            if home is not self._idle:
                home.put(found)  # for the next thread that waits
                raise WorkersFailed("the pool was closed")
            if isinstance(found, WorkersFailed):
                failed += 1
                with self._lock:
                    self._num_to_start += 1
                if failed == MAX_START_FAILURES:
                    raise found
            elif found.process.poll() is None and found.process.pid not in self._retired_pids:
                return found
            else:
                self._replace_worker(found)

    def _start_worker(self, idle_queue: Home) -> None:
        """Start a worker and put it, or the error, into the queue; a worker that was killed meanwhile adds nothing."""
        try:
            found: Worker | WorkersFailed = self._launch_worker(idle_queue)
        except WorkersFailed as error:
            found = error
        idle_queue.put(found)
        if isinstance(found, Worker) and idle_queue is not self._idle:  # closed meanwhile
            self._kill_worker(found)

    def _start_single_worker(self) -> Worker:
        worker = self._launch_worker(self._idle, for_one=True)
        if worker.idle_queue is not self._idle:
            self._kill_worker(worker)
            raise WorkersFailed("the pool was closed")
        return worker

    def _launch_worker(self, idle_queue: Home, *, for_one: bool = False) -> Worker:
        for _ in range(MAX_ATTEMPTS):
            try:
                worker = Worker(self.memory_mb, idle_queue, self.handler_file, self.environment, for_one=for_one)
            except OSError as error:
                raise WorkersFailed(f"a worker did not start: {error}") from error
            self._workers.add(worker)
            try:
                worker.wait_until_ready()
            except WorkersFailed:
                if self._kill_worker(worker) != -signal.SIGKILL or idle_queue is not self._idle:
                    raise
            except BaseException:
                self._kill_worker(worker)
                raise
            else:
                return worker
        raise WorkersFailed("no worker survived its start")

    def _replace_worker(self, worker: Worker) -> int | None:
        """Kill a worker and immediately start another one, unless it was for one request; return the exit status."""
        status = self._kill_worker(worker)
        if worker.for_one:
            return status
        with self._lock:
            self._num_to_start += worker.idle_queue is self._idle
        self.start_workers(1)
        return status

    def _kill_worker(self, worker: Worker) -> int | None:
        status = worker.kill()
        self._workers.discard(worker)
        self._retired_pids.discard(worker.process.pid)
        return status

    def close(self) -> None:
        """Stop every worker; the pool starts new workers at the next use."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            closed, self._idle, self._num_to_start = self._idle, queue.LifoQueue(), self.size
        closed.put(WorkersFailed("the pool was closed"))
        for worker in list(self._workers):
            self._kill_worker(worker)


class TwoLanePool:
    """Workers for requests of which a few are far more work than the rest, so that these delay only each other.

    A request first gets a short budget in the quick lane. If that is not enough, the request starts again in the slow lane, which has a
    worker of its own.
    """

    QUICK_CPU_S = 0.1

    def __init__(self, size: int = 1, *, cpu_s: float, memory_mb: int, handler_file: Path, work_name: str) -> None:
        self._quick, self._slow = (
            WorkerPool(size, cpu_s=limit, memory_mb=memory_mb, handler_file=handler_file, work_name=work_name)
            for limit in (min(cpu_s, self.QUICK_CPU_S), cpu_s)
        )

    def send_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the reply; raises like `WorkerPool.send_request`."""
        with contextlib.suppress(BudgetExceeded):
            return self._quick.send_request(request, self._quick.new_budget())
        return self._slow.send_request(request, self._slow.new_budget())

    def list_pids(self) -> list[int]:
        """List the process ids of the live workers."""
        return self._quick.list_pids() + self._slow.list_pids()

    def start_workers(self) -> None:
        """Start the workers of the quick lane in the background; the slow lane starts when a request needs it."""
        self._quick.start_workers()

    def close(self) -> None:
        """Stop every worker."""
        self._quick.close()
        self._slow.close()


def _kill_all(live: set[Worker], owner: int) -> None:
    if os.getpid() == owner:
        for worker in list(live):
            worker.kill()
        live.clear()


def _build_environment() -> dict[str, str]:
    keep = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    return keep | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
