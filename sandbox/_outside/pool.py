"""A few supervisors, each serving one program at a time; threads queue for them.

A supervisor that broke is put away and a fresh one takes its place. Nothing is kept across a fork of this process: a child
gets a pool of its own.
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
    """How many programs can run at once here: the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool(Generic[C]):
    """At most `size` supervisors, started when they are first needed, lent to one thread at a time."""

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
        """A supervisor of one's own: a free one, or a new one, or the next that comes free. SandboxError after the deadline.

        First come, first served: what comes free is handed to whoever has waited longest.
        """
        if os.getpid() != self._pid:
            self._lock = threading.Lock()  # the one we inherited may be held by a thread that we did not
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
        """Put away the free ones that died while nobody used them, so that no program meets them."""
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
        """Stand in line; None is the leave to start a new one."""
        try:
            handed = place.get(timeout=self._queue_s)
        except Empty:
            with self._lock:
                if place in self._line:
                    self._line.remove(place)
                    raise SandboxError(f"no sandbox came free within {self._queue_s:.0f} s; {self.size} are all busy") from None
            handed = place.get()  # it came in the last moment
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
        """Hand it back; one that is not sound is put away."""
        with self._lock:
            if sound and channel.runs < RETIRE_AFTER and not self._closed:
                if self._line:
                    self._line.popleft().put(channel)
                else:
                    self._free.append(channel)
                return
        self._put_away(channel)

    def _vacate(self) -> None:
        """There is room for a new one: the next in line may start it."""
        if self._line:
            self._line.popleft().put(None)
        else:
            self._room += 1

    def living(self) -> list[C]:
        """Every supervisor that runs now."""
        with self._lock:
            return list(self._all)

    def close(self) -> None:
        """Put all of them away. A program that still runs ends as a fault of the machinery."""
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
