"""Verification on other machines: the verifier worker, and the client of rollout workers. Both are independent of the transport.

A verdict depends only on task and transcript, so it is the same on every machine. Sessions stay with the rollout worker: a verifier worker
gets the answer and the evidence of the session.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from threading import Lock
from time import monotonic, perf_counter
from typing import Any
from zlib import crc32

from rlvr.cluster.event_log import describe_raised
from rlvr.config.config import RunConfig
from rlvr.contracts import Environment, Transcript, Verifier, VerifierTraits
from rlvr.errors import RlvrError, require_text_answers
from rlvr.mdp.sessions import averify_transcript_safely, verify_transcript_safely
from rlvr.mdp.verifier_executor import DaemonThreadExecutor, build_timeout_verdict
from rlvr.registry.plugins import build_from_config
from rlvr.task import Fault, Task, Verdict

MAX_RETRIES = 2
"""Retries of a verification whose worker was lost; during the last retry its worker verifies nothing else."""
UNREACHABLE_PAUSE_S = 15.0
"""How long an unreachable worker is not asked. If it is lost, the driver removes it from the list by then."""
POLL_INTERVAL_S = 0.1
"""Interval at which timeouts are checked, and at which a busy worker is asked again."""
REQUEST_HOLD_S, RESERVATION_TIMEOUT_S = 1.0, 10.0
"""How long a worker starts nothing else before an exclusive verification: after a refused and after a granted reservation."""
AskVerdict = Callable[[Task, Transcript, bool], Awaitable[Verdict]]
"""Asks one verifier worker for a verdict, exclusively or not; raises `VerifierLost` or `VerifierBusy`."""


class VerifierLost(RlvrError):
    """A verifier worker is lost or cannot be reached."""


class VerifierLostBeforeVerification(VerifierLost):
    """A verifier worker was lost before an exclusive verification began on it, so that verification is not the cause."""


class VerifierBusy(RlvrError):
    """A verifier worker was asked for an exclusive verification while others run."""


class VerifierWorker:
    """Verify completions with the verifier of a run's environment."""

    def __init__(self, config: RunConfig) -> None:
        asked = config.rollout
        self.environment: Environment = build_from_config("env", config.env)
        self.environment.prepare()
        self.call_timeout_s, self.executor = asked.call_timeout_s, DaemonThreadExecutor(asked.max_concurrent_calls)
        self._num_running, self._is_exclusive = 0, False
        """Number of running verifications, and whether the one that runs is exclusive."""
        self._busy_s, self._counted_until, self._counting_since = 0.0, perf_counter(), perf_counter()
        """Busy seconds, weighted by the share of busy threads; until when they are counted, and since when."""
        self._is_reserved, self._reserved_until = False, 0.0
        """Whether an exclusive verification holds the reservation, and until when nothing else may start."""

    async def verify(self, task: Task, transcript: Transcript, exclusive: bool = False) -> Verdict:
        """Verify a transcript within the timeout; `exclusive`: while this worker verifies nothing else.

        The timeout starts with the thread; for a waiting verification, when another one last started or ended. An exclusive verification is
        for a completion that may have killed other workers; call `reserve_exclusively` first.
        """
        while not exclusive and (self._is_exclusive or monotonic() < self._reserved_until):
            await asyncio.sleep(POLL_INTERVAL_S)
        if exclusive and self._num_running:
            raise VerifierBusy("the reservation has expired and other verifications run here; ask again")
        self._update_count(1)
        self._is_exclusive = exclusive
        if exclusive:
            self._is_reserved, self._reserved_until = False, 0.0
        try:
            return await self._verify_with_timeout(task, transcript)
        finally:
            self._update_count(-1)
            self._is_exclusive = False

    def take_busy_fraction(self) -> float:
        """Return the share of its threads that were busy since the last call, and reset it."""
        self._update_count(0)
        spent, passed = self._busy_s, max(self._counted_until - self._counting_since, 1e-9)
        self._busy_s, self._counting_since = 0.0, self._counted_until
        return spent / passed

    def _update_count(self, more: int) -> None:
        now = perf_counter()
        self._busy_s += min(1.0, self._num_running / self.executor.max_workers) * (now - self._counted_until)
        self._counted_until, self._num_running = now, self._num_running + more

    def reserve_exclusively(self) -> None:
        """Reserve the worker for an exclusive verification; VerifierBusy if others run here, so that the caller must ask again.

        The caller does not wait here, where another exclusive verification could kill it.
        """
        now = monotonic()
        if self._num_running:
            self._is_reserved, self._reserved_until = False, now + REQUEST_HOLD_S
            raise VerifierBusy("other verifications run here; ask again")
        if self._is_reserved and now < self._reserved_until:
            raise VerifierBusy("another exclusive verification is reserved here; ask again")
        self._is_reserved, self._reserved_until = True, now + RESERVATION_TIMEOUT_S

    async def _verify_with_timeout(self, task: Task, transcript: Transcript) -> Verdict:
        submitted, job = perf_counter(), self.executor.submit(self._start_verification, task, transcript)
        ended = asyncio.wrap_future(job)
        while not ended.done():
            await asyncio.wait([ended], timeout=POLL_INTERVAL_S)
            if (
                not ended.done()
                and perf_counter() - (job.started_at or max(self.executor.last_progress_at, submitted)) > self.call_timeout_s
            ):
                self.executor.abandon(job)
                return build_timeout_verdict(self.call_timeout_s)
        try:
            verdict: Verdict = ended.result()
        except BaseException as error:
            return Verdict(None, f"the verifier raised {error!r}", fault=Fault.INFRA)
        return verdict

    def _start_verification(self, task: Task, transcript: Transcript) -> Verdict | Coroutine[Any, Any, Verdict]:
        verifier = self.environment.verifier
        return (averify_transcript_safely if verifier.traits.is_async else verify_transcript_safely)(verifier, task, transcript)

    def close(self) -> None:
        """Stop the threads and close the environment."""
        self.executor.close()
        self.environment.close()


