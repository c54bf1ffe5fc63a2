"""One conversation of a rollout, from the prompt to the verdict."""

from __future__ import annotations

import math
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rlvr.contracts import Completion, Request, Transcript
from rlvr.contracts.admission import Permit
from rlvr.contracts.verifier import THREAD_RUNNER
from rlvr.episode import LOGPROB_EPS, Episode, StopReason
from rlvr.errors import EnvError, RlvrError
from rlvr.mdp.sessions import averify_transcript_safely
from rlvr.mdp.state import ConversationState
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.transcript import build_chat_prompt
from rlvr.mdp.verifier_executor import DaemonThreadExecutor, TimedFuture
from rlvr.rollout.rollout_request import RolloutRequest, derive_seed
from rlvr.task import Fault, Verdict


class Phase(StrEnum):
    """The phase of a conversation. In the last four phases it sends no more requests to the sampler."""

    WAITING = "waiting"
    """Not started."""
    OPENING = "opening"
    READY = "ready"
    """The next request is available to the sampler."""
    SAMPLING = "sampling"
    STEPPING_SESSION = "stepping session"
    """The session processes the last turn."""
    COLLECTING = "collecting"
    """The conversation is over, and its transcript is being collected."""
    CLOSING = "closing"
    """The session is being closed."""
    VERIFYING = "verifying"
    DONE = "done"


