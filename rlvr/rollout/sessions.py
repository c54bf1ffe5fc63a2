"""The scheduler for interactive environments, with stateful sessions or stateless replies.

    WAITING  OPENING  (READY  SAMPLING  STEPPING_SESSION)*  COLLECTING  CLOSING  VERIFYING  DONE

Each session call is a job with its own timeout. A stateless environment has no OPENING and no CLOSING.
"""

from __future__ import annotations

from collections import defaultdict, deque
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
"""The timeout for all sessions together to close at the end of a rollout."""
OUTSIDE = (Stage.WAITING, Stage.DONE)
"""The phases in which a conversation holds neither a session nor artifacts."""


class SessionSchedule(Schedule):
    """Schedules conversations with sessions; at most `max_open_sessions` are open at a time."""

    def __init__(self, terms: Terms, draws: Sequence[Draw], timing: Timing) -> None:
        super().__init__(terms, draws, timing)
        self.worlds = terms.mdp.worlds
        self.waiting = deque(self.talks)
        self.groups = defaultdict[str, list[Talk]](list)
        for talk in self.talks:
            self.groups[talk.draw.group].append(talk)
        self.closing = set[Future[Any]]()
        """The running close jobs of failed conversations."""
        self.gone = False
        """True if the sampler ended before all conversations were done."""

    def _admit(self) -> None:
        """Start the next conversations: all, or as many as may have an open session."""
        while self.waiting and (not self.worlds or self._under_way < self.terms.open_sessions):
            self._next(self.waiting.popleft())
        if self.worlds:
            self.timing.open = max(self.timing.open, self._under_way)

    @property
    def _under_way(self) -> int:
        """The number of conversations with a session or with artifacts, including sessions that are being closed."""
        self.closing = {job for job in self.closing if not job.done()}
        return len(self.talks) - sum(self.count[stage] for stage in OUTSIDE) + len(self.closing)

    def wave(self) -> Asked | None:
        """Return all pending requests. Waits for ending conversations if they make room for new ones."""
        ending = self.waiting and any(self.count[stage] for stage in (Stage.ENDING, Stage.CLOSING, Stage.JUDGING))
        return self.take(0) if ending else super().wave()

    def take(self, room: int) -> Asked | None:
        """Return pending requests, oldest first, and start the timer of each turn."""
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
        """Add the duration of a turn or a reply to a conversation."""
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
        if talk.stage is Stage.CLOSING and talk.state.lease is not None:  # a close timeout does not affect the verdict
            talk.give_up()
            talk.state.lease.note(f"the session was not closed within {self.terms.deadline_s:g} s")
            self._next(talk)
        else:
            super()._late(talk)

    def _done(self, talk: Talk) -> None:
        super()._done(talk)
        if self.terms.overlong == "cut":
            self._last_one(talk)
        if talk.state.lease is not None:
            self._close_session(talk.state.lease)

    def _last_one(self, talk: Talk) -> None:
        """Limit the last conversation of a group to the number of turns of the longest of the others."""
        group = self.groups[talk.draw.group]
        left = [other for other in group if other.stage is not Stage.DONE]
        if len(left) == 1:
            left[0].state.enough_turns = max(
                (len(other.state.turns) for other in group if other.stage is Stage.DONE and not other.error), default=0
            )

    def _close_session(self, lease: Lease) -> None:
        """Close a session in the pool, or in a new thread if the pool is closed, so that no session stays open."""
        if not lease.idle:
            lease.close()  # not open, or closed later by the thread that uses it
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
        """Cancel every unfinished conversation, and wait briefly for closing sessions."""
        super().close()
        wait(self.closing, CLOSING_S)
