"""Verdicts from other machines: what a judge host does, and how a collector asks for a verdict. Neither knows what carries it.

A verdict is a function of the task and of the transcript, so it is the same wherever it is given. Sessions stay with the collector: a judge
host gets the answer and the evidence that a session has left.
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
"""How often a verdict is asked for elsewhere after its judge host was lost; the last time its host judges nothing else meanwhile."""
REST_S = 15.0
"""How long a host that could not be reached is not asked. One that is gone is not named any more by then."""
LOOK_S = 0.1
"""How often deadlines are checked, and how often a host is asked whether it is free."""
WANTED_S, RESERVED_S = 1.0, 10.0
"""How long a host begins nothing else for an answer that is to be judged alone: while it has to come again, and once it may come."""
Ask = Callable[[Task, Transcript, bool], Awaitable[Verdict]]
"""Asks one judge host for a verdict, alone or beside others; raises `HostLost` if the host is gone, `Busy` if it judges others."""


class HostLost(RlvrError):
    """A judge host is gone, or cannot be reached."""


class NeverBegun(HostLost):
    """A judge host was lost before it began with an answer that was to be judged alone, so that answer did not end it."""


class Busy(RlvrError):
    """A judge host judges something else, and was asked to judge an answer alone."""


class JudgeHost:
    """Judges what it is given, with the verifier of a run's environment.

    >>> host = JudgeHost(config)                                                            # doctest: +SKIP
    >>> asyncio.run(host.judge(task, Transcript("4"))).score                                # doctest: +SKIP
    1.0
    """

    def __init__(self, config: RunConfig) -> None:
        asked = config.rollout
        self.environment: Environment = from_config("env", config.env)
        self.environment.ready()
        self.deadline_s, self.judges = asked.verify_deadline_s, Judges(asked.verify_workers)
        self._inside, self._alone = 0, False
        """How many are being judged, and whether it is one that must be alone."""
        self._spent, self._since, self._asked = 0.0, perf_counter(), perf_counter()
        """The seconds for which all its threads were busy, until when they are counted, and since when."""
        self._reserved, self._kept = False, 0.0
        """Whether the next such one is known, and until when the host is kept free for it."""

    async def judge(self, task: Task, transcript: Transcript, alone: bool = False) -> Verdict:
        """The verdict. Its time begins with its thread; one that waits has its time from when another one last began or ended.

        `alone`: nothing else is judged meanwhile, since this answer may be what ended other hosts; `reserve` comes first.
        """
        while not alone and (self._alone or monotonic() < self._kept):
            await asyncio.sleep(LOOK_S)
        if alone and self._inside:
            raise Busy("it came so late that others are judged here; come again")
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
        """The share of its threads that had a verdict to give, since this was asked last."""
        self._count(0)
        spent, passed = self._spent, max(self._since - self._asked, 1e-9)
        self._spent, self._asked = 0.0, self._since
        return spent / passed

    def _count(self, more: int) -> None:
        now = perf_counter()
        self._spent += min(1.0, self._inside / self.judges.workers) * (now - self._since)
        self._since, self._inside = now, self._inside + more

    def reserve(self) -> None:
        """Keep the host free for an answer that must be judged alone; Busy if others are judged here, and it has to come again.

        It does not wait here, where another such answer could end it too.
        """
        now = monotonic()
        if self._inside:
            self._reserved, self._kept = False, now + WANTED_S
            raise Busy("others are judged here; come again")
        if self._reserved and now < self._kept:
            raise Busy("another answer is about to be judged alone here; come again")
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
            return Verdict(None, f"judging raised {error!r}", fault=Fault.INFRA)
        return verdict

    def _begun(self, task: Task, transcript: Transcript) -> Verdict | Coroutine[Any, Any, Verdict]:
        found = begun(self.environment.verifier, task, transcript)
        return found if isinstance(found, Verdict) else found()

    def close(self) -> None:
        """Stop the threads, and what the environment has opened."""
        self.judges.close()
        self.environment.close()


@dataclass(eq=False, slots=True)
class _Host:
    """A judge host as a collector sees it."""

    name: str
    ask: Ask
    waiting: set[asyncio.Future[Verdict]] = field(default_factory=set)
    gone: bool = False
    rests: float = -inf
    """Until when it is not asked."""


class Desk:
    """Where a collector asks for verdicts: at the judge host that has the fewest of its questions.

    >>> desk = Desk(limit_s=300.0)
    >>> desk.name({})
    """

    def __init__(self, limit_s: float, *, beat_s: float = inf, beat: Callable[[], None] = lambda: None) -> None:
        """Set the limits.

        Args:
            limit_s: how long a verdict waits while there is no judge host.
            beat_s: how often `beat` is called while a verdict is waited for: hosts have the deadlines, not who waits for them.
            beat: says that there is somebody to wait for.
        """
        self.limit_s, self.lost, self.beat_s, self.beat = limit_s, 0, beat_s, beat
        self._hosts, self._named, self._lock = dict[str, _Host](), -1, Lock()
        self._salt = str(os.getpid())  # so that collectors do not all begin with the same host

    def name(self, hosts: Mapping[str, Ask], number: int = 0) -> None:
        """These judge hosts are there, and no others. From any thread; of two namings, the one with the larger number counts."""
        with self._lock:
            if number < self._named:
                return
            self._named = number
            gone = [host for name, host in self._hosts.items() if name not in hosts]
            self._hosts = {name: self._hosts.get(name) or _Host(name, ask) for name, ask in hosts.items()}
        for host in gone:
            self._leave(host)

    async def judge(self, task: Task, transcript: Transcript) -> Verdict:
        """The verdict of some host. One that is lost with its hosts too often is no score, and a fault of the infrastructure."""
        times, why, until = 0, "", inf
        while times <= AGAIN:
            host = await self._least()
            if host is None:
                return Verdict(None, f"there was no judge host for {self.limit_s:g} s", fault=Fault.INFRA)
            asked = asyncio.ensure_future(host.ask(task, transcript, times == AGAIN))
            host.waiting.add(asked)
            if host.gone:  # since it was chosen
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
                why = "it gave no pulse"
            except Exception as error:
                return Verdict(None, f"judge host {host.name} raised {type(error).__name__}: {error}", fault=Fault.INFRA)
            finally:
                asked.cancel()
                host.waiting.discard(asked)
            times, self.lost = times + 1, self.lost + 1
        return Verdict(None, f"the verdict was lost with {1 + AGAIN} judge hosts; the last one: {why}", fault=Fault.INFRA)

    async def _least(self) -> _Host | None:
        """The host that has the least to do for this collector; None if there is none for too long."""
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
        """Whoever waits for a host that is gone asks elsewhere."""
        host.gone = True
        for asked in list(host.waiting):
            with suppress(RuntimeError):  # whoever waited has ended
                asked.get_loop().call_soon_threadsafe(asked.cancel)


def _verdict(given: object) -> Verdict:
    if not isinstance(given, Verdict):
        raise TypeError(f"it gave {given!r:.80}, not a verdict")
    return given


class JudgedElsewhere(Verifier):
    """In the place of an environment's verifier: verdicts on answers come from judge hosts.

    >>> environment.verifier = JudgedElsewhere(environment.verifier, desk)                  # doctest: +SKIP
    """

    def __init__(self, inner: Verifier, desk: Desk) -> None:
        self.inner, self.desk = inner, desk
        self.instruction, self.needs_reference = inner.instruction, inner.needs_reference

    def ready(self) -> None:
        """What the verifier needs, judge hosts need."""

    def verify(self, task: Task, answer: str) -> Verdict:
        """What the environment itself asks during a conversation is answered here."""
        return self.inner.verify(task, answer)

    def begin(self, task: Task, transcript: Transcript) -> Begun:
        """Ask a judge host; it is waited for without a thread."""
        return partial(self.desk.judge, task, transcript)

    def close(self) -> None:
        """Close the verifier that it replaces."""
        self.inner.close()
