"""A pool of supervisors, each serving one program at a time; threads queue for them.

A broken supervisor is closed and replaced by a fresh one. Nothing is kept across a fork of this process: a child
creates its own pool.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from rlvr.errors import SandboxError
from rlvr.sandbox._outside.supervisor_connection import SupervisorConnection

C = TypeVar("C", bound=SupervisorConnection)
MAX_PROGRAMS_PER_SUPERVISOR = 20_000  # programs; long before a container runs out of user ids


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class SupervisorPool(Generic[C]):
    """Pool of at most `size` supervisors, started when first needed, each used by one thread at a time."""

    def __init__(self, start: Callable[[], C], size: int, queue_timeout_s: float) -> None:
        self._start, self.size, self._queue_timeout_s = start, size, queue_timeout_s
        self._lock = threading.Lock()
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._idle: list[C] = []
        self._all: set[C] = set()
        self._num_free_slots = self.size
        self._waiters: deque[SimpleQueue[C | None]] = deque()

    def acquire(self) -> C:
        """Acquire a supervisor: an idle one, a new one, or the next that becomes free. Raises SandboxError after the timeout.

        First come, first served: a supervisor that becomes free goes to the thread that has waited longest.
        """
        if os.getpid() != self._pid:
            self._lock = threading.Lock()  # the inherited lock may be held by a thread that does not exist here
            self._reset()
        self._close_dead()
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._idle:
                return self._idle.pop()
            place: SimpleQueue[C | None] | None = None
            if self._num_free_slots:
                self._num_free_slots -= 1
            else:
                place = SimpleQueue()
                self._waiters.append(place)
        handed = self._wait_for_supervisor(place) if place else None
        return handed or self._start_supervisor()

    def _close_dead(self) -> None:
        """Close supervisors that died while idle, so that no program gets them."""
        with self._lock:
            dead = [channel for channel in self._idle if not channel.is_alive()]
            self._idle = [channel for channel in self._idle if channel not in dead]
        for channel in dead:
            self._close_supervisor(channel)

    def _close_supervisor(self, channel: C) -> None:
        try:
            channel.close()
        finally:
            with self._lock:
                self._all.discard(channel)
                self._free_slot()

    def _wait_for_supervisor(self, waiter: SimpleQueue[C | None]) -> C | None:
        """Wait in the queue for a supervisor; None permits the thread to start a new one."""
        try:
            handed = waiter.get(timeout=self._queue_timeout_s)
        except Empty:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                    raise SandboxError(
                        f"no supervisor became free within {self._queue_timeout_s:.0f} s; all {self.size} are busy"
                    ) from None
            handed = waiter.get()  # it was handed over at the last moment
        except BaseException:  # the caller was interrupted: what was handed over goes to the next one
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                    raise
            with contextlib.suppress(Empty):
                if (handed := waiter.get_nowait()) is not None:
                    self.release(handed, is_healthy=True)
                else:
                    with self._lock:
                        self._free_slot()
            raise
        if self._closed:
            raise SandboxError("the sandbox is closed")
        return handed

    def _start_supervisor(self) -> C:
        try:
            fresh = self._start()
        except BaseException:
            with self._lock:
                self._free_slot()
            raise
        with self._lock:
            self._all.add(fresh)
        return fresh

    def release(self, supervisor: C, *, is_healthy: bool) -> None:
        """Return a supervisor to the pool; close it if it is broken."""
        with self._lock:
            if is_healthy and supervisor.num_requests < MAX_PROGRAMS_PER_SUPERVISOR and not self._closed:
                if self._waiters:
                    self._waiters.popleft().put(supervisor)
                else:
                    self._idle.append(supervisor)
                return
        self._close_supervisor(supervisor)

    def _free_slot(self) -> None:
        """Free a slot: the next thread in the queue may start a new supervisor."""
        if self._waiters:
            self._waiters.popleft().put(None)
        else:
            self._num_free_slots += 1

    def list_supervisors(self) -> list[C]:
        """Return every running supervisor."""
        with self._lock:
            return list(self._all)

    def close(self) -> None:
        """Close all supervisors. A program that still runs ends as an infrastructure fault."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            channels, self._idle = list(self._all), []
            self._all.clear()
            while self._waiters:
                self._waiters.popleft().put(None)
        for channel in channels:
            with contextlib.suppress(Exception):
                channel.close()
