"""Conversations for frameworks that sample themselves and pass texts: a session, its replies and its verdict.

Every session call and every verification runs in a thread with a timeout. If one fails, the verdict has no score.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from threading import Lock
from time import perf_counter
from typing import Any, Literal, TypeVar

from rlvr.chat.dialects.table import get_dialect
from rlvr.chat.hf_tokenizer import TOOL_ROLES
from rlvr.contracts import Environment, StepResult, Transcript, Verifier
from rlvr.contracts.admission import wait_for_permit
from rlvr.errors import ConfigError, EnvError, SandboxError
from rlvr.mdp.answer_faults import resolve_failed_verdict, verify_conversation
from rlvr.mdp.sessions import LazySession, build_unscored_verdict, verify_answer_safely
from rlvr.mdp.verifier_executor import DaemonThreadExecutor, TimedFuture, build_timeout_verdict
from rlvr.task import Fault, Message, Task, Verdict
from rlvr.turns import ToolSpec, Turn

logger = logging.getLogger(__name__)

T = TypeVar("T")
POLL_INTERVAL_S = 0.5
"""Interval at which a job that waits for a thread is checked."""
CLOSE_TIMEOUT_S = 10.0
"""Timeout of closing a session."""


def _run_with_timeout(pool: DaemonThreadExecutor, function: Callable[[], T], timeout_s: float) -> T:
    """Run a function in a thread with a timeout, which starts with the thread. Returns the result or raises TimeoutError."""
    return _wait_for_result(pool, pool.submit(function), timeout_s)


def _wait_for_result(pool: DaemonThreadExecutor, job: TimedFuture, timeout_s: float) -> Any:
    """Wait for a submitted job with a timeout, which starts with its thread. Returns the result or raises TimeoutError."""
    submitted = perf_counter()
    while not job.done():
        left = (job.started_at or max(pool.last_progress_at, submitted)) + timeout_s - perf_counter()
        if left <= 0:
            pool.abandon(job)
            raise TimeoutError(f"no result within {timeout_s:g} s")
        wait([job], left if job.started_at else min(left, POLL_INTERVAL_S))
    return job.result()


class FinalTextVerifier:
    """Verifies the final texts of completions concurrently, with an environment's verifier or a verifier: for reward functions of other
    frameworks.
    """

    def __init__(self, env_or_verifier: Environment | Verifier, *, workers: int = 8, call_timeout_s: float = 600.0) -> None:
        """Set the verifier.

        Args:
            env_or_verifier: a single-turn environment, or a verifier.
            workers: number of concurrent verifications.
            call_timeout_s: timeout of one verification, in seconds.
        """
        if isinstance(env_or_verifier, Environment):
            _require_single_turn(env_or_verifier, "verify a single text")
        elif not isinstance(env_or_verifier, Verifier):
            made = repr(env_or_verifier) if isinstance(env_or_verifier, str) else "'numeric'"
            raise ConfigError(
                f"{env_or_verifier!r:.80} is no environment or verifier; write rlvr.make_verifier({made:.80}) or rlvr.make_env({made:.80})"
            )
        self.env_or_verifier, self.call_timeout_s = env_or_verifier, call_timeout_s
        self.environment = env_or_verifier if isinstance(env_or_verifier, Environment) else None
        self.executor = DaemonThreadExecutor(workers)
        self._has_warned = False

    def verify_all(self, tasks: Sequence[Task], texts: Sequence[str]) -> list[Verdict]:
        """Return a verdict for each text, in order. Never raises because of a text or of an error in the verifier."""
        jobs = [self.executor.submit(self._verify_one, task, text) for task, text in zip(tasks, texts, strict=True)]
        verdicts = [self._wait_for_verdict(job) for job in jobs]
        if verdicts and not self._has_warned and not any(verdict.is_scored for verdict in verdicts):
            self._has_warned = True  # said once: the trainer leaves these rows out without a word
            first = verdicts[0]
            remedy = "; make the references what the verifier compares with" if first.fault is Fault.TASK else ""
            logger.warning("none of %d answers got a score, so no row of this batch trains: %s%s", len(verdicts), first.reason, remedy)
        return verdicts

    def _wait_for_verdict(self, job: TimedFuture) -> Verdict:
        try:
            verdict: Verdict = _wait_for_result(self.executor, job, self.call_timeout_s)
            return verdict
        except TimeoutError:
            return build_timeout_verdict(self.call_timeout_s)

    def _verify_one(self, task: Task, text: str) -> Verdict:
        if not isinstance(text, str):
            return Verdict(None, f"the answer is {text!r:.60}; it must be a text", fault=Fault.INFRA)
        if self.environment is None:
            assert isinstance(self.env_or_verifier, Verifier)
            return verify_answer_safely(self.env_or_verifier, task, lambda: text)
        environment = self.environment
        verdict = verify_answer_safely(environment.verifier, task, lambda: environment.select_answer(task, [text]))
        return resolve_failed_verdict(environment, task, verdict, verdict, [Turn(text, content=text)], 1)

    def close(self) -> None:
        """Stop the threads, and close the environment or verifier."""
        self.executor.close()
        self.env_or_verifier.close()


def _require_single_turn(environment: Environment, purpose: str) -> None:
    """Raise ConfigError for an environment with conversations, where only single texts are supported."""
    own = environment.traits.has_sessions or environment.max_turns > 1
    if own:
        raise ConfigError(
            f"{type(environment).__name__} is a conversation (max_turns {environment.max_turns}, {len(environment.tools)} tools), and this "
            f"can only {purpose}; use the adapter for whole conversations"
        )


class TextConversationFactory:
    """Starts text conversations of one environment, and owns the threads for their session calls and verifications."""

    def __init__(self, environment: Environment, *, workers: int = 32, call_timeout_s: float = 600.0, dialect: str = "") -> None:
        """Set the limits.

        Args:
            environment: makes the tasks and opens the sessions.
            workers: number of concurrent session calls, and of concurrent verifications.
            call_timeout_s: timeout of one call of a session and of one verification, in seconds.
            dialect: the format of tool calls in texts of the policy; empty: that of the environment, else fenced blocks.
        """
        if environment.traits.plays_agent:
            raise ConfigError("an agent sends whole conversations, and here a policy gets one text after the other; train it with rlvr")
        if environment.traits.rewrites_context:
            raise ConfigError(
                "`context` rewrites histories, and here a policy gets one text after the other; leave `context` out, or train with rlvr"
            )
        self.environment, self.call_timeout_s = environment, call_timeout_s
        self.dialect = get_dialect(dialect or environment.dialect or "fenced")
        self.session_executor, self.verifier_executor = DaemonThreadExecutor(workers, name="session"), DaemonThreadExecutor(workers)
        self.start_executor = DaemonThreadExecutor(workers, name="start")
        """The threads of `start_conversation_async`: no running conversation needs them, so they may wait until one ends."""

    def start_conversation(self, task: Task, *, seed: int = 0) -> TextConversation:
        """Start a conversation and open its session. The caller must call its `close` or `finish_and_verify`.

        Waits until there is room for its session, so a thread that calls this must not be needed by the conversations that are open.
        """
        return TextConversation(self, task, seed)

    async def start_conversation_async(self, task: Task, *, seed: int = 0) -> TextConversation:
        """Start a conversation like `start_conversation`. If the caller cancels the wait (a timeout), the session is closed."""
        job = self.start_executor.submit(TextConversation, self, task, seed)
        try:
            conversation: TextConversation = await asyncio.wrap_future(job)
            return conversation
        except asyncio.CancelledError:
            if not job.cancel():
                job.add_done_callback(lambda done: done.result().close())
            raise

    def close(self) -> None:
        """Stop the threads and close the environment."""
        self.start_executor.close()
        self.session_executor.close()
        self.verifier_executor.close()
        self.environment.close()

    def __enter__(self) -> TextConversationFactory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class TextConversation:
    """One conversation whose turns come as texts from another framework: its session, its replies and its verdict."""

    def __init__(self, runner: TextConversationFactory, task: Task, seed: int) -> None:
        self.runner, self.task = runner, task
        self.turns, self.step_results = list[Turn](), list[StepResult]()
        self.done, self.truncation_reason = False, ""
        """Whether the conversation is over; and the limit that ended it, if one did."""
        self.failure = ""
        """The error, if one occurred. The verdict then has no score, unless only this policy's turns cause it."""
        self._failed_step: Verdict | None = None
        """The verdict without a score on a step that raised."""
        self._verdict: Verdict | None = None
        self._step_lock = Lock()
        self._session = LazySession(runner.environment, task, seed=seed)
        self._open_session()

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools of the policy."""
        return self._session.tools

    @property
    def initial_messages(self) -> tuple[Message, ...]:
        """The messages that the session adds after the prompt of the task, before the first turn."""
        return self._session.initial_messages

    def build_prompt(self, *, describe_tools: bool = True) -> list[Message]:
        """Return the messages before the first turn; `describe_tools`: describe the tools in the system message."""
        messages: list[Message] = [*self.task.prompt, *self.initial_messages]
        if not (describe_tools and self.tools):
            return messages
        about = self.runner.dialect.format_instructions(self.tools)
        if messages[0]["role"] == "system":
            return [{"role": "system", "content": f"{about}\n\n{messages[0]['content']}"}, *messages[1:]]
        return [{"role": "system", "content": about}, *messages]

    def step_text(self, text: str, *, truncated: bool = False) -> list[Message]:
        """Handle a text turn of the policy; return the reply messages, with tool results as labelled user messages."""
        turn = Turn(text, content=text, finish_reason="length" if truncated else "stop")
        if self.tools:
            finish_reason: Literal["stop", "length"] = "length" if truncated else "stop"
            turn = self.runner.dialect.parse_turn(text, self.tools, turn=len(self.turns), finish_reason=finish_reason)
        return [self._label_tool_result(message) for message in self.step(turn)]

    def step(self, turn: Turn) -> list[Message]:
        """Handle a turn of the policy; return the reply messages, none if the conversation is over."""
        if self.done:
            raise EnvError(
                f"the conversation about {self.task.id!r} is over ({self.failure or self.truncation_reason or 'ended'}); begin another"
            )
        if not self._step_lock.acquire(blocking=False):
            raise EnvError(f"another turn of the conversation about {self.task.id!r} is being handled; wait for its end")
        try:
            return self._step(turn)
        finally:
            self._step_lock.release()

    def _step(self, turn: Turn) -> list[Message]:
        if not self._session.is_open_and_idle:
            raise EnvError(f"the conversation about {self.task.id!r} is closed; begin another")
        self.turns.append(turn)
        if turn.finish_reason == "length":
            self.done, self.truncation_reason = True, "tokens"
            return []
        heard = self._call_session(lambda: self._session.step(turn), is_step=True)
        if heard is None:
            return []
        self.step_results.append(heard)
        if not heard.done and len(self.turns) >= self.runner.environment.max_turns:
            self.truncation_reason = "turns"
        self.done = heard.done or bool(self.truncation_reason)
        return [] if self.done else list(heard.messages)

    def finish_and_verify(self) -> Verdict:
        """End the conversation, close the session and return the verdict. Never raises."""
        if self._verdict is None:
            self.done = True
            turns, heard = tuple(self.turns), tuple(self.step_results)
            ending = None if self.failure else self._call_session(lambda: self._session.collect_transcript(turns, heard))
            self._verdict = self._verify(ending)
            self.close()
        return self._verdict

    def close(self) -> None:
        """Close the session, in a thread if it is open. May be called repeatedly."""
        if not self._session.is_open_and_idle:
            self._session.close()  # does not block: the session is not open, or a running call closes it
            return
        try:
            _run_with_timeout(self.runner.session_executor, self._session.close, min(CLOSE_TIMEOUT_S, self.runner.call_timeout_s))
        except TimeoutError:
            pass  # the thread closes it later
        except RuntimeError:  # the threads have been stopped
            self._session.close()

    def _verify(self, ending: Transcript | Verdict | None) -> Verdict:
        found = self._failed_step if ending is None else ending
        if found is None:
            return Verdict(None, self.failure, fault=Fault.INFRA)
        num_steps = len(self.step_results) + (ending is None)
        environment, seed = self.runner.environment, self._session.seed
        self._session.close()  # an experiment about a fault opens another one
        try:
            return _run_with_timeout(
                self.runner.verifier_executor,
                lambda: verify_conversation(environment, self.task, found, self.turns, num_steps, seed=seed),
                self.runner.call_timeout_s,
            )
        except TimeoutError:
            return build_timeout_verdict(self.runner.call_timeout_s)

    def _open_session(self) -> None:
        """Wait in this thread for what the session needs, then open it in another."""
        try:
            permit = wait_for_permit(self._session.get_limiters())
        except SandboxError as error:
            self.failure, self.done = str(error), True
            return
        self._call_session(lambda: self._session.open(permit))
        permit.release_untaken()

    def _call_session(self, work: Callable[[], T], *, is_step: bool = False) -> T | None:
        """Call the session in a thread with a timeout; on an error set `failure`, close the session and return None."""
        try:
            return _run_with_timeout(self.runner.session_executor, work, self.runner.call_timeout_s)
        except (Exception, SystemExit) as error:
            failed = build_unscored_verdict(self._session.current_method, error)
            self.failure, self.done = failed.reason, True
            self._failed_step = failed if is_step and not isinstance(error, TimeoutError) else None
            self.close()
            return None

    def _label_tool_result(self, message: Message) -> Message:
        if message["role"] not in TOOL_ROLES:
            return message
        return {
            "role": "user",
            "content": self.runner.dialect.format_result_as_user_message(str(message.get("name", "tool")), message["content"]),
        }
