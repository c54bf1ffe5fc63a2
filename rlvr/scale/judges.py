"""Verification on other machines: the verifier worker, and the client of rollout workers. Both are independent of the transport.

A verdict depends only on task and transcript, so it is the same on every machine. Sessions stay with the rollout worker: a verifier worker
gets the answer and the evidence of the session.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from threading import Lock
from time import monotonic, perf_counter
from typing import Any
from zlib import crc32

from rlvr.config.config import RunConfig
from rlvr.contracts import Begun, Environment, Transcript, Verifier
from rlvr.errors import RlvrError
from rlvr.mdp.judges import Judges, late
from rlvr.mdp.sessions import begun
from rlvr.plugins.registry import from_config
from rlvr.task import Fault, Task, Verdict

AGAIN = 2
"""Retries of a verification whose worker was lost; during the last retry its worker verifies nothing else."""
REST_S = 15.0
"""How long an unreachable worker is not asked. If it is lost, the driver removes it from the list by then."""
LOOK_S = 0.1
"""Interval at which timeouts are checked, and at which a busy worker is asked again."""
WANTED_S, RESERVED_S = 1.0, 10.0
"""How long a worker starts nothing else before an exclusive verification: after a refused and after a granted reservation."""
Ask = Callable[[Task, Transcript, bool], Awaitable[Verdict]]
"""Asks one verifier worker for a verdict, exclusively or not; raises `VerifierLost` or `VerifierBusy`."""


class HostLost(RlvrError):
    """A verifier worker is lost or cannot be reached."""


class NeverBegun(HostLost):
    """A verifier worker was lost before an exclusive verification started, so that verification is not the cause."""


class Busy(RlvrError):
    """A verifier worker was asked for an exclusive verification while others run."""


class JudgeHost:
    """Verify completions with the verifier of a run's environment."""

    def __init__(self, config: RunConfig) -> None:
        asked = config.rollout
        self.environment: Environment = from_config("env", config.env)
        self.environment.ready()
        self.deadline_s, self.judges = asked.verify_deadline_s, Judges(asked.verify_workers)
        self._inside, self._alone = 0, False
        """Number of running verifications, and whether the one that runs is exclusive."""
        self._spent, self._since, self._asked = 0.0, perf_counter(), perf_counter()
        """Busy seconds, weighted by the share of busy threads; until when they are counted, and since when."""
        self._reserved, self._kept = False, 0.0
        """Whether an exclusive verification holds the reservation, and until when nothing else may start."""

    async def judge(self, task: Task, transcript: Transcript, alone: bool = False) -> Verdict:
        """Return the verdict. The timeout starts with the thread; for a waiting verification, when another one last started or ended.

        `alone`: nothing else is verified meanwhile, since this completion may have killed other workers; `reserve` must be called first.
        """
        while not alone and (self._alone or monotonic() < self._kept):
            await asyncio.sleep(LOOK_S)
        if alone and self._inside:
            raise Busy("the reservation has expired and other verifications run here; ask again")
        self._count(1)
        self._alone = alone
        if alone:
            self._reserved, self._kept = False, 0.0
        try:
            return await self._judged(task, transcript)
        finally:
            self._count(-1)
            self._alone = False

    def busy(self) -> float:
        """Return the share of its threads that were busy since the last call, and reset it."""
        self._count(0)
        spent, passed = self._spent, max(self._since - self._asked, 1e-9)
        self._spent, self._asked = 0.0, self._since
        return spent / passed

    def _count(self, more: int) -> None:
        now = perf_counter()
        self._spent += min(1.0, self._inside / self.judges.workers) * (now - self._since)
        self._since, self._inside = now, self._inside + more

    def reserve(self) -> None:
        """Reserve the worker for an exclusive verification; Busy if others run here, so that the caller must ask again.

        The caller does not wait here, where another exclusive verification could kill it.
        """
        now = monotonic()
        if self._inside:
            self._reserved, self._kept = False, now + WANTED_S
            raise Busy("other verifications run here; ask again")
        if self._reserved and now < self._kept:
            raise Busy("another exclusive verification is reserved here; ask again")
        self._reserved, self._kept = True, now + RESERVED_S

    async def _judged(self, task: Task, transcript: Transcript) -> Verdict:
        submitted, job = perf_counter(), self.judges.submit(self._begun, task, transcript)
        ended = asyncio.wrap_future(job)
        while not ended.done():
            await asyncio.wait([ended], timeout=LOOK_S)
            if not ended.done() and perf_counter() - (job.since or max(self.judges.moved, submitted)) > self.deadline_s:
                self.judges.give_up(job)
                return late(self.deadline_s)
        try:
            verdict: Verdict = ended.result()
        except BaseException as error:
            return Verdict(None, f"the verifier raised {error!r}", fault=Fault.INFRA)
        return verdict

    def _begun(self, task: Task, transcript: Transcript) -> Verdict | Coroutine[Any, Any, Verdict]:
        found = begun(self.environment.verifier, task, transcript)
        return found if isinstance(found, Verdict) else found()

    def close(self) -> None:
        """Stop the threads and close the environment."""
        self.judges.close()
        self.environment.close()


