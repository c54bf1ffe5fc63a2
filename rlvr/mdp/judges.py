"""A pool of daemon threads for verification, which does not delay the exit of the process.

Python joins the threads of `ThreadPoolExecutor` before it exits, so a hanging verifier would block a finished run. Daemon threads end
with the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any

from rlvr.task import Fault, Verdict

LEAVING_S = 1.0
"""The timeout for all threads together to exit."""
MOST_HUNG = 256
"""The maximum number of hung threads that are replaced. If all threads hang, tasks wait until their timeout."""


def late(seconds: float) -> Verdict:
    """Build the verdict after a timeout: no score, and an infrastructure fault.

    >>> late(600.0).reason
    'the verifier gave no verdict within 600 s'
    """
    return Verdict(None, f"the verifier gave no verdict within {seconds:g} s", fault=Fault.INFRA)


class Job(Future[Any]):
    """A future that records when its task started.

    >>> Job().since
    0.0
    """

    since: float = 0.0
    """The start time; 0 while the task waits for a thread."""


class Judges:
    """Runs submitted functions in order in up to `workers` daemon threads, which are started on demand.

    A function may return a coroutine instead of a result. All coroutines run in one event loop, in a separate thread.

    >>> judges = Judges(2)
    >>> judges.submit(max, 3, 4).result(timeout=10)
    4
    >>> judges.close()
    """

    def __init__(self, workers: int, name: str = "verify") -> None:
        self.workers, self.name, self.closed = workers, name, False
        self._work: SimpleQueue[tuple[Job, Callable[[], Any]] | None] = SimpleQueue()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._busy = 0
        """The number of tasks that are running or queued."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: Thread | None = None
        self._waiting = dict[Future[Any], Future[Any]]()
        """The futures of running coroutines, by task."""
        self._given_up = set[Future[Any]]()
        """Running tasks whose results are no longer needed."""
        self.moved = time.perf_counter()
        """The time when a task last started or ended."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Job:
        """Submit a task and return its future; `cancel` works until the task has started."""
        job = Job()
        with self._lock:
            if self.closed:
                raise RuntimeError("this executor is closed and accepts no more work")
            self._busy += 1
            self._work.put((job, lambda: work(*arguments)))
            self._staff()
        return job

    def give_up(self, future: Future[Any]) -> None:
        """Cancel a task. If it is running, a new thread replaces its thread, at most `MAX_HUNG_THREADS` times."""
        if future.cancel():
            return
        with self._lock:
            waiting = self._waiting.get(future)
        if waiting is not None:
            waiting.cancel()
            return
        with self._lock:
            replaceable = not future.done() and future not in self._given_up and len(self._given_up) < MOST_HUNG
            if replaceable and not self.closed:
                self._given_up.add(future)
                self.moved = time.perf_counter()
                self.workers += 1
                self._staff()

    @property
    def spent(self) -> bool:
        """Whether too many threads hang, so that no further one is replaced."""
        return len(self._given_up) >= MOST_HUNG

    def _staff(self) -> None:
        if len(self._threads) < min(self._busy, self.workers):
            self._threads.append(Thread(target=self._serve, name=f"{self.name}_{len(self._threads)}", daemon=True))
            self._threads[-1].start()

    def close(self) -> None:
        """Accept no more work, drop queued tasks, and wait briefly for running tasks."""
        with self._lock, suppress(Empty):
            self.closed = True
            while dropped := self._work.get_nowait():
                dropped[0].cancel()
        for _ in self._threads:
            self._work.put(None)
        for waiting in list(self._waiting.values()):
            waiting.cancel()
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
        until = time.monotonic() + LEAVING_S
        for thread in [
            *self._threads,
            *([self._waiter] if self._waiter else []),
        ]:  # a thread that exits while Python shuts down can crash the process
            thread.join(max(until - time.monotonic(), 0.0))

    def _serve(self) -> None:
        while asked := self._work.get():
            job, work = asked
            job.since = self.moved = time.perf_counter()
            if job.set_running_or_notify_cancel():
                try:
                    result = work()
                    if asyncio.iscoroutine(result):
                        self._wait(job, result)
                    else:
                        job.set_result(result)
                except BaseException as error:  # re-raised by `Future.result`
                    job.set_exception(error)
            self.moved = time.perf_counter()
            with self._lock:
                self._busy -= 1
                if job in self._given_up:
                    self._leave(job)
                    return

    def _wait(self, job: Job, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the event loop. Like a queued task, its timeout restarts whenever another task ends."""
        began, job.since = job.since, 0.0
        with self._lock:
            if self.closed:
                work.close()
                raise CancelledError
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._waiter = Thread(target=_run, args=[self._loop], name=f"{self.name}_waits", daemon=True)
                self._waiter.start()
            waiting = self._waiting[job] = asyncio.run_coroutine_threadsafe(work, self._loop)
        waiting.add_done_callback(partial(self._waited, job, began))

    def _waited(self, job: Job, began: float, done: Future[Any]) -> None:
        job.since, self.moved = began, time.perf_counter()
        self._waiting.pop(job, None)
        error = CancelledError() if done.cancelled() else done.exception()
        if error is None:
            job.set_result(done.result())
        else:
            job.set_exception(error)

    def _leave(self, future: Future[Any]) -> None:
        """Remove a thread that was replaced while it ran a task."""
        self._given_up.remove(future)
        self.workers -= 1
        if not self.closed:
            self._threads.remove(current_thread())


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped, then cancel its remaining tasks."""
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
