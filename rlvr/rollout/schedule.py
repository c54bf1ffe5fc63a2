"""The scheduler of a rollout: the event loop that advances conversations and enforces timeouts.

The calling thread owns all conversations. It advances a conversation when the sampler, its session or its verification is done. Slow
work runs in other threads, with a timeout, so that the sampler never waits for it.

    WAITING  READY  SAMPLING  VERIFYING  DONE

This is the scheduler for environments that are not interactive; `session_scheduler` has the one for interactive ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Protocol
from weakref import ref

from rlvr.contracts import Completion, Feed, Sampler, Sampling
from rlvr.contracts.sampler import Asked
from rlvr.errors import SamplerError
from rlvr.mdp.judges import Job, Judges, late
from rlvr.mdp.rules import TokenMDP
from rlvr.rollout.draws import Draw
from rlvr.rollout.talk import Stage, Talk
from rlvr.rollout.timing import Timing
from rlvr.task import Fault, Verdict

LOOK_S = 0.05
"""The interval of timeout checks."""
NO_ANSWER = "the sampler gave no answer at all"
ASKING = (Stage.WAITING, Stage.OPENING, Stage.READY, Stage.SAMPLING, Stage.HEARING)
"""The phases in which a conversation may still have requests for the sampler."""


class Terms(Protocol):
    """The attributes of a rollout that its scheduler uses."""

    mdp: TokenMDP
    sampler: Sampler
    deadline_s: float
    episode_s: float | None
    overlong: str
    open_sessions: int
    lockstep: bool
    waits: bool
    judges: Judges
    actors: Judges


class Schedule(Feed):
    """Schedules the conversations of one rollout. It is also the request queue of the sampler."""

    def __init__(self, terms: Terms, draws: Sequence[Draw], timing: Timing) -> None:
        self.terms, self.timing = terms, timing
        self.talks = [Talk(number, draw, terms.mdp) for number, draw in enumerate(draws)]
        self.count = Counter({Stage.WAITING: len(self.talks)})
        self.ready, self.over = dict[int, Talk](), list[Talk]()
        """The conversations with a pending request, and the finished ones that are not yet returned."""
        self.events: SimpleQueue[tuple[Talk, Job, float]] = SimpleQueue()
        self.looked = perf_counter()
        """The time of the last timeout check."""

    # ---- for the sampler

    def take(self, room: int) -> Asked | None:
        """Return pending requests, oldest conversations first."""
        if not self.asking:
            return None
        taken = [self.ready.pop(number) for number in sorted(self.ready)[:room]]
        for talk in taken:
            self._move(talk, Stage.SAMPLING)
        return [(talk.number, talk.request()) for talk in taken]

    def wave(self) -> Asked | None:
        """Return all pending requests, once no conversation is being sampled or is waiting for its session."""
        under_way = any(self.count[stage] for stage in (Stage.OPENING, Stage.SAMPLING, Stage.HEARING))
        return self.take(0 if under_way else len(self.ready))

    @property
    def coming(self) -> int:
        """The number of conversations outside the sampler that may still send requests."""
        return self.asking - self.count[Stage.SAMPLING]

    @property
    def asking(self) -> int:
        """The number of conversations that may still send requests to the sampler."""
        return sum(self.count[stage] for stage in ASKING)

    # ---- the run

    def run(self, sampling: Sampling) -> Iterator[Talk]:
        """Run all conversations; yield each one when it is verified."""
        began, sampler = perf_counter(), self.terms.sampler
        served = Sampler.serve(sampler, self, sampling) if self.terms.lockstep else sampler.serve(self, sampling)
        self._admit()
        try:
            for given in served:
                if given is not None:
                    self._given(*given)
                yield from self._look(wait=given is None and not self.count[Stage.SAMPLING])
        finally:
            if isinstance(served, Generator):
                served.close()  # release its resources now, not at garbage collection
        sampled = perf_counter()
        if self.asking:
            self._sampler_gone()
        while self.over or self.count[Stage.DONE] < len(self.talks):
            yield from self._look(wait=not self.over)
        self.timing.sampling, self.timing.waiting = sampled - began, perf_counter() - sampled

    def close(self) -> None:
        """Cancel every unfinished conversation."""
        self.notify = None
        if self.count[Stage.DONE] < len(self.talks):
            self._give_up(self.talks, "the rollout was closed")

    def _give_up(self, talks: Sequence[Talk], reason: str) -> None:
        """Cancel unfinished conversations with an error."""
        for talk in talks:
            if talk.stage is not Stage.DONE:
                talk.error = talk.error or reason
                talk.give_up()
                self._done(talk)

    def _sampler_gone(self) -> None:
        """Fail the conversations whose completions the sampler never returned."""
        self.ready.clear()
        self._give_up([talk for talk in self.talks if talk.stage in (Stage.SAMPLING, Stage.READY)], NO_ANSWER)

    # ---- events of a conversation

    def _move(self, talk: Talk, stage: Stage) -> None:
        self.count[talk.stage] -= 1
        self.count[stage] += 1
        talk.stage = stage

    def _admit(self) -> None:
        """Start all conversations."""
        for talk in self.talks:
            self._next(talk)

    def _given(self, number: int, completion: Completion) -> None:
        """Handle a completion of the sampler."""
        talk = self.talks[number]
        if talk.stage is not Stage.SAMPLING:
            raise SamplerError(f"the sampler returned request {number}, which is not being sampled")
        talk.say(completion)
        self._next(talk)

    def _next(self, talk: Talk) -> None:
        """Move a conversation to its next phase."""
        if talk.error or talk.stage is Stage.JUDGING:
            self._done(talk)
        elif talk.state.end is None:
            self._move(talk, Stage.READY)
            self.ready[talk.number] = talk
        else:
            self._work(talk, Stage.JUDGING, talk.judge_waiting if self.terms.waits else partial(self.terms.mdp.judge, talk.state))

    def _work(self, talk: Talk, stage: Stage, work: Callable[[], Any]) -> None:
        """Submit slow work to a thread. The thread accesses only this conversation."""
        talk.pool = self.terms.judges if stage is Stage.JUDGING else self.terms.actors
        talk.submitted = perf_counter()
        self._move(talk, stage)
        talk.job = talk.pool.submit(work)
        talk.job.add_done_callback(partial(_report, ref(self), talk))

    def _arrived(self, talk: Talk, job: Job, ended: float) -> None:
        """Handle the end of a job."""
        if talk.job is not job:
            return  # the job was cancelled
        talk.job = None
        if job.cancelled() or job.exception() is not None:
            self._broken(talk, job)
        elif talk.stage is Stage.JUDGING:
            talk.verdict = job.result()
            self.timing.judged.append((job.since, ended))
        self._next(talk)

    def _broken(self, talk: Talk, job: Job) -> None:
        """Handle a job that raised, or was cancelled because the rollout was closed."""
        error = None if job.cancelled() else job.exception()
        if error is None:
            talk.error = talk.error or "the rollout was closed"
        elif talk.stage is Stage.JUDGING:
            talk.verdict = Verdict(None, f"verification raised {error!r}", fault=Fault.INFRA)
        else:
            talk.error = f"{talk.asked} raised {type(error).__name__}: {error}"

    def _done(self, talk: Talk) -> None:
        """Mark a conversation as done."""
        self._move(talk, Stage.DONE)
        self.over.append(talk)

    # ---- time

    def _look(self, *, wait: bool) -> list[Talk]:
        """Handle pending events, or wait for one; return the finished conversations."""
        with suppress(Empty):
            self._arrived(*self.events.get(wait, LOOK_S if wait else None))
            while True:
                self._arrived(*self.events.get_nowait())
        now = perf_counter()
        if now - self.looked >= min(LOOK_S, self.terms.deadline_s / 10):
            self.looked = now
            self._overdue(now)
        over, self.over = self.over, []
        return over

    def _overdue(self, now: float) -> None:
        """Handle timeouts. The timeout of a queued job restarts whenever its pool starts or ends a job."""
        busy = [(talk, talk.job) for talk in self.talks if talk.job is not None]
        for talk, job in sorted(busy, key=lambda pair: not pair[1].since):  # running jobs first: cancelling one frees a thread
            if now - (job.since or max(talk.pool.moved, talk.submitted)) > self.terms.deadline_s:
                self._late(talk)

    def _late(self, talk: Talk) -> None:
        """Handle a job that exceeded its timeout."""
        if talk.stage is Stage.JUDGING:
            talk.verdict = late(self.terms.deadline_s)
        else:
            talk.error = f"{talk.asked} gave nothing within {self.terms.deadline_s:g} s"
        talk.give_up()
        self._done(talk)


def _report(schedule: ref[Schedule], talk: Talk, job: Any) -> None:
    """Post the end of a job to the scheduler, if it still exists. Runs in the job's thread."""
    if (alive := schedule()) is not None:
        alive.events.put((talk, job, perf_counter()))
        if notify := alive.notify:
            notify()
