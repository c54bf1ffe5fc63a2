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
from rlvr.sandbox._outside.channel import Channel

C = TypeVar("C", bound=Channel)
RETIRE_AFTER = 20_000  # programs; long before a container runs out of user ids


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool(Generic[C]):
    """Pool of at most `size` supervisors, started when first needed, each used by one thread at a time."""

    def __init__(self, start: Callable[[], C], size: int, queue_s: float) -> None:
        self._start, self.size, self._queue_s = start, size, queue_s
        self._lock = threading.Lock()
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._free: list[C] = []
        self._all: set[C] = set()
        self._room = self.size
        self._line: deque[SimpleQueue[C | None]] = deque()

    def take(self) -> C:
        """Acquire a supervisor: an idle one, a new one, or the next that becomes free. Raises SandboxError after the timeout.

        First come, first served: a supervisor that becomes free goes to the thread that has waited longest.
        """
        if os.getpid() != self._pid:
            self._lock = threading.Lock()  # the inherited lock may be held by a thread that does not exist here
            self._begin()
        self._bury()
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._free:
                return self._free.pop()
            place: SimpleQueue[C | None] | None = None
            if self._room:
                self._room -= 1
            else:
                place = SimpleQueue()
                self._line.append(place)
        handed = self._wait(place) if place else None
        return handed or self._fresh()

    def _bury(self) -> None:
        """Close supervisors that died while idle, so that no program gets them."""
        with self._lock:
            dead = [channel for channel in self._free if not channel.alive()]
            self._free = [channel for channel in self._free if channel not in dead]
        for channel in dead:
            self._put_away(channel)

    def _put_away(self, channel: C) -> None:
        try:
            channel.close()
        finally:
            with self._lock:
                self._all.discard(channel)
                self._vacate()

    def _wait(self, place: SimpleQueue[C | None]) -> C | None:
        """Wait in the queue for a supervisor; None permits the thread to start a new one."""
        try:
            handed = place.get(timeout=self._queue_s)
        except Empty:
            with self._lock:
                if place in self._line:
                    self._line.remove(place)
                    raise SandboxError(f"no supervisor became free within {self._queue_s:.0f} s; all {self.size} are busy") from None
            handed = place.get()  # it was handed over at the last moment
        if self._closed:
            raise SandboxError("the sandbox is closed")
        return handed

    def _fresh(self) -> C:
        try:
            fresh = self._start()
        except BaseException:
            with self._lock:
                self._vacate()
            raise
        with self._lock:
            self._all.add(fresh)
        return fresh

    def give(self, channel: C, *, sound: bool) -> None:
        """Return a supervisor to the pool; close it if it is broken."""
        with self._lock:
            if sound and channel.runs < RETIRE_AFTER and not self._closed:
                if self._line:
                    self._line.popleft().put(channel)
                else:
                    self._free.append(channel)
                return
        self._put_away(channel)

    def _vacate(self) -> None:
        """Free a slot: the next thread in the queue may start a new supervisor."""
        if self._line:
            self._line.popleft().put(None)
        else:
            self._room += 1

    def living(self) -> list[C]:
        """Return every running supervisor."""
        with self._lock:
            return list(self._all)

    def close(self) -> None:
        """Close all supervisors. A program that still runs ends as an infrastructure fault."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            channels, self._free = list(self._all), []
            self._all.clear()
            while self._line:
                self._line.popleft().put(None)
        for channel in channels:
            with contextlib.suppress(Exception):
                channel.close()
