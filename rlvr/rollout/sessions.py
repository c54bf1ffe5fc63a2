"""The schedule of conversations with an environment that takes part in them: with sessions of its own, or with replies.

    WAITING  OPENING  (READY  SAMPLING  HEARING)*  ENDING  CLOSING  JUDGING  DONE

Each call of a session is a job with a deadline of its own. An environment without sessions of its own has no OPENING and no CLOSING.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from threading import Thread
from time import perf_counter
from typing import Any

from rlvr.contracts import Completion
from rlvr.contracts.sampler import Asked
from rlvr.mdp.judges import Job
from rlvr.mdp.sessions import Lease
from rlvr.rollout.draws import Draw
from rlvr.rollout.schedule import NO_ANSWER, Schedule, Terms
from rlvr.rollout.talk import Stage, Talk
from rlvr.rollout.timing import Timing

CLOSING_S = 10.0
"""How long all sessions together have to close when a rollout is over."""
OUTSIDE = (Stage.WAITING, Stage.DONE)
"""Stages in which a conversation holds neither a session nor evidence that waits for its verdict."""


class SessionSchedule(Schedule):
    """Opens, asks and closes sessions, and no more at a time than `open_sessions`.

    >>> for talk in SessionSchedule(rollout, draws, Timing()).run(Sampling()): ...           # doctest: +SKIP
    """

    def __init__(self, terms: Terms, draws: Sequence[Draw], timing: Timing) -> None:
        super().__init__(terms, draws, timing)
        self.worlds = terms.mdp.worlds
        self.waiting = deque(self.talks)
        self.closing = set[Future[Any]]()
        """Sessions that are closed although nothing waits for them, after an error."""
        self.gone = False
        """Whether the sampler has ended before its work."""

    def _admit(self) -> None:
        """Begin the next conversations: all of them, or as many as may have a session open."""
        while self.waiting and (not self.worlds or self._under_way < self.terms.open_sessions):
            self._next(self.waiting.popleft())
        if self.worlds:
            self.timing.open = max(self.timing.open, self._under_way)

    @property
    def _under_way(self) -> int:
        """How many conversations have a session, or evidence that waits for its verdict, counting sessions that are being closed."""
        self.closing = {job for job in self.closing if not job.done()}
        return len(self.talks) - sum(self.count[stage] for stage in OUTSIDE) + len(self.closing)

    def wave(self) -> Asked | None:
        """As in any schedule. A conversation that is about to end makes room for the next, which is waited for."""
        ending = self.waiting and any(self.count[stage] for stage in (Stage.ENDING, Stage.CLOSING, Stage.JUDGING))
        return self.take(0) if ending else super().wave()

    def take(self, room: int) -> Asked | None:
        """As in any schedule; the time of each turn begins."""
        asked, now = super().take(room), perf_counter()
        for number, _ in asked or ():
            self.talks[number].asked_at = now
        return asked

    def _given(self, number: int, completion: Completion) -> None:
        self._took(self.talks[number], completion.seconds or perf_counter() - self.talks[number].asked_at)
        super()._given(number, completion)

    def _arrived(self, talk: Talk, job: Job, ended: float) -> None:
        if talk.job is job:
            self._took(talk, ended - (job.since or ended))
        super()._arrived(talk, job, ended)

    def _took(self, talk: Talk, seconds: float) -> None:
        """Count what a turn or a reply took."""
        talk.seconds += seconds
        talk.state.late = self.terms.episode_s is not None and talk.seconds >= self.terms.episode_s

    def _next(self, talk: Talk) -> None:
        if talk.stage is Stage.OPENING and not talk.error:
            talk.ask()
        if talk.stage is Stage.HEARING and not talk.error:
            talk.go_on()
        over, stage = talk.state.end is not None, talk.stage
        if talk.error or stage in (Stage.JUDGING, Stage.CLOSING):
            super()._next(talk)
        elif not over and self.gone:
            self._give_up([talk], NO_ANSWER)
        elif stage is Stage.WAITING and self.worlds:
            self._work(talk, Stage.OPENING, talk.open)
        elif stage is Stage.SAMPLING and not over:
            self._work(talk, Stage.HEARING, talk.hear)
        elif over and stage is not Stage.ENDING:
            self._work(talk, Stage.ENDING, talk.collect)
        elif over and self.worlds:
            self._work(talk, Stage.CLOSING, talk.state.close)
        else:
            super()._next(talk)

    def _sampler_gone(self) -> None:
        self.gone = True
        super()._sampler_gone()

    def _look(self, *, wait: bool) -> list[Talk]:
        began = perf_counter()
        over = super()._look(wait=wait)
        if wait and self.asking:
            self.timing.idle += perf_counter() - began
        self._admit()
        return over

    def _late(self, talk: Talk) -> None:
        if talk.stage is Stage.CLOSING and talk.state.lease is not None:  # that leaves the verdict alone
            talk.give_up()
            talk.state.lease.note(f"the session was not closed within {self.terms.deadline_s:g} s")
            self._next(talk)
        else:
            super()._late(talk)

    def _done(self, talk: Talk) -> None:
        super()._done(talk)
        if talk.state.lease is not None:
            self._close_session(talk.state.lease)

    def _close_session(self, lease: Lease) -> None:
        """Close it in a thread; once the pool is closed, in a thread made for it, so that no session stays open."""
        if not lease.idle:
            lease.close()  # nothing to wait for: it is not open, or is closed by the thread that is in it
            return
        try:
            self.closing.add(self.terms.actors.submit(lease.close))
        except RuntimeError:
            closed: Future[None] = Future()

            def close() -> None:
                lease.close()
                closed.set_result(None)

            Thread(target=close, daemon=True).start()
            self.closing.add(closed)

    def close(self) -> None:
        """Give up every conversation that is not over, and wait a while for the sessions that are being closed."""
        super().close()
        wait(self.closing, CLOSING_S)
