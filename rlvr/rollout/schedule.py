"""The schedule of a rollout: which conversation does what next, and what is given up.

One thread owns all conversations: the one that collects episodes. It advances a conversation when the sampler, its session or its
verification is done. Everything that may take long runs in other threads, with a deadline, so the sampler does not wait for it.

    WAITING  READY  SAMPLING  JUDGING  DONE

This is the schedule of an environment that takes no part in the conversation; `sessions` has the one for those that do.
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
from rlvr.mdp.sessions import waits
from rlvr.rollout.draws import Draw
from rlvr.rollout.talk import Stage, Talk
from rlvr.rollout.timing import Timing
from rlvr.task import Fault, Verdict

LOOK_S = 0.05
"""How often deadlines are checked, in seconds."""
NO_ANSWER = "the sampler gave no answer at all"
ASKING = (Stage.WAITING, Stage.OPENING, Stage.READY, Stage.SAMPLING, Stage.HEARING)
"""Stages after which the sampler may get another request."""


class Terms(Protocol):
    """What a rollout gives to its schedule."""

    mdp: TokenMDP
    sampler: Sampler
    deadline_s: float
    episode_s: float | None
    open_sessions: int
    lockstep: bool
    judges: Judges
    actors: Judges


class Schedule(Feed):
    """The conversations of one collection, and what each waits for. It is the feed that the sampler takes its requests from.

    >>> for talk in Schedule(rollout, draws, Timing()).run(Sampling()): ...                  # doctest: +SKIP
    """

    def __init__(self, terms: Terms, draws: Sequence[Draw], timing: Timing) -> None:
        self.terms, self.timing = terms, timing
        self.talks = [Talk(number, draw, terms.mdp) for number, draw in enumerate(draws)]
        self.count = Counter({Stage.WAITING: len(self.talks)})
        self.ready, self.over = dict[int, Talk](), list[Talk]()
        """What the sampler may take, and what is done and not handed on yet."""
        self.events: SimpleQueue[tuple[Talk, Job, float]] = SimpleQueue()
        self.waits = waits(terms.mdp.environment.verifier)
        self.looked = perf_counter()
        """When deadlines were last checked."""

    # ---- for the sampler

    def take(self, room: int) -> Asked | None:
        """The oldest conversations first, so that what was begun is finished."""
        if not self.asking:
            return None
        taken = [self.ready.pop(number) for number in sorted(self.ready)[:room]]
        for talk in taken:
            self._move(talk, Stage.SAMPLING)
        return [(talk.number, talk.request()) for talk in taken]

    def wave(self) -> Asked | None:
        """All of them, once nothing else is under way."""
        under_way = any(self.count[stage] for stage in (Stage.OPENING, Stage.SAMPLING, Stage.HEARING))
        return self.take(0 if under_way else len(self.ready))

    @property
    def coming(self) -> int:
        """How many conversations are not at the sampler and may return to it."""
        return self.asking - self.count[Stage.SAMPLING]

    @property
    def asking(self) -> int:
        """How many conversations may still have a request for the sampler."""
        return sum(self.count[stage] for stage in ASKING)

    # ---- the run

    def run(self, sampling: Sampling) -> Iterator[Talk]:
        """Every conversation, as soon as it is over and judged."""
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
                served.close()  # releases what it holds now, not when it is garbage collected
        sampled = perf_counter()
        if self.asking:
            self._sampler_gone()
        while self.over or self.count[Stage.DONE] < len(self.talks):
            yield from self._look(wait=not self.over)
        self.timing.sampling, self.timing.waiting = sampled - began, perf_counter() - sampled

    def close(self) -> None:
        """Give up every conversation that is not over."""
        self.notify = None
        if self.count[Stage.DONE] < len(self.talks):
            self._give_up(self.talks, "the rollout was closed")

    def _give_up(self, talks: Sequence[Talk], reason: str) -> None:
        for talk in talks:
            if talk.stage is not Stage.DONE:
                talk.error = talk.error or reason
                talk.give_up()
                self._done(talk)

    def _sampler_gone(self) -> None:
        """The sampler has ended before its work."""
        self.ready.clear()
        self._give_up([talk for talk in self.talks if talk.stage in (Stage.SAMPLING, Stage.READY)], NO_ANSWER)

    # ---- what happens to a conversation

    def _move(self, talk: Talk, stage: Stage) -> None:
        self.count[talk.stage] -= 1
        self.count[stage] += 1
        talk.stage = stage

    def _admit(self) -> None:
        """Begin all conversations."""
        for talk in self.talks:
            self._next(talk)

    def _given(self, number: int, completion: Completion) -> None:
        """The sampler has answered."""
        talk = self.talks[number]
        if talk.stage is not Stage.SAMPLING:
            raise SamplerError(f"the sampler answered request {number}, which is not under way")
        talk.say(completion)
        self._next(talk)

    def _next(self, talk: Talk) -> None:
        """What it was doing is done: begin what comes next."""
        if talk.error or talk.stage is Stage.JUDGING:
            self._done(talk)
        elif talk.state.end is None:
            self._move(talk, Stage.READY)
            self.ready[talk.number] = talk
        else:
            self._work(talk, Stage.JUDGING, talk.judge_waiting if self.waits else partial(self.terms.mdp.judge, talk.state))

    def _work(self, talk: Talk, stage: Stage, work: Callable[[], Any]) -> None:
        """Something that may take long, in a thread. The thread holds this conversation, and none of the others."""
        talk.pool = self.terms.judges if stage is Stage.JUDGING else self.terms.actors
        talk.submitted = perf_counter()
        self._move(talk, stage)
        talk.job = talk.pool.submit(work)
        talk.job.add_done_callback(partial(_report, ref(self), talk))

    def _arrived(self, talk: Talk, job: Job, ended: float) -> None:
        """A job is done."""
        if talk.job is not job:
            return  # it was given up
        talk.job = None
        if job.cancelled() or job.exception() is not None:
            self._broken(talk, job)
        elif talk.stage is Stage.JUDGING:
            talk.verdict = job.result()
            self.timing.judged.append((job.since, ended))
        self._next(talk)

    def _broken(self, talk: Talk, job: Job) -> None:
        """A job raised, or was dropped because another thread has closed the rollout."""
        error = None if job.cancelled() else job.exception()
        if error is None:
            talk.error = talk.error or "the rollout was closed"
        elif talk.stage is Stage.JUDGING:
            talk.verdict = Verdict(None, f"judging raised {error!r}", fault=Fault.INFRA)
        else:
            talk.error = f"{talk.asked} raised {type(error).__name__}: {error}"

    def _done(self, talk: Talk) -> None:
        """The conversation is over, one way or the other."""
        self._move(talk, Stage.DONE)
        self.over.append(talk)

    # ---- time

    def _look(self, *, wait: bool) -> list[Talk]:
        """Handle what happened since, or wait for something to happen; return the conversations that are over."""
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
        """Give up what has had its time. What waits for a thread has its time from when a thread of its pool last began or ended work."""
        busy = [(talk, talk.job) for talk in self.talks if talk.job is not None]
        for talk, job in sorted(busy, key=lambda pair: not pair[1].since):  # when what runs is given up, another thread runs what waits
            if now - (job.since or max(talk.pool.moved, talk.submitted)) > self.terms.deadline_s:
                self._late(talk)

    def _late(self, talk: Talk) -> None:
        """The deadline has passed."""
        if talk.stage is Stage.JUDGING:
            talk.verdict = late(self.terms.deadline_s)
        else:
            talk.error = f"{talk.asked} gave nothing within {self.terms.deadline_s:g} s"
        talk.give_up()
        self._done(talk)


def _report(schedule: ref[Schedule], talk: Talk, job: Any) -> None:
    """Called in the thread of a `Job` when it is done; the schedule may be gone by then."""
    if (alive := schedule()) is not None:
        alive.events.put((talk, job, perf_counter()))
        if notify := alive.notify:
            notify()
