"""Conversations for frameworks that sample token ids, with the exact tokens, masks and log-probabilities of rlvr.

`TokenConversationRunner` runs a conversation with a coroutine that samples turns. `make_row` converts an episode for a trainer. Session
calls and verification run in threads with timeouts, as in a rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from rlvr.contracts import Completion, Environment, Request
from rlvr.contracts.admission import await_permit
from rlvr.episode import Episode, StopReason, keep_last_branch
from rlvr.errors import SandboxError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import HFTokenizer
from rlvr.mdp.verifier_executor import DaemonThreadExecutor, build_timeout_verdict
from rlvr.rollout.conversation import Conversation, Phase
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.task import Fault, Verdict

POLL_INTERVAL_S = 0.5
"""Interval at which a job that waits for a thread is checked."""
CLOSE_TIMEOUT_S = 10.0
"""Timeout for closing all sessions."""
GenerateFunction = Callable[[Request], Awaitable[Completion]]
"""Samples one turn with the engine of the framework."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """An episode in the format of other trainers: prompt ids, response ids with action mask and log-probabilities, and the verdict.

    >>> TokenRow([5], [6, 7], [1, 0], [-0.1, 0.0], Verdict(1.0, "right"), "terminated", 1).action_mask
    [1, 0]
    """

    prompt_ids: list[int]
    response_ids: list[int]
    """The tokens of the policy, and those of the environment between its turns."""
    action_mask: list[int]
    """1 for tokens of the policy."""
    logprobs: list[float]
    """Of the sampler; 0.0 where the mask is 0."""
    verdict: Verdict
    stop_reason: str
    turns: int
    answer: str = ""
    """The verified text."""

    @property
    def truncated(self) -> bool:
        """Whether a limit ended the conversation."""
        return self.stop_reason == StopReason.TRUNCATED.value


def make_token_row(episode: Episode, pad_id: int) -> TokenRow:
    """Convert an episode to a row. Without a token of the policy it gets the token `pad_id`, with mask 0, since trainers need a response.

    A row is one list, so of a conversation with branches only the last one is kept.

    >>> make_token_row(Episode("t", "g", [5, 6], [False, True], [0.0, -0.1], [0.0, 1.0], StopReason.TERMINATED, verdict=Verdict(1.0, "")), 0).response_ids
    [6]
    """
    episode = keep_last_branch(episode)
    start = episode.prompt_length
    verdict = Verdict(None, episode.error or "no verdict", fault=Fault.INFRA) if episode.verdict is None else episode.verdict
    prompt = episode.tokens[:start] or [pad_id]
    if start == len(episode.tokens):
        return TokenRow(prompt, [pad_id], [0], [0.0], verdict, episode.stop_reason.value, episode.turns, episode.text)
    mask = [int(own) for own in episode.action_mask[start:]]
    return TokenRow(
        prompt, episode.tokens[start:], mask, episode.logprobs[start:], verdict, episode.stop_reason.value, episode.turns, episode.text
    )


def make_completion(tokens: Iterable[int], logprobs: Sequence[float] | None, stop_ids: Iterable[int]) -> Completion:
    """Make the completion of one turn from its tokens, including the stop token, and their log-probabilities.

    Missing log-probabilities become 0.0.

    >>> make_completion([7, 2], None, {2}).finish_reason
    'stop'
    """
    said = list(tokens)
    if not said:
        return Completion([], [], "error", "the engine returned no token")
    if logprobs is not None and len(logprobs) != len(said):
        return Completion([], [], "error", f"the engine returned {len(said)} tokens and {len(logprobs)} log-probabilities")
    return Completion(said, [0.0] * len(said) if logprobs is None else list(logprobs), "stop" if said[-1] in stop_ids else "length")


def make_token_conversation_runner(
    environment: Environment, tokenizer: Any, *, stop_ids: Iterable[int] = (), max_new_tokens: int | None = None,
    max_length: int | None = None, workers: int = 32, call_timeout_s: float = 600.0,
) -> TokenConversationRunner:  # fmt: skip
    """Make a runner for the Hugging Face tokenizer of a framework.

    Args:
        environment: makes the tasks.
        tokenizer: a loaded Hugging Face tokenizer.
        stop_ids: stop token ids of the engine besides EOS.
        max_new_tokens: maximum tokens of the policy per conversation; None: the value of the environment.
        max_length: maximum tokens of prompt and completion; None: the value of the environment.
        workers: number of concurrent session calls, and of concurrent verifications.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """
    mdp = TokenMDP(environment, HFTokenizer(tokenizer, stop_ids), max_new_tokens=max_new_tokens, max_length=max_length)
    return TokenConversationRunner(mdp, workers=workers, call_timeout_s=call_timeout_s)


class TokenConversationRunner:
    """Runs whole conversations of one environment on token ids, with a coroutine that samples each turn; many may run concurrently."""

    def __init__(self, mdp: TokenMDP, *, workers: int = 32, call_timeout_s: float = 600.0) -> None:
        """Set the limits.

        Args:
            mdp: the environment and the tokenizer, with the token limits.
            workers: number of concurrent session calls, and of concurrent verifications.
            call_timeout_s: timeout of one call of a session and of one verification, in seconds.
        """
        self.mdp, self.call_timeout_s = mdp, call_timeout_s
        self.session_executor, self.verifier_executor = DaemonThreadExecutor(workers, name="session"), DaemonThreadExecutor(workers)
        self.closing_sessions = set[Future[Any]]()
        """Jobs that close sessions."""

    async def run_conversation(self, request: RolloutRequest, generate: GenerateFunction) -> Episode:
        """Run one conversation and verify it. Errors give a failed episode; the session is always closed."""
        conversation = Conversation.begin(0, request, self.mdp)
        try:
            if self.mdp.has_sessions and not conversation.error and await self._open_session(conversation):
                conversation.render_prompt()
            while not conversation.error and conversation.state.stop_reason is None:
                await self._play_turn(conversation, generate)
            if not conversation.error and self.mdp.is_interactive:
                await self._run_session_step(conversation, conversation.collect_transcript)
            if not conversation.error:
                conversation.verdict = await self._verify(conversation)
            return conversation.build_episode(0)
        finally:
            conversation.phase = Phase.DONE
            if conversation.state.session_handle is not None:
                self._close_session(conversation.state.session_handle.close)

    async def _open_session(self, conversation: Conversation) -> bool:
        """Await what the session needs, then open it; on an error store it in the conversation and return False."""
        assert conversation.state.session_handle is not None
        try:
            conversation.permit = await await_permit(conversation.state.session_handle.get_limiters())
        except SandboxError as error:
            conversation.error = str(error)
            return False
        try:
            return await self._run_session_step(conversation, conversation.open_session)
        finally:
            conversation.permit.release_untaken()

    async def _play_turn(self, conversation: Conversation, generate: GenerateFunction) -> None:
        try:
            completion = await generate(conversation.build_request())
        except Exception as error:
            conversation.error = f"sampling raised {type(error).__name__}: {error}"
            return
        conversation.append_completion(completion)
        if (
            not conversation.error
            and conversation.state.stop_reason is None
            and await self._run_session_step(conversation, conversation.step_session)
        ):
            conversation.append_reply()

    async def _run_session_step(self, conversation: Conversation, session_call: Callable[[], Any]) -> bool:
        """Call the session; on an error store it in the conversation and return False."""
        try:
            await self._run_with_timeout(self.session_executor, session_call)
        except TimeoutError:
            conversation.error = f"{conversation.current_method} returned nothing within {self.call_timeout_s:g} s"
        except (Exception, SystemExit) as error:
            conversation.error = f"{conversation.current_method} raised {type(error).__name__}: {error}"
        return not conversation.error

    async def _verify(self, conversation: Conversation) -> Verdict:
        try:
            verdict: Verdict = await self._run_with_timeout(self.verifier_executor, lambda: self.mdp.verify(conversation.state))
            return verdict
        except TimeoutError:
            return build_timeout_verdict(self.call_timeout_s)
        except (Exception, SystemExit) as error:
            return Verdict(None, f"the verifier raised {error!r}", fault=Fault.INFRA)

    async def _run_with_timeout(self, pool: DaemonThreadExecutor, work: Callable[[], Any]) -> Any:
        """Run a function in a thread with a timeout, which starts with the thread."""
        submitted, job = perf_counter(), pool.submit(work)
        future = asyncio.wrap_future(job)
        try:
            while not future.done():
                left = (job.started_at or max(pool.last_progress_at, submitted)) + self.call_timeout_s - perf_counter()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({future}, timeout=left if job.started_at else min(left, POLL_INTERVAL_S))
            return future.result()
        finally:
            if not job.done():
                pool.abandon(job)

    def _close_session(self, close: Callable[[], None]) -> None:
        """Close a session in a thread, or here if the threads have been stopped."""
        self.closing_sessions = {job for job in self.closing_sessions if not job.done()}
        try:
            self.closing_sessions.add(self.session_executor.submit(close))
        except RuntimeError:
            close()

    def close(self) -> None:
        """Wait for closing sessions up to a timeout, stop the threads and close the environment."""
        wait(self.closing_sessions, CLOSE_TIMEOUT_S)
        self.session_executor.close()
        self.verifier_executor.close()
        self.mdp.environment.close()