@dataclass(eq=False, slots=True)
class _WorkerHandle:
    """A verifier worker as its client knows it: how to ask it, its pending requests, whether it is gone."""

    name: str
    ask: AskVerdict
    pending: set[asyncio.Future[Verdict]] = field(default_factory=set)
    is_gone: bool = False
    paused_until: float = -inf
    """The worker is not asked before this time."""


class VerifierClient:
    """Sends the verifications of one rollout worker to verifier workers: each to the one with the fewest pending requests of this client.

    >>> client = VerifierClient(no_worker_timeout_s=300.0)
    >>> client.set_workers({})
    """

    def __init__(
        self, no_worker_timeout_s: float, *, heartbeat_interval_s: float = inf, heartbeat: Callable[[], None] = lambda: None
    ) -> None:
        """Set the limits.

        Args:
            no_worker_timeout_s: timeout while there is no verifier worker.
            heartbeat_interval_s: interval at which `heartbeat` is called while a verdict is pending; the workers have the timeouts, not the
                client.
            heartbeat: called to extend the timeouts of the rollout.
        """
        self.no_worker_timeout_s, self.num_lost, self.heartbeat_interval_s, self.heartbeat = (
            no_worker_timeout_s,
            0,
            heartbeat_interval_s,
            heartbeat,
        )
        self._workers, self._last_number, self._lock = dict[str, _WorkerHandle](), -1, Lock()
        self._salt = str(os.getpid())  # so that not all rollout workers begin with the same verifier worker

    def set_workers(self, workers: Mapping[str, AskVerdict], list_number: int = 0) -> None:
        """Set the list of verifier workers, from any thread. A list with a smaller number than the last one is ignored."""
        with self._lock:
            if list_number < self._last_number:
                return
            self._last_number = list_number
            gone = [host for name, host in self._workers.items() if name not in workers]
            self._workers = {name: self._workers.get(name) or _WorkerHandle(name, ask) for name, ask in workers.items()}
        for host in gone:
            self._cancel_requests(host)

    async def verify(self, task: Task, transcript: Transcript) -> Verdict:
        """Return the verdict of one of the verifier workers; if that worker is lost, another one is asked.

        If too many workers are lost, the verdict has no score and an infrastructure fault.
        """
        times, why, until = 0, "", inf
        while times <= MAX_RETRIES:
            host = await self._choose_worker()
            if host is None:
                return Verdict(None, f"there was no verifier worker for {self.no_worker_timeout_s:g} s", fault=Fault.INFRA)
            asked = asyncio.ensure_future(host.ask(task, transcript, times == MAX_RETRIES))
            host.pending.add(asked)
            if host.is_gone:  # since it was chosen above
                asked.cancel()
            try:
                while not (await asyncio.wait([asked], timeout=self.heartbeat_interval_s if self.heartbeat_interval_s < inf else None))[0]:
                    self.heartbeat()
                return _check_verdict(asked.result())
            except VerifierBusy:
                if times < MAX_RETRIES:
                    return Verdict(None, f"verifier worker {host.name} was asked for no exclusive verification", fault=Fault.INFRA)
                self.heartbeat()
                await asyncio.sleep(POLL_INTERVAL_S)
                continue
            except VerifierLost as error:
                why, host.paused_until = str(error), monotonic() + UNREACHABLE_PAUSE_S
                if isinstance(error, VerifierLostBeforeVerification):
                    until = min(until, monotonic() + self.no_worker_timeout_s)
                    times -= monotonic() < until
            except asyncio.CancelledError:
                if not host.is_gone:
                    raise
                why = "it gave no heartbeat"
            except Exception as error:
                return Verdict(None, f"verifier worker {host.name} raised {describe_raised(error)}", fault=Fault.INFRA)
            finally:
                asked.cancel()
                host.pending.discard(asked)
            times, self.num_lost = times + 1, self.num_lost + 1
        return Verdict(None, f"the verification was lost with {1 + MAX_RETRIES} verifier workers; the last one: {why}", fault=Fault.INFRA)

    async def _choose_worker(self) -> _WorkerHandle | None:
        """Return the worker with the fewest pending requests of this client; None if there is no worker until the timeout."""
        until = monotonic() + self.no_worker_timeout_s
        while True:
            with self._lock:
                hosts = [host for host in self._workers.values() if host.paused_until < monotonic()]
            if hosts:
                return min(hosts, key=lambda host: (len(host.pending), crc32((host.name + self._salt).encode())))
            if monotonic() > until:
                return None
            self.heartbeat()
            await asyncio.sleep(POLL_INTERVAL_S)

    def _cancel_requests(self, worker: _WorkerHandle) -> None:
        """Cancel the pending requests to a lost worker, so that they are sent to another one."""
        worker.is_gone = True
        for asked in list(worker.pending):
            with suppress(RuntimeError):  # the event loop of the request has ended
                asked.get_loop().call_soon_threadsafe(asked.cancel)