@dataclass(eq=False, slots=True)
class _Host:
    """A verifier worker as the client sees it."""

    name: str
    ask: Ask
    waiting: set[asyncio.Future[Verdict]] = field(default_factory=set)
    gone: bool = False
    rests: float = -inf
    """The worker is not asked before this time."""


class Desk:
    """Client of a rollout worker: asks the verifier worker that has the fewest of its requests.

    >>> desk = Desk(limit_s=300.0)
    >>> desk.name({})
    """

    def __init__(self, limit_s: float, *, beat_s: float = inf, beat: Callable[[], None] = lambda: None) -> None:
        """Set the limits.

        Args:
            limit_s: timeout while there is no verifier worker.
            beat_s: interval at which `beat` is called while a verdict is pending; the workers have the timeouts, not the client.
            beat: called to extend the timeouts of the rollout.
        """
        self.limit_s, self.lost, self.beat_s, self.beat = limit_s, 0, beat_s, beat
        self._hosts, self._named, self._lock = dict[str, _Host](), -1, Lock()
        self._salt = str(os.getpid())  # so that not all rollout workers begin with the same verifier worker

    def name(self, hosts: Mapping[str, Ask], number: int = 0) -> None:
        """Set the list of verifier workers, from any thread. A list with a smaller number than the last one is ignored."""
        with self._lock:
            if number < self._named:
                return
            self._named = number
            gone = [host for name, host in self._hosts.items() if name not in hosts]
            self._hosts = {name: self._hosts.get(name) or _Host(name, ask) for name, ask in hosts.items()}
        for host in gone:
            self._leave(host)

    async def judge(self, task: Task, transcript: Transcript) -> Verdict:
        """Return the verdict of some worker. If too many workers are lost meanwhile, it has no score and an infrastructure fault."""
        times, why, until = 0, "", inf
        while times <= AGAIN:
            host = await self._least()
            if host is None:
                return Verdict(None, f"there was no verifier worker for {self.limit_s:g} s", fault=Fault.INFRA)
            asked = asyncio.ensure_future(host.ask(task, transcript, times == AGAIN))
            host.waiting.add(asked)
            if host.gone:  # since it was chosen above
                asked.cancel()
            try:
                while not (await asyncio.wait([asked], timeout=self.beat_s if self.beat_s < inf else None))[0]:
                    self.beat()
                return _verdict(asked.result())
            except Busy:
                self.beat()
                await asyncio.sleep(LOOK_S)
                continue
            except HostLost as error:
                why, host.rests = str(error), monotonic() + REST_S
                if isinstance(error, NeverBegun):
                    until = min(until, monotonic() + self.limit_s)
                    times -= monotonic() < until
            except asyncio.CancelledError:
                if not host.gone:
                    raise
                why = "it gave no heartbeat"
            except Exception as error:
                return Verdict(None, f"verifier worker {host.name} raised {type(error).__name__}: {error}", fault=Fault.INFRA)
            finally:
                asked.cancel()
                host.waiting.discard(asked)
            times, self.lost = times + 1, self.lost + 1
        return Verdict(None, f"the verification was lost with {1 + AGAIN} verifier workers; the last one: {why}", fault=Fault.INFRA)

    async def _least(self) -> _Host | None:
        """Return the worker with the fewest pending requests of this client; None if there is no worker until the timeout."""
        until = monotonic() + self.limit_s
        while True:
            with self._lock:
                hosts = [host for host in self._hosts.values() if host.rests < monotonic()]
            if hosts:
                return min(hosts, key=lambda host: (len(host.waiting), crc32((host.name + self._salt).encode())))
            if monotonic() > until:
                return None
            self.beat()
            await asyncio.sleep(LOOK_S)

    def _leave(self, host: _Host) -> None:
        """Cancel the pending requests to a lost worker, so that they are sent to another one."""
        host.gone = True
        for asked in list(host.waiting):
            with suppress(RuntimeError):  # the event loop of the request has ended
                asked.get_loop().call_soon_threadsafe(asked.cancel)


def _verdict(given: object) -> Verdict:
    if not isinstance(given, Verdict):
        raise TypeError(f"it returned {given!r:.80}, not a verdict")
    return given


class JudgedElsewhere(Verifier):
    """Replaces the verifier of an environment: verifier workers give the verdicts on completions."""

    def __init__(self, inner: Verifier, desk: Desk) -> None:
        self.inner, self.desk = inner, desk
        self.instruction, self.needs_reference = inner.instruction, inner.needs_reference

    def ready(self) -> None:
        """Check nothing: only the verifier workers need what the verifier needs."""

    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify in this process, for environments that call the verifier during a conversation."""
        return self.inner.verify(task, answer)

    def begin(self, task: Task, transcript: Transcript) -> Begun:
        """Ask a verifier worker. No thread waits for the verdict."""
        return partial(self.desk.judge, task, transcript)

    def close(self) -> None:
        """Close the replaced verifier."""
        self.inner.close()
