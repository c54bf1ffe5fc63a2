"""The scheduler of a rollout: the event loop that advances conversations and enforces timeouts.

The calling thread owns all conversations. It advances a conversation when the sampler, its session or its verification is done. Slow
work runs in other threads, with a timeout, so that the sampler never waits for it.

    WAITING  READY  SAMPLING  VERIFYING  DONE

This is the scheduler for environments that are not interactive; `session_scheduler` has the one for interactive ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Protocol
from weakref import ref

from rlvr.contracts import Completion, RequestQueue, Sampler, SamplingParams
from rlvr.contracts.sampler import NumberedRequests
from rlvr.errors import SamplerError, SandboxOutage, TooManyHungCalls, describe_exception
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.verifier_executor import DaemonThreadExecutor, TimedFuture, build_timeout_verdict
from rlvr.rollout.conversation import Conversation, Phase
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.rollout.timing import RolloutTiming
from rlvr.task import Fault, Verdict

POLL_INTERVAL_S = 0.05
"""The interval of timeout checks."""
NO_COMPLETION_ERROR = "the sampler gave no answer at all"
SAMPLER_PHASES = (Phase.WAITING, Phase.OPENING, Phase.READY, Phase.SAMPLING, Phase.STEPPING_SESSION)
"""The phases in which a conversation may still have requests for the sampler."""


class RolloutSettings(Protocol):
    """The attributes of a rollout that its scheduler uses."""

    mdp: TokenMDP
    sampler: Sampler
    call_timeout_s: float
    episode_timeout_s: float | None
    max_open_sessions: int
    sync_turns: bool
    has_async_verifier: bool
    verifier_executor: DaemonThreadExecutor
    session_executor: DaemonThreadExecutor


class RolloutScheduler(RequestQueue):
    """Schedules the conversations of one rollout. It is also the request queue of the sampler."""

    def __init__(self, settings: RolloutSettings, requests: Sequence[RolloutRequest], timing: RolloutTiming) -> None:
        self.settings, self.timing = settings, timing
        self.conversations = [Conversation.begin(number, request, settings.mdp) for number, request in enumerate(requests)]
        self.phase_counts = Counter({Phase.WAITING: len(self.conversations)})
        self.ready_by_number, self.finished = dict[int, Conversation](), list[Conversation]()
        """The conversations with a pending request, and the finished ones that are not yet returned."""
        self.events: SimpleQueue[tuple[Conversation, Future[Any], float]] = SimpleQueue()
        self.last_poll_at = perf_counter()
        """The time of the last timeout check."""

    # ---- for the sampler

    def pop(self, max_requests: int) -> NumberedRequests | None:
        """Return pending requests, oldest conversations first."""
        if not self.num_requesting_conversations:
            return None
        taken = [self.ready_by_number.pop(number) for number in sorted(self.ready_by_number)[:max_requests]]
        for conversation in taken:
            self._set_phase(conversation, Phase.SAMPLING)
        return [(conversation.number, conversation.build_request()) for conversation in taken]

    def pop_all_if_idle(self) -> NumberedRequests | None:
        """Return all pending requests, once no conversation is being sampled or is waiting for its session."""
        under_way = any(self.phase_counts[phase] for phase in (Phase.OPENING, Phase.SAMPLING, Phase.STEPPING_SESSION))
        return self.pop(0 if under_way else len(self.ready_by_number))

    @property
    def max_future_requests(self) -> int:
        """The number of conversations outside the sampler that may still send requests."""
        return self.num_requesting_conversations - self.phase_counts[Phase.SAMPLING]

    @property
    def num_requesting_conversations(self) -> int:
        """The number of conversations that may still send requests to the sampler."""
        return sum(self.phase_counts[phase] for phase in SAMPLER_PHASES)

    # ---- the run

    def run(self, sampling: SamplingParams) -> Iterator[Conversation]:
        """Run all conversations; yield each one when it is verified."""
        began, sampler = perf_counter(), self.settings.sampler
        served = (
            Sampler.stream_from_queue(sampler, self, sampling) if self.settings.sync_turns else sampler.stream_from_queue(self, sampling)
        )
        self._start_conversations()
        try:
            for given in served:
                if given is not None:
                    self._on_completion(*given)
                yield from self._poll(wait=given is None and not self.phase_counts[Phase.SAMPLING])
        finally:
            if isinstance(served, Generator):
                served.close()  # release its resources now, not at garbage collection
        sampled = perf_counter()
        if self.num_requesting_conversations:
            self._on_sampler_end()
        while self.finished or self.phase_counts[Phase.DONE] < len(self.conversations):
            yield from self._poll(wait=not self.finished)
        self.timing.sampling_s, self.timing.verify_tail_s = sampled - began, perf_counter() - sampled

    def close(self) -> None:
        """Cancel every unfinished conversation."""
        self.on_requests_ready = None
        if self.phase_counts[Phase.DONE] < len(self.conversations):
            self._cancel_conversations(self.conversations, "the rollout was closed")

    def _cancel_conversations(self, conversations: Sequence[Conversation], reason: str) -> None:
        """Cancel unfinished conversations with an error."""
        for conversation in conversations:
            if conversation.phase is not Phase.DONE:
                conversation.error = conversation.error or reason
                conversation.cancel_job()
                self._finish(conversation)

    def _on_sampler_end(self) -> None:
        """Fail the conversations whose completions the sampler never returned."""
        self.ready_by_number.clear()
        self._cancel_conversations(
            [conversation for conversation in self.conversations if conversation.phase in (Phase.SAMPLING, Phase.READY)],
            NO_COMPLETION_ERROR,
        )

    # ---- events of a conversation

    def _set_phase(self, conversation: Conversation, phase: Phase) -> None:
        self.phase_counts[conversation.phase] -= 1
        self.phase_counts[phase] += 1
        conversation.phase = phase

    def _start_conversations(self) -> None:
        """Start all conversations."""
        for conversation in self.conversations:
            self._advance(conversation)

    def _on_completion(self, number: int, completion: Completion) -> None:
        """Handle a completion of the sampler."""
        conversation = self.conversations[number]
        if conversation.phase is not Phase.SAMPLING:
            raise SamplerError(f"the sampler returned request {number}, which is not being sampled")
        if not isinstance(completion, Completion):
            raise SamplerError(f"the sampler answered a request with {completion!r:.80}; it must be an rlvr.contracts.Completion")
        conversation.append_completion(completion)
        self._advance(conversation)

    def _advance(self, conversation: Conversation) -> None:
        """Move a conversation to its next phase."""
        if conversation.error or conversation.phase is Phase.VERIFYING:
            self._finish(conversation)
        elif conversation.state.stop_reason is None:
            self._set_phase(conversation, Phase.READY)
            self.ready_by_number[conversation.number] = conversation
        else:
            self._submit_job(
                conversation,
                Phase.VERIFYING,
                conversation.verify_async if self.settings.has_async_verifier else partial(self.settings.mdp.verify, conversation.state),
            )

    def _submit_job(self, conversation: Conversation, phase: Phase, work: Callable[[], Any]) -> None:
        """Submit slow work to a thread. The thread accesses only this conversation."""
        executor = conversation.executor = self.settings.verifier_executor if phase is Phase.VERIFYING else self.settings.session_executor
        conversation.submitted_at = perf_counter()
        self._set_phase(conversation, phase)
        conversation.future = executor.submit(work)
        conversation.future.add_done_callback(partial(post_job_event, ref(self), conversation))

    def _on_job_done(self, conversation: Conversation, job: Future[Any], end_time: float) -> None:
        """Handle the end of a job."""
        if conversation.future is not job or not isinstance(job, TimedFuture):
            return  # the job was cancelled
        conversation.future = None
        if job.cancelled() or job.exception() is not None:
            self._on_job_failed(conversation, job)
        elif conversation.phase is Phase.VERIFYING:
            conversation.verdict = job.result()
            self.timing.verification_spans.append((job.started_at, end_time))
        self._advance(conversation)

    def _on_job_failed(self, conversation: Conversation, job: TimedFuture) -> None:
        """Handle a job that raised, or was cancelled because the rollout was closed."""
        error = None if job.cancelled() else job.exception()
        if isinstance(error, SandboxOutage):
            raise error  # so that the run stops: all that follow would have no score either
        if error is None:
            conversation.error = conversation.error or "the rollout was closed"
        elif conversation.phase is Phase.VERIFYING:
            conversation.verdict = Verdict(None, f"verification raised {describe_exception(error)}", fault=Fault.INFRA)
        else:
            conversation.error = f"{conversation.current_method} raised {describe_exception(error)}"

    def _finish(self, conversation: Conversation) -> None:
        """Mark a conversation as done."""
        self._set_phase(conversation, Phase.DONE)
        self.finished.append(conversation)

    # ---- time

    def _poll(self, *, wait: bool) -> list[Conversation]:
        """Handle pending events, or wait for one; return the finished conversations."""
        with suppress(Empty):
            self._on_job_done(*self.events.get(wait, POLL_INTERVAL_S if wait else None))
            while True:
                self._on_job_done(*self.events.get_nowait())
        now = perf_counter()
        if now - self.last_poll_at >= min(POLL_INTERVAL_S, self.settings.call_timeout_s / 10):
            self.last_poll_at = now
            self._cancel_overdue_jobs(now)
        over, self.finished = self.finished, []
        return over

    def _cancel_overdue_jobs(self, now: float) -> None:
        """Handle timeouts. The timeout of a queued job restarts whenever its pool starts or ends a job."""
        busy = [
            (conversation, conversation.future, conversation.executor)
            for conversation in self.conversations
            if conversation.future is not None and conversation.executor is not None
        ]
        busy.sort(key=lambda row: not row[1].started_at)  # running jobs first: cancelling one frees a thread
        for conversation, job, executor in busy:
            if now - (job.started_at or max(executor.last_progress_at, conversation.submitted_at)) > self.settings.call_timeout_s:
                self._on_timeout(conversation)

    def _on_timeout(self, conversation: Conversation) -> None:
        """Handle a job that exceeded its timeout."""
        if conversation.phase is Phase.VERIFYING:
            conversation.verdict = build_timeout_verdict(self.settings.call_timeout_s)
        else:
            conversation.error = f"{conversation.current_method} gave nothing within {self.settings.call_timeout_s:g} s"
        conversation.cancel_job()
        self._finish(conversation)
        if conversation.executor is not None and conversation.executor.has_too_many_hung_threads:
            hanging = (
                "verifications" if conversation.verdict is not None else f"calls of a session (the last: {conversation.current_method})"
            )
            raise TooManyHungCalls(
                f"{len(conversation.executor.hung_calls)} {hanging} still run after their timeout of {self.settings.call_timeout_s:g} s, and no thread is left "
                "for the other answers, which would get no score; give the code that hangs a timeout of its own, or run the verifier in processes: "
                "{name: isolated, verifier: NAME}; then go on with --resume"
            )


def post_job_event(scheduler: ref[RolloutScheduler], conversation: Conversation, job: Any) -> None:
    """Post the end of a job to the scheduler, if it still exists. Runs in the job's thread."""
    if (alive := scheduler()) is not None:
        alive.events.put((conversation, job, perf_counter()))
        if notify := alive.on_requests_ready:
            notify()
