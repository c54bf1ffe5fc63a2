"""Verdicts from other machines: what a judge host does, and how a collector asks for a verdict. Neither knows what carries it.

A verdict is a function of the task and of the transcript, so it is the same wherever it is given. Sessions stay with the collector: a judge
host gets the answer and the evidence that a session has left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
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
"""How often a verdict is asked for elsewhere after its judge host was lost."""
LOOK_S = 0.1
"""How often deadlines are checked."""
Ask = Callable[[Task, Transcript], Awaitable[Verdict]]
"""Asks one judge host for a verdict; raises `HostLost` if the host is gone."""


class HostLost(RlvrError):
    """A judge host is gone, or cannot be reached."""


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

    async def judge(self, task: Task, transcript: Transcript) -> Verdict:
        """The verdict. Its time begins with its thread; one that waits has its time from when another one last began or ended."""
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


class Desk:
    """Where a collector asks for verdicts: at the judge host that has the fewest of its questions.

    >>> desk = Desk(limit_s=300.0)
    >>> desk.name({})
    """

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: how long a verdict waits while there is no judge host."""
        self.limit_s, self.lost = limit_s, 0
        self._hosts, self._lock = dict[str, _Host](), Lock()
        self._salt = str(os.getpid())  # so that collectors do not all begin with the same host

    def name(self, hosts: Mapping[str, Ask]) -> None:
        """These judge hosts are there, and no others. From any thread."""
        with self._lock:
            gone = [host for name, host in self._hosts.items() if name not in hosts]
            self._hosts = {name: self._hosts.get(name) or _Host(name, ask) for name, ask in hosts.items()}
        for host in gone:
            self._leave(host)

    async def judge(self, task: Task, transcript: Transcript) -> Verdict:
        """The verdict of some host. One that is lost with its hosts too often is no score, and a fault of the infrastructure."""
        why = ""
        for _ in range(1 + AGAIN):
            host = await self._least()
            if host is None:
                return Verdict(None, f"there was no judge host for {self.limit_s:g} s", fault=Fault.INFRA)
            asked = asyncio.ensure_future(host.ask(task, transcript))
            host.waiting.add(asked)
            try:
                return _verdict(await asked)
            except HostLost as error:
                why = str(error)
                self._drop(host)
            except asyncio.CancelledError:
                if not host.gone:
                    raise
                why = "it gave no pulse"
            except Exception as error:
                return Verdict(None, f"judge host {host.name} raised {type(error).__name__}: {error}", fault=Fault.INFRA)
            finally:
                asked.cancel()
                host.waiting.discard(asked)
            self.lost += 1
        return Verdict(None, f"the verdict was lost with {1 + AGAIN} judge hosts; the last one: {why}", fault=Fault.INFRA)

    async def _least(self) -> _Host | None:
        """The host that has the least to do for this collector; None if there is none for too long."""
        until = monotonic() + self.limit_s
        while True:
            with self._lock:
                hosts = list(self._hosts.values())
            if hosts:
                return min(hosts, key=lambda host: (len(host.waiting), crc32((host.name + self._salt).encode())))
            if monotonic() > until:
                return None
            await asyncio.sleep(LOOK_S)

    def _drop(self, host: _Host) -> None:
        """Ask a host no more, until it is named again."""
        with self._lock:
            if self._hosts.get(host.name) is host:
                del self._hosts[host.name]

    def _leave(self, host: _Host) -> None:
        """Whoever waits for a host that is gone asks elsewhere."""
        host.gone = True
        for asked in list(host.waiting):
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
