"""The scheduler for interactive environments, with stateful sessions or stateless replies.

    WAITING  OPENING  (READY  SAMPLING  STEPPING_SESSION)*  COLLECTING  CLOSING  VERIFYING  DONE
    A limit on all tokens that cuts a turn ends the conversation without its STEPPING_SESSION; `max_turn_tokens` does not.

Each session call is a job with its own timeout. A stateless environment has no OPENING and no CLOSING.

A conversation that waits holds nothing: before OPENING it is granted, all at once, a place among the open sessions and whatever its
session holds for the whole conversation, such as a sandbox session (`rlvr.contracts.admission`). So no job waits for another conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from threading import Thread
from time import perf_counter
from typing import Any
from weakref import ref

from rlvr.contracts import CapacityLimiter, Completion
from rlvr.contracts.admission import Permit, request_permit, withdraw_request
from rlvr.contracts.sampler import NumberedRequests
from rlvr.mdp.sessions import LazySession
from rlvr.mdp.verifier_executor import TimedFuture
from rlvr.rollout.conversation import Conversation, Phase
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.rollout.scheduler import NO_COMPLETION_ERROR, RolloutScheduler, RolloutSettings, post_job_event
from rlvr.rollout.timing import RolloutTiming

CLOSE_TIMEOUT_S = 10.0
"""The timeout for all sessions together to close at the end of a rollout."""


class SessionRolloutScheduler(RolloutScheduler):
    """Schedules conversations with sessions; at most `max_open_sessions` are open at a time."""

    def __init__(self, settings: RolloutSettings, requests: Sequence[RolloutRequest], timing: RolloutTiming) -> None:
        super().__init__(settings, requests, timing)
        self.has_sessions = settings.mdp.has_sessions
        self.open_limiter = CapacityLimiter(settings.max_open_sessions, "place for an open session")
        """The places of conversations with a session or with artifacts, including sessions that are being closed."""
        self.limiters = set[CapacityLimiter]()
        """All limiters that admit sessions of this rollout."""
        self.last_active_at = perf_counter()
        """The time when a conversation of this rollout last held something."""
        self.pending_closes = set[Future[Any]]()
        """The running close jobs of failed conversations."""
        self.has_sampler_ended = False
        """True if the sampler ended before all conversations were done."""

    def _start_conversations(self) -> None:
        """Start all conversations without a session; request the admission of the others, oldest first."""
        for conversation in self.conversations:
            handle = conversation.state.session_handle
            if not self.has_sessions or handle is None:
                self._advance(conversation)
                continue
            try:
                limiters = handle.get_limiters()
            except Exception as error:
                self._cancel_conversations([conversation], f"get_session_limiters raised {type(error).__name__}: {error}")
                continue
            self.limiters.update(limiters)
            conversation.admission = request_permit([self.open_limiter, *limiters])
            conversation.admission.add_done_callback(partial(post_job_event, ref(self), conversation))

    def _on_admission(self, conversation: Conversation, admission: Future[Permit]) -> None:
        """Open the session of a conversation that was admitted; the permit keeps the rest for `open`."""
        if conversation.phase is not Phase.WAITING:
            return  # it was cancelled, and has withdrawn its request
        if (error := admission.exception()) is not None:
            self._cancel_conversations([conversation], str(error))
            return
        conversation.permit = admission.result()
        conversation.permit.take_granted(self.open_limiter)
        self.timing.max_open_sessions = max(self.timing.max_open_sessions, self.open_limiter.num_held)
        self._advance(conversation)

    def pop_all_if_idle(self) -> NumberedRequests | None:
        """Return all pending requests once nothing is running; before that an empty list, and None once no more can come."""
        ending = self.phase_counts[Phase.WAITING] and any(
            self.phase_counts[phase] for phase in (Phase.COLLECTING, Phase.CLOSING, Phase.VERIFYING)
        )
        return self.pop(0) if ending else super().pop_all_if_idle()

    def pop(self, max_requests: int) -> NumberedRequests | None:
        """Return pending requests, oldest first, and start the timer of each turn."""
        asked, now = super().pop(max_requests), perf_counter()
        for number, _ in asked or ():
            self.conversations[number].requested_at = now
        return asked

    def _on_completion(self, number: int, completion: Completion) -> None:
        seconds = completion.duration_s if isinstance(completion, Completion) else 0.0  # else it is refused below
        self._add_elapsed(self.conversations[number], seconds or perf_counter() - self.conversations[number].requested_at)
        super()._on_completion(number, completion)

    def _on_job_done(self, conversation: Conversation, job: Future[Any], end_time: float) -> None:
        if conversation.admission is job:
            self._on_admission(conversation, job)
            return
        if conversation.future is job and isinstance(job, TimedFuture):
            self._add_elapsed(conversation, end_time - (job.started_at or end_time))
        super()._on_job_done(conversation, job, end_time)

    def _add_elapsed(self, conversation: Conversation, seconds: float) -> None:
        """Add the duration of a turn or a reply to a conversation."""
        conversation.elapsed_s += seconds
        conversation.state.is_timed_out = (
            self.settings.episode_timeout_s is not None and conversation.elapsed_s >= self.settings.episode_timeout_s
        )

    def _advance(self, conversation: Conversation) -> None:
        if conversation.phase is Phase.OPENING and not conversation.error:
            conversation.render_prompt()
        if conversation.phase is Phase.STEPPING_SESSION and not conversation.error:
            conversation.append_reply()
        over, phase = conversation.state.stop_reason is not None, conversation.phase
        if conversation.error or phase in (Phase.VERIFYING, Phase.CLOSING):
            super()._advance(conversation)
        elif not over and self.has_sampler_ended:
            self._cancel_conversations([conversation], NO_COMPLETION_ERROR)
        elif phase is Phase.WAITING and self.has_sessions:
            self._submit_job(conversation, Phase.OPENING, conversation.open_session)
        elif phase is Phase.SAMPLING and not over:
            self._submit_job(conversation, Phase.STEPPING_SESSION, conversation.step_session)
        elif over and phase is not Phase.COLLECTING:
            self._submit_job(conversation, Phase.COLLECTING, conversation.collect_transcript)
        elif over and self.has_sessions:
            self._submit_job(conversation, Phase.CLOSING, conversation.state.close)
        else:
            super()._advance(conversation)

    def _on_sampler_end(self) -> None:
        self.has_sampler_ended = True
        super()._on_sampler_end()

    def _poll(self, *, wait: bool) -> list[Conversation]:
        began = perf_counter()
        over = super()._poll(wait=wait)
        if wait and self.num_requesting_conversations:
            self.timing.sampler_idle_s += perf_counter() - began
        return over

    def _cancel_overdue_jobs(self, now: float) -> None:
        super()._cancel_overdue_jobs(now)
        waiting = self.phase_counts[Phase.WAITING]
        if not waiting or waiting + self.phase_counts[Phase.DONE] < len(self.conversations):
            self.last_active_at = now
        elif any(self._is_stuck(limiter, now) for limiter in self.limiters):
            self._cancel_stuck_conversations(now)

    def _is_stuck(self, limiter: CapacityLimiter, now: float) -> bool:
        """Whether others have held all units for longer than the timeout, while this rollout holds nothing."""
        since = max(limiter.last_change_at, self.last_active_at)
        return limiter.timeout_s is not None and limiter.is_full and now - since > limiter.timeout_s

    def _cancel_stuck_conversations(self, now: float) -> None:
        for conversation in self.conversations:
            if conversation.phase is Phase.WAITING and conversation.state.session_handle is not None:
                stuck = [limiter for limiter in conversation.state.session_handle.get_limiters() if self._is_stuck(limiter, now)]
                if stuck:
                    self._cancel_conversations([conversation], stuck[0].describe_timeout())

    def _on_timeout(self, conversation: Conversation) -> None:
        if (
            conversation.phase is Phase.CLOSING and conversation.state.session_handle is not None
        ):  # a close timeout does not affect the verdict
            conversation.cancel_job()
            conversation.state.session_handle.add_warning(f"the session was not closed within {self.settings.call_timeout_s:g} s")
            self._advance(conversation)
        else:
            super()._on_timeout(conversation)

    def _finish(self, conversation: Conversation) -> None:
        was_admitted = conversation.phase is not Phase.WAITING
        super()._finish(conversation)
        closing = self._close_session(conversation.state.session_handle) if conversation.state.session_handle else None
        if conversation.admission is not None:
            withdraw_request(conversation.admission)
            if was_admitted and closing is None:
                self.open_limiter.release()
            elif was_admitted and closing is not None:
                limiter = self.open_limiter  # a hanging close must not keep this scheduler alive
                closing.add_done_callback(lambda _: limiter.release())

    def _close_session(self, session_handle: LazySession) -> Future[Any] | None:
        """Close a session in the pool, or in a new thread if the pool is closed, so that no session stays open."""
        if not session_handle.is_open_and_idle:
            session_handle.close()  # not open, or closed later by the thread that uses it
            return None
        try:
            closed: Future[Any] = self.settings.session_executor.submit(session_handle.close)
        except RuntimeError:
            closed = Future()

            def close() -> None:
                session_handle.close()
                closed.set_result(None)

            Thread(target=close, daemon=True).start()
        self.pending_closes = {job for job in self.pending_closes if not job.done()} | {closed}
        return closed

    def close(self) -> None:
        """Cancel every unfinished conversation, and wait briefly for closing sessions."""
        super().close()
        wait(self.pending_closes, CLOSE_TIMEOUT_S)
