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
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any

from rlvr.contracts.verifier import THREAD_RUNNER, call_for_future
from rlvr.task import Fault, Verdict

SHUTDOWN_TIMEOUT_S = 1.0
"""The timeout for all threads together to exit."""
MAX_HUNG_THREADS = 256
"""The maximum number of hung threads that are replaced. If all threads hang, tasks wait until their timeout."""


def build_timeout_verdict(seconds: float) -> Verdict:
    """Build the verdict after a timeout: no score, and an infrastructure fault.

    >>> build_timeout_verdict(600.0).reason
    'the verifier gave no verdict within 600 s'
    """
    return Verdict(None, f"the verifier gave no verdict within {seconds:g} s", fault=Fault.INFRA)


class TimedFuture(Future[Any]):
    """A future that records when its task started.

    >>> TimedFuture().started_at
    0.0
    """

    started_at: float = 0.0
    """The start time; 0 while the task waits for a thread."""


class DaemonThreadExecutor:
    """Runs submitted functions in order in up to `max_workers` daemon threads, which are started on demand.

    A function may return a coroutine instead of a result. All coroutines run in one event loop, in a separate thread; what blocks in them
    (`THREAD_RUNNER`) runs in the daemon threads, too.

    >>> executor = DaemonThreadExecutor(2)
    >>> executor.submit(max, 3, 4).result(timeout=10)
    4
    >>> executor.close()
    """

    def __init__(self, max_workers: int, name: str = "verify") -> None:
        self.max_workers, self.name, self.is_closed = max_workers, name, False
        self._queue: SimpleQueue[tuple[TimedFuture, Callable[[], Any]] | None] = SimpleQueue()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._num_unfinished = 0
        """The number of tasks that are running or queued."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: Thread | None = None
        self._pending_coroutines = dict[Future[Any], Future[Any]]()
        """The futures of running coroutines, by task."""
        self.hung_calls = set[Future[Any]]()
        """Running tasks that were abandoned, and still occupy a thread."""
        self.last_progress_at = time.perf_counter()
        """The time when a task last started or ended."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> TimedFuture:
        """Submit a task and return its future; `cancel` works until the task has started."""
        job = TimedFuture()
        with self._lock:
            if self.is_closed:
                raise RuntimeError("this executor is closed and accepts no more work")
            self._num_unfinished += 1
            self._queue.put((job, lambda: work(*arguments)))
            self._start_thread_if_needed()
        return job

    def abandon(self, future: Future[Any]) -> None:
        """Cancel a task. If it is running, a new thread replaces its thread, at most `MAX_HUNG_THREADS` times."""
        if future.cancel():
            return
        with self._lock:
            waiting = self._pending_coroutines.get(future)
        if waiting is not None:
            waiting.cancel()
            return
        with self._lock:
            replaceable = not future.done() and future not in self.hung_calls and len(self.hung_calls) < MAX_HUNG_THREADS
            if replaceable and not self.is_closed:
                self.hung_calls.add(future)
                self.last_progress_at = time.perf_counter()
                self.max_workers += 1
                self._start_thread_if_needed()

    @property
    def has_too_many_hung_threads(self) -> bool:
        """Whether too many threads hang, so that no further one is replaced."""
        return len(self.hung_calls) >= MAX_HUNG_THREADS

    def _start_thread_if_needed(self) -> None:
        if len(self._threads) < min(self._num_unfinished, self.max_workers):
            self._threads.append(Thread(target=self._run_worker, name=f"{self.name}_{len(self._threads)}", daemon=True))
            self._threads[-1].start()

    def close(self) -> None:
        """Accept no more work, drop queued tasks, and wait briefly for running tasks."""
        with self._lock, suppress(Empty):
            self.is_closed = True
            while dropped := self._queue.get_nowait():
                dropped[0].cancel()
        for _ in self._threads:
            self._queue.put(None)
        for waiting in list(self._pending_coroutines.values()):
            waiting.cancel()
        loop, self._loop = self._loop, None
        if loop is not None:
            with suppress(RuntimeError):  # a task that stopped it at this moment has ended its thread
                loop.call_soon_threadsafe(loop.stop)
        until = time.monotonic() + SHUTDOWN_TIMEOUT_S
        for thread in [
            *self._threads,
            *([self._loop_thread] if self._loop_thread else []),
        ]:  # a thread that exits while Python shuts down can crash the process
            thread.join(max(until - time.monotonic(), 0.0))

    def _run_worker(self) -> None:
        while asked := self._queue.get():
            job, work = asked
            job.started_at = self.last_progress_at = time.perf_counter()
            if job.set_running_or_notify_cancel():
                try:
                    result = work()
                    if asyncio.iscoroutine(result):
                        self._schedule_coroutine(job, result)
                    else:
                        job.set_result(result)
                except BaseException as error:  # re-raised by `Future.result`
                    job.set_exception(error)
            self.last_progress_at = time.perf_counter()
            with self._lock:
                self._num_unfinished -= 1
                if job in self.hung_calls:
                    self._remove_replaced_thread(job)
                    return

    def _schedule_coroutine(self, job: TimedFuture, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the event loop. Like a queued task, its timeout restarts whenever another task ends."""
        began, job.started_at = job.started_at, 0.0
        with self._lock:
            if self.is_closed:
                work.close()
                raise CancelledError
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop_thread = Thread(target=self._run_event_loop, args=[self._loop], name=f"{self.name}_waits", daemon=True)
                self._loop_thread.start()
            context = copy_context()
            context.run(THREAD_RUNNER.set, self._run_in_thread)
            waiting = self._pending_coroutines[job] = context.run(asyncio.run_coroutine_threadsafe, work, self._loop)
        waiting.add_done_callback(partial(self._finish_coroutine, job, began))

    async def _run_in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Await a blocking function of a coroutine, in one of the threads of this executor, which is replaced if the function hangs."""
        future = self.submit(call_for_future, function, *arguments)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.abandon(future)
            raise

    def _finish_coroutine(self, job: TimedFuture, began: float, done: Future[Any]) -> None:
        job.started_at, self.last_progress_at = began, time.perf_counter()
        self._pending_coroutines.pop(job, None)
        error = CancelledError() if done.cancelled() else done.exception()
        if error is None:
            job.set_result(done.result())
        else:
            job.set_exception(error)

    def _remove_replaced_thread(self, future: Future[Any]) -> None:
        """Remove a thread that was replaced while it ran a task."""
        self.hung_calls.remove(future)
        self.max_workers -= 1
        if not self.is_closed:
            self._threads.remove(current_thread())

    def _run_event_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run an event loop until this executor is closed, then cancel its remaining tasks."""
        while not self.is_closed:
            with suppress(KeyboardInterrupt, SystemExit):  # of a task, which has it as its result; it stops the loop as well
                loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            with suppress(KeyboardInterrupt, SystemExit):
                loop.run_until_complete(asyncio.wait(tasks, timeout=SHUTDOWN_TIMEOUT_S / 2))
        loop.close()
