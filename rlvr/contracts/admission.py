"""Admission to scarce things: sandbox sessions, connections to an engine, places for open conversations.

The rule is: who waits holds nothing, and whoever holds a thing can always finish.

- What a conversation holds from one call to the next is granted before its first call, all of it at once, by `request_permit`. It
  returns a future and never blocks, so no thread waits that others need.
- What is held within one call only (a thread, a container for one program) may be waited for inside that call: its holder waits for
  nothing that is admitted, so it ends.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import ContextVar, Token
from itertools import count
from threading import Lock
from typing import Self
from weakref import WeakSet

from rlvr.errors import ConfigError, SandboxError

CURRENT_PERMIT: ContextVar[Permit | None] = ContextVar("CURRENT_PERMIT", default=None)
"""The permit of the running call; `CapacityLimiter.acquire` takes from it."""


class CapacityLimiter:
    """Limits how many units of a scarce thing are in use at once.

    >>> sessions = CapacityLimiter(2, "session")
    >>> first, second, third = (request_permit([sessions]) for _ in range(3))
    >>> third.done()
    False
    >>> first.result().release_untaken()
    >>> third.done()
    True
    """

    def __init__(self, capacity: int, name: str, *, timeout_s: float | None = None, hint: str = "") -> None:
        """Set the capacity.

        Args:
            capacity: how many units there are.
            name: what a unit is, for messages.
            timeout_s: how long to wait for a unit while none is granted or released; None: for ever.
            hint: what to do if all units stay in use.
        """
        self.capacity, self.name, self.timeout_s, self.hint = capacity, name, timeout_s, hint
        self.num_held = 0
        """The number of units in use, granted ones included."""
        self.last_change_at = time.perf_counter()
        """The time when a unit was last granted or released."""
        self._closed_reason = ""
        _admission.limiters.add(self)

    def acquire(self) -> None:
        """Take a unit of the running call's permit, or wait for one.

        The caller must `release` the unit.

        Raises:
            SandboxError: none became free within the timeout, or the limiter is closed.
        """
        permit = CURRENT_PERMIT.get()
        if permit is None or not permit.take_granted(self):
            wait_for_permit([self], first=True).take_granted(self)

    @property
    def is_full(self) -> bool:
        """Whether all units are in use."""
        return self.num_held >= self.capacity

    def release(self) -> None:
        """Return a unit, which may admit the next in the queue."""
        _admission.release([self])

    def close(self, reason: str) -> None:
        """Fail everybody who waits, now and later, with this reason."""
        self._closed_reason = reason
        _admission.fail_waiting(self)

    def describe_timeout(self) -> str:
        """Describe that no unit became free in time."""
        return f"no {self.name} became free within {self.timeout_s:.0f} s; all {self.capacity} are open" + (self.hint and f": {self.hint}")


class Permit:
    """The units that were granted together. Each is either taken, and released by its taker, or released with the permit.

    As a context manager it is the permit of the calls inside, and what they did not take is released at the end.
    """

    def __init__(self, limiters: Sequence[CapacityLimiter]) -> None:
        self._left: list[CapacityLimiter] | None = list(limiters)
        self._token: Token[Permit | None] | None = None

    def take_granted(self, limiter: CapacityLimiter) -> bool:
        """Take a unit of a limiter, if this permit still has one; the caller must release it.

        Raises:
            SandboxError: the permit was released, so the conversation is over and needs no unit any more.
        """
        with _admission.lock:
            if self._left is None:
                raise SandboxError(f"the conversation ended before it had its {limiter.name}")
            if limiter in self._left:
                self._left.remove(limiter)
                return True
        return False

    def release_untaken(self) -> None:
        """Release the units that nobody has taken. May be called repeatedly."""
        with _admission.lock:
            left, self._left = self._left or [], None
        _admission.release(left)

    def __enter__(self) -> Self:
        self._token = CURRENT_PERMIT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        CURRENT_PERMIT.reset(self._token)
        self.release_untaken()


def request_permit(limiters: Sequence[CapacityLimiter], *, first: bool = False) -> Future[Permit]:
    """Request a unit of each limiter, all at once; one that is listed twice gives two units. Never blocks.

    First come, first served among those whose units are all free. Cancel the future, or call `withdraw_request`, to give up.

    Args:
        limiters: what is needed together.
        first: go before all who are not first: for a caller that holds something others need, such as a thread.
    """
    return _admission.request(tuple(limiters), first)


def wait_for_permit(limiters: Sequence[CapacityLimiter], *, first: bool = False) -> Permit:
    """Wait in this thread for a permit; the arguments are those of `request_permit`.

    Raises:
        SandboxError: it was not granted within the shortest timeout of the limiters.
    """
    request = request_permit(limiters, first=first)
    try:
        return request.result(_find_timeout(limiters))
    except TimeoutError:
        if request.cancel():
            raise SandboxError(_describe_timeout(limiters)) from None
        return request.result()  # it was granted at the last moment


async def await_permit(limiters: Sequence[CapacityLimiter]) -> Permit:
    """Await a permit without blocking a thread; otherwise like `wait_for_permit`."""
    request = request_permit(limiters)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(request), _find_timeout(limiters))
    except TimeoutError:
        withdraw_request(request)
        raise SandboxError(_describe_timeout(limiters)) from None
    except asyncio.CancelledError:
        withdraw_request(request)
        raise


def _find_timeout(limiters: Sequence[CapacityLimiter]) -> float | None:
    return min((limiter.timeout_s for limiter in limiters if limiter.timeout_s is not None), default=None)


def _describe_timeout(limiters: Sequence[CapacityLimiter]) -> str:
    """Describe the timeout by a limiter that is at its capacity; another thread may have changed that meanwhile."""
    timed = [limiter for limiter in limiters if limiter.timeout_s is not None]
    return next((limiter for limiter in timed if limiter.is_full), timed[0]).describe_timeout()


def withdraw_request(request: Future[Permit]) -> None:
    """Give up a request: cancel it, or release what it was granted."""
    if not request.cancel() and request.exception() is None:
        request.result().release_untaken()


Waiter = tuple[int, Future[Permit]]


class _Admission:
    """All queues of a process, under one lock, so that several units are granted together or not at all."""

    def __init__(self) -> None:
        self.limiters = WeakSet[CapacityLimiter]()
        self.reset()

    def reset(self) -> None:
        """Forget all holders and waiters; also in a forked child, which has none of its parent's."""
        self.lock, self._numbers = Lock(), count()
        self._queues = dict[tuple[bool, tuple[CapacityLimiter, ...]], deque[Waiter]]()
        """The waiters by what they need; within a queue one is admitted only after those before it."""
        for limiter in self.limiters:
            limiter.num_held = 0

    def request(self, limiters: tuple[CapacityLimiter, ...], first: bool) -> Future[Permit]:
        for limiter, units in Counter(limiters).items():
            if units > limiter.capacity:
                raise ConfigError(f"{units} {limiter.name}s are needed at once, and there are {limiter.capacity}; {limiter.hint}")
        future = Future[Permit]()
        with self.lock:
            closed = next((limiter._closed_reason for limiter in limiters if limiter._closed_reason), "")
            if not closed:
                self._queues.setdefault((not first, limiters), deque()).append((next(self._numbers), future))
        if closed:
            future.set_exception(SandboxError(closed))
        else:
            self.grant()
        return future

    def release(self, limiters: Sequence[CapacityLimiter]) -> None:
        with self.lock:
            for limiter in limiters:
                limiter.num_held -= 1
                limiter.last_change_at = time.perf_counter()
        if limiters:
            self.grant()

    def grant(self) -> None:
        """Admit all who can be admitted. Their callbacks run in this thread, without the lock."""
        granted: list[tuple[Future[Permit], Permit]] = []
        with self.lock:
            while (key := self._find_next_queue()) is not None:
                _, future = self._queues[key].popleft()
                if future.set_running_or_notify_cancel():
                    for limiter in key[1]:
                        limiter.num_held += 1
                        limiter.last_change_at = time.perf_counter()
                    granted.append((future, Permit(key[1])))
        for future, permit in granted:
            future.set_result(permit)

    def _find_next_queue(self) -> tuple[bool, tuple[CapacityLimiter, ...]] | None:
        """Return the key of the queue whose first waiter is next, or None if nobody can be admitted."""
        for key in [key for key, queue in self._queues.items() if not queue]:
            del self._queues[key]
        ready = [
            (key[0], queue[0][0], key)
            for key, queue in self._queues.items()
            if all(limiter.num_held + units <= limiter.capacity for limiter, units in Counter(key[1]).items())
        ]
        return min(ready, key=lambda row: row[:2])[2] if ready else None

    def fail_waiting(self, limiter: CapacityLimiter) -> None:
        with self.lock:
            keys = [key for key in self._queues if limiter in key[1]]
            failed = [future for key in keys for _, future in self._queues.pop(key) if future.set_running_or_notify_cancel()]
        for future in failed:
            future.set_exception(SandboxError(limiter._closed_reason))


_admission = _Admission()
os.register_at_fork(after_in_child=_admission.reset)
