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
from rlvr.contracts.sampler import NumberedRequests
from rlvr.mdp.sessions import SessionHandle
from rlvr.mdp.verifier_executor import TimedFuture
from rlvr.rollout.conversation import Conversation, Phase
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.rollout.scheduler import NO_COMPLETION_ERROR, RolloutScheduler, RolloutSettings
from rlvr.rollout.timing import RolloutTiming

CLOSE_TIMEOUT_S = 10.0
"""The timeout for all sessions together to close at the end of a rollout."""
INACTIVE_PHASES = (Phase.WAITING, Phase.DONE)
"""The phases in which a conversation holds neither a session nor artifacts."""


class SessionRolloutScheduler(RolloutScheduler):
    """Schedules conversations with sessions; at most `max_open_sessions` are open at a time."""

    def __init__(self, terms: RolloutSettings, draws: Sequence[RolloutRequest], timing: RolloutTiming) -> None:
        super().__init__(terms, draws, timing)
        self.has_sessions = terms.mdp.has_sessions
        self.not_started = deque(self.conversations)
        self.conversations_by_group = defaultdict[str, list[Conversation]](list)
        for talk in self.conversations:
            self.conversations_by_group[talk.rollout_request.group].append(talk)
        self.pending_closes = set[Future[Any]]()
        """The running close jobs of failed conversations."""
        self.has_sampler_ended = False
        """True if the sampler ended before all conversations were done."""

    def _start_conversations(self) -> None:
        """Start the next conversations: all, or as many as may have an open session."""
        while self.not_started and (not self.has_sessions or self._num_open_sessions < self.settings.max_open_sessions):
            self._advance(self.not_started.popleft())
        if self.has_sessions:
            self.timing.max_open_sessions = max(self.timing.max_open_sessions, self._num_open_sessions)

    @property
    def _num_open_sessions(self) -> int:
        """The number of conversations with a session or with artifacts, including sessions that are being closed."""
        self.pending_closes = {job for job in self.pending_closes if not job.done()}
        return len(self.conversations) - sum(self.phase_counts[stage] for stage in INACTIVE_PHASES) + len(self.pending_closes)

    def pop_all_when_idle(self) -> NumberedRequests | None:
        """Return all pending requests. Waits for ending conversations if they make room for new ones."""
        ending = self.not_started and any(self.phase_counts[stage] for stage in (Phase.COLLECTING, Phase.CLOSING, Phase.VERIFYING))
        return self.pop(0) if ending else super().pop_all_when_idle()

    def pop(self, max_requests: int) -> NumberedRequests | None:
        """Return pending requests, oldest first, and start the timer of each turn."""
        asked, now = super().pop(max_requests), perf_counter()
        for number, _ in asked or ():
            self.conversations[number].requested_at = now
        return asked

    def _on_completion(self, number: int, completion: Completion) -> None:
        self._add_elapsed(self.conversations[number], completion.seconds or perf_counter() - self.conversations[number].requested_at)
        super()._on_completion(number, completion)

    def _on_job_done(self, conversation: Conversation, job: TimedFuture, end_time: float) -> None:
        if conversation.future is job:
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
        over, stage = conversation.state.stop_reason is not None, conversation.phase
        if conversation.error or stage in (Phase.VERIFYING, Phase.CLOSING):
            super()._advance(conversation)
        elif not over and self.has_sampler_ended:
            self._cancel_conversations([conversation], NO_COMPLETION_ERROR)
        elif stage is Phase.WAITING and self.has_sessions:
            self._submit_job(conversation, Phase.OPENING, conversation.open_session)
        elif stage is Phase.SAMPLING and not over:
            self._submit_job(conversation, Phase.STEPPING_SESSION, conversation.step_session)
        elif over and stage is not Phase.COLLECTING:
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
        self._start_conversations()
        return over

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
        super()._finish(conversation)
        if self.settings.straggler_policy == "truncate":
            self._limit_straggler(conversation)
        if conversation.state.session_handle is not None:
            self._close_session(conversation.state.session_handle)

    def _limit_straggler(self, conversation: Conversation) -> None:
        """If only one conversation of this one's group is left, limit it to the number of turns of the longest of the others."""
        group = self.conversations_by_group[conversation.rollout_request.group]
        left = [other for other in group if other.phase is not Phase.DONE]
        if len(left) == 1:
            left[0].state.straggler_max_turns = max(
                (len(other.state.turns) for other in group if other.phase is Phase.DONE and not other.error), default=0
            )

    def _close_session(self, session_handle: SessionHandle) -> None:
        """Close a session in the pool, or in a new thread if the pool is closed, so that no session stays open."""
        if not session_handle.is_idle:
            session_handle.close()  # not open, or closed later by the thread that uses it
            return
        try:
            self.pending_closes.add(self.settings.session_executor.submit(session_handle.close))
        except RuntimeError:
            closed: Future[None] = Future()

            def close() -> None:
                session_handle.close()
                closed.set_result(None)

            Thread(target=close, daemon=True).start()
            self.pending_closes.add(closed)

    def close(self) -> None:
        """Cancel every unfinished conversation, and wait briefly for closing sessions."""
        super().close()
        wait(self.pending_closes, CLOSE_TIMEOUT_S)