@dataclass(eq=False, slots=True)
class Conversation:
    """One conversation. Its tokens are used only in the scheduler's thread; jobs in other threads use only its session."""

    number: int
    rollout_request: RolloutRequest
    mdp: TokenMDP
    state: ConversationState
    phase: Phase = Phase.WAITING
    error: str = ""
    """The reason why there is no verdict."""
    admission: Future[Permit] | None = None
    """The request for what the session needs, such as a sandbox session."""
    permit: Permit | None = None
    """What was granted."""
    future: TimedFuture | None = None
    """The current job, running or queued in `executor`."""
    executor: DaemonThreadExecutor | None = None
    """The thread pool of the current job."""
    submitted_at: float = 0.0
    """The time when the last job was submitted."""
    requested_at: float = 0.0
    """The time when the sampler took the current request."""
    elapsed_s: float = 0.0
    """The duration of all turns and replies, without queueing."""
    verdict: Verdict | None = None
    usage: list[int] = field(default_factory=lambda: [0, 0])
    """Input and output tokens as counted by an endpoint."""

    @classmethod
    def begin(cls, number: int, request: RolloutRequest, mdp: TokenMDP) -> Conversation:
        """Begin a conversation. Its prompt is rendered at once, unless a session must be opened first."""
        error = ""
        try:
            state = mdp.create_state_without_prompt(request.task, seed=request.session_seed if mdp.is_interactive else 0)
            if not mdp.has_sessions:
                mdp.render_prompt(state)
        except EnvError as problem:  # a prompt that is too long fails only this episode
            state, error = ConversationState(request.task, [], []), str(problem)
        return cls(number, request, mdp, state, error=error)

    def render_prompt(self) -> None:
        """Render the prompt, once the session is open."""
        try:
            self.mdp.render_prompt(self.state)
        except EnvError as error:  # a prompt that is too long fails only this episode
            self.error = str(error)

    def build_request(self) -> Request:
        """Build the next request for the sampler."""
        turn = len(self.state.turns)
        state, seed = self.state, derive_seed(self.rollout_request.seed, turn)
        said, ends = (build_chat_prompt(state), self.mdp.build_stop_criterion(state)) if state.session_handle else (None, None)
        return Request(list(state.context), self.mdp.count_remaining_turn_tokens(state), seed, self.rollout_request.task, turn, said, ends)

    def append_completion(self, completion: Completion) -> None:
        """Append a completion. If it is invalid, set `error`."""
        if problem := _describe_bad_completion(completion):
            self.error = problem
            return
        try:
            closed = (
                self._append_session_turn(completion)
                if self.state.session_handle or completion.usage
                else self.mdp.append_turn(self.state, completion.tokens, completion.logprobs)
            )
        except RlvrError as error:
            self.error = f"the sampler's tokens do not fit: {error}"
            return
        if not closed and self.state.stop_reason is None:
            self.error = f"the sampler stopped for length after {len(completion.tokens)} tokens, before the limit"

    def _append_session_turn(self, completion: Completion) -> bool:
        """Append a turn of a session, without tokens after its end, or the text of an endpoint."""
        if completion.usage:
            return self._append_text_turn(completion, completion.usage)
        length = self.mdp.find_turn_length(self.state, completion.tokens)
        return self.mdp.append_turn(self.state, completion.tokens[:length], completion.logprobs[:length])

    def _append_text_turn(self, completion: Completion, usage: tuple[int, int]) -> bool:
        """Append the text of an endpoint that counts its own tokens."""
        self.usage = [before + more for before, more in zip(self.usage, usage, strict=True)]
        cut = completion.finish_reason == "length"
        return self.mdp.append_text_turn(self.state, completion.tokens, num_endpoint_tokens=usage[1], truncated=cut, turn=completion.turn)

    def append_reply(self) -> None:
        """Append the reply of the session, or end the conversation."""
        try:
            self.mdp.append_reply(self.state)
        except (Exception, SystemExit) as error:
            self.error = f"the session's reply cannot be rendered: {type(error).__name__}: {error}"

    # ---- jobs: each runs in a thread of a pool

    def open_session(self) -> None:
        """Open the session, with what was granted."""
        if self.state.session_handle is not None:
            self.state.session_handle.open(self.permit)

    def step_session(self) -> None:
        """Pass the last turn to the session."""
        self.mdp.step_session(self.state)

    def collect_transcript(self) -> None:
        """Collect the transcript to verify."""
        state = self.state
        if state.session_handle is not None and state.collected is None:
            state.collected = state.session_handle.collect_transcript(tuple(state.turns), tuple(state.step_results))

    def verify_async(self) -> Verdict | Coroutine[Any, Any, Verdict]:
        """Verify with an asynchronous verifier: return a coroutine, which holds no thread; or the verdict, if there is no transcript."""
        ending = self.mdp.collect_transcript(self.state)
        return (
            self.mdp.add_step_rewards_and_attribute_fault(self.state, ending)
            if isinstance(ending, Verdict)
            else self._await_verdict(ending)
        )

    async def _await_verdict(self, transcript: Transcript) -> Verdict:
        verdict = await averify_transcript_safely(self.mdp.environment.verifier, self.rollout_request.task, transcript)
        if verdict.score is None:
            decided: Verdict = await THREAD_RUNNER.get()(self.mdp.add_step_rewards_and_attribute_fault, self.state, verdict)
            return decided
        return self.mdp.add_step_rewards_and_attribute_fault(self.state, verdict)

    def cancel_job(self) -> None:
        """Cancel the current job."""
        job, self.future = self.future, None
        if job is not None and self.executor is not None:
            self.executor.abandon(job)

    @property
    def current_method(self) -> str:
        """The name of the last session method called, for timeout messages."""
        return self.state.session_handle.current_method if self.state.session_handle else ""

    def build_episode(self, version: int) -> Episode:
        """Build the episode of the conversation."""
        if self.verdict is None or self.error:
            return self._build_failed_episode(version)
        made = self.mdp.build_episode(self.state, self.verdict, group=self.rollout_request.group, version=version)
        made.meta.update(
            self.rollout_request.meta, finish=str(self.state.stop_reason), **({"usage": self.usage} if any(self.usage) else {})
        )
        if not self.mdp.has_sessions and any(turn.reasoning for turn in self.state.turns):  # a session record already contains the turns
            made.meta["reasoning"] = [turn.reasoning for turn in self.state.turns]
        return made

    def _build_failed_episode(self, version: int) -> Episode:
        """Build the episode of a conversation without a verdict."""
        request, state = self.rollout_request, self.state
        reason = self.error or "the conversation never ended"
        return Episode(
            task_id=request.task.id,
            group=request.group,
            tokens=state.tokens,
            action_mask=state.action_mask,
            logprobs=state.logprobs,
            rewards=[0.0] * len(state.tokens),
            segments=state.tree,
            stop_reason=StopReason.FAILED,
            policy_version=version,
            verdict=Verdict(None, reason, fault=Fault.INFRA),
            turns=len(state.turns),
            error=reason,
            meta={**request.meta, "finish": StopReason.FAILED.value},
        )


def _describe_bad_completion(completion: Completion) -> str:
    """Return why a completion has failed or is none; '' if it can be one."""
    if completion.finish_reason == "error":
        return completion.error or "the sampler gave no answer and no reason"
    for token in completion.tokens:
        if not isinstance(token, int) and not hasattr(token, "__index__"):  # numpy's whole numbers are no int
            return f"the sampler gave the token id {token!r:.40}; it must be a whole number"
    try:
        if all(-math.inf < p <= LOGPROB_EPS for p in completion.logprobs):
            return ""
        bad: object = next(p for p in completion.logprobs if not -math.inf < p <= LOGPROB_EPS)
    except TypeError:
        bad = next(repr(p) for p in completion.logprobs if not isinstance(p, float))
    return f"the sampler gave a token the log-probability {bad}; it must be a finite number of at most 0"
