"""A few supervisors, each serving one program at a time; threads queue for them.

A supervisor that broke is put away and a fresh one takes its place. Nothing is kept across a fork of this process: a child
gets a pool of its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from rlvr.errors import SandboxError
from rlvr.sandbox._channel import Channel

C = TypeVar("C", bound=Channel)
RETIRE_AFTER = 20_000  # programs; long before a container runs out of user ids


class Pool(Generic[C]):
    """At most `size` supervisors, started when they are first needed, lent to one thread at a time."""

    def __init__(self, start: Callable[[], C], size: int, queue_s: float) -> None:
        self._start, self.size, self._queue_s = start, size, queue_s
        self._pid = os.getpid()
        self._free: list[C] = []
        self._all: set[C] = set()
        self._room = size
        self._closed = False
        self._turn = threading.Condition()

    def take(self) -> C:
        """A supervisor of one's own: a free one, or a new one, or the next that comes free. SandboxError after the deadline."""
        deadline = time.monotonic() + self._queue_s
        with self._turn:
            self._after_fork()
            while not self._free and not self._room:
                if self._closed:
                    break
                if not self._turn.wait(max(deadline - time.monotonic(), 0)) and time.monotonic() >= deadline:
                    raise SandboxError(f"no sandbox came free within {self._queue_s:.0f} s; {self.size} are all busy")
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._free:
                return self._free.pop()
            self._room -= 1
        try:
            fresh = self._start()
        except BaseException:
            with self._turn:
                self._room += 1
                self._turn.notify()
            raise
        with self._turn:
            self._all.add(fresh)
        return fresh

    def give(self, channel: C, *, sound: bool) -> None:
        """Hand it back; one that is not sound is put away."""
        keep = sound and channel.runs < RETIRE_AFTER
        with self._turn:
            keep = keep and not self._closed
            if keep:
                self._free.append(channel)
                self._turn.notify()
        if not keep:
            try:
                channel.close()
            finally:
                with self._turn:
                    self._all.discard(channel)
                    self._room += 1
                    self._turn.notify()

    def living(self) -> list[C]:
        """Every supervisor that runs now."""
        with self._turn:
            return list(self._all)

    def close(self) -> None:
        """Put all of them away. A program that still runs ends as a fault of the machinery."""
        with self._turn:
            if os.getpid() != self._pid:
                return
            self._closed = True
            channels, self._free = list(self._all), []
            self._all.clear()
            self._turn.notify_all()
        for channel in channels:
            with contextlib.suppress(Exception):
                channel.close()

    def _after_fork(self) -> None:
        if os.getpid() != self._pid:
            self._pid, self._free, self._all, self._room = os.getpid(), [], set(), self.size