def _check_verdict(given: object) -> Verdict:
    """Return the verdict that a verifier worker gives, with its fields checked again; raise TypeError or ValueError if it is none."""
    if not isinstance(given, Verdict):
        raise TypeError(f"it returned {given!r:.80}, not a verdict")
    return replace(given)


class RemoteVerifier(Verifier):
    """Replaces the verifier of an environment: verifier workers give the verdicts on completions."""

    def __init__(self, inner: Verifier, client: VerifierClient) -> None:
        self.inner, self.client = inner, client
        self.instruction, self.needs_reference, self.columns = inner.instruction, inner.needs_reference, inner.columns
        self.has_bounded_score = inner.has_bounded_score
        self.traits = VerifierTraits(is_async=True, takes_transcript=True)

    def prepare(self) -> None:
        """Check nothing: only the verifier workers need what the verifier needs."""

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify in this process, not on a verifier worker: for environments that call the verifier during a conversation."""
        return self.inner.verify(task, answer)

    async def averify(self, task: Task, answer: str) -> Verdict:
        """Ask a verifier worker about an answer."""
        return await self.client.verify(task, Transcript(answer))

    async def averify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify a transcript on a verifier worker. No thread waits for the verdict."""
        return await self.client.verify(task, transcript)

    def close(self) -> None:
        """Close the replaced verifier."""
        self.inner.close()
