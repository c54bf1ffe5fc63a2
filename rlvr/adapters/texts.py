"""Conversations for frameworks that sample themselves and pass texts: a session, its replies and its verdict.

Every session call and every verification runs in a thread with a timeout. If one fails, the verdict has no score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from threading import Lock
from time import perf_counter
from typing import Any, Literal, TypeVar

from rlvr.contracts import Environment, Heard, Transcript, Verifier
from rlvr.dialects.table import get
from rlvr.errors import ConfigError, EnvError
from rlvr.mdp.chat import TOOL_ROLES
from rlvr.mdp.judges import Job, Judges, late
from rlvr.mdp.sessions import Lease, judged, judged_whole
from rlvr.task import Fault, Message, Task, Verdict
from rlvr.turns import ToolSpec, Turn

T = TypeVar("T")
LOOK_S = 0.5
"""Interval at which a job that waits for a thread is checked."""
CLOSING_S = 10.0
"""Timeout of closing a session."""


def within(pool: Judges, work: Callable[[], T], seconds: float) -> T:
    """Run a function in a thread with a timeout, which starts with the thread. Returns the result or raises TimeoutError."""
    return result_of(pool, pool.submit(work), seconds)


def result_of(pool: Judges, job: Job, seconds: float) -> Any:
    """Wait for a submitted job with a timeout, which starts with its thread. Returns the result or raises TimeoutError."""
    submitted = perf_counter()
    while not job.done():
        left = (job.since or max(pool.moved, submitted)) + seconds - perf_counter()
        if left <= 0:
            pool.give_up(job)
            raise TimeoutError(f"no result within {seconds:g} s")
        wait([job], left if job.since else min(left, LOOK_S))
    return job.result()


def last_said(completion: object) -> str:
    """Extract the final text of the policy: the last message, if it is from the assistant and has no tool calls; else "".

    The output of a tool is never an answer.

    >>> last_said([{"role": "assistant", "content": "4"}, {"role": "tool", "content": "5"}])
    ''
    """
    if isinstance(completion, str):
        return completion
    messages: list[Mapping[str, Any]] = list(completion) if isinstance(completion, Sequence) else [{}]
    if not isinstance(completion, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        raise TypeError(f"a completion is {completion!r:.80}; it must be a text or a list of messages")
    last = messages[-1] if messages else {}
    said: Any = last.get("content") if last.get("role") == "assistant" and not last.get("tool_calls") else ""
    if not isinstance(said, str | None):
        said = "".join(str(part.get("text", "")) for part in said)
    return said or ""


class Scorer:
    """Verify final texts concurrently, for reward functions."""

    def __init__(self, judge: Environment | Verifier, *, workers: int = 8, deadline_s: float = 600.0) -> None:
        """Set the verifier.

        Args:
            judge: a single-turn environment, or a verifier.
            workers: number of concurrent verifications.
            deadline_s: timeout of one verification, in seconds.
        """
        if isinstance(judge, Environment):
            refuse_conversation(judge, "verify a single text")
        elif not isinstance(judge, Verifier):
            raise ConfigError(
                f"{judge!r:.80} is no environment or verifier; give an rlvr.Environment or an rlvr.Verifier, "
                "such as rlvr.make('env', 'gsm8k')"
            )
        self.judge, self.deadline_s = judge, deadline_s
        self.environment = judge if isinstance(judge, Environment) else None
        self.judges = Judges(workers)

    def verdicts(self, tasks: Sequence[Task], texts: Sequence[str]) -> list[Verdict]:
        """Return a verdict for each text, in order. Never raises because of a text or of an error in the verifier."""
        jobs = [self.judges.submit(self._verdict, task, text) for task, text in zip(tasks, texts, strict=True)]
        return [self._in_time(job) for job in jobs]

    def _in_time(self, job: Job) -> Verdict:
        try:
            verdict: Verdict = result_of(self.judges, job, self.deadline_s)
            return verdict
        except TimeoutError:
            return late(self.deadline_s)

    def _verdict(self, task: Task, text: str) -> Verdict:
        if self.environment is None:
            assert isinstance(self.judge, Verifier)
            return judged(self.judge, task, lambda: text)
        environment = self.environment
        return judged(environment.verifier, task, lambda: environment.answer(task, [text]))

    def close(self) -> None:
        """Stop the threads, and close the environment or verifier."""
        self.judges.close()
        self.judge.close()


def refuse_conversation(environment: Environment, purpose: str) -> None:
    """Raise ConfigError for an environment with conversations, where only single texts are supported."""
    own = type(environment).open is not Environment.open or environment.tools or environment.max_turns > 1
    if own:
        raise ConfigError(
            f"{type(environment).__name__} is a conversation (max_turns {environment.max_turns}, {len(environment.tools)} tools), and this "
            f"can only {purpose}; use the adapter for whole conversations"
        )


class World:
    """An environment with threads for its sessions and its verifier."""

    def __init__(self, environment: Environment, *, workers: int = 32, deadline_s: float = 600.0, dialect: str = "") -> None:
        """Set the limits.

        Args:
            environment: makes the tasks and opens the sessions.
            workers: number of concurrent session calls, and of concurrent verifications.
            deadline_s: timeout of one call of a session and of one verification, in seconds.
            dialect: the format of tool calls in texts of the policy; empty: that of the environment, else fenced blocks.
        """
        self.environment, self.deadline_s = environment, deadline_s
        self.dialect = get(dialect or environment.dialect or "fenced")
        self.actors, self.judges = Judges(workers, name="session"), Judges(workers)

    def begin(self, task: Task, *, seed: int = 0) -> Conversation:
        """Start a conversation and open its session. The caller must call `close` or `verdict`."""
        return Conversation(self, task, seed)

    def close(self) -> None:
        """Stop the threads and close the environment."""
        self.actors.close()
        self.judges.close()
        self.environment.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Conversation:
    """A conversation with text turns."""

    def __init__(self, world: World, task: Task, seed: int) -> None:
        self.world, self.task = world, task
        self.turns, self.heard = list[Turn](), list[Heard]()
        self.over, self.cut = False, ""
        """Whether the conversation is over; and the limit that ended it, if one did."""
        self.trouble = ""
        """The error, if one occurred. The verdict then has no score."""
        self._verdict: Verdict | None = None
        self._hearing = Lock()
        self._lease = Lease(world.environment, task, seed=seed)
        self._ask(self._lease.open)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools of the policy."""
        return self._lease.tools

    @property
    def opening(self) -> tuple[Message, ...]:
        """The first messages of the session, after the prompt of the task."""
        return self._lease.opening

    def prompt(self, *, described: bool = True) -> list[Message]:
        """Return the messages before the first turn; `described`: describe the tools in the system message."""
        messages: list[Message] = [*self.task.prompt, *self.opening]
        if not (described and self.tools):
            return messages
        about = self.world.dialect.instructions(self.tools)
        if messages[0]["role"] == "system":
            return [{"role": "system", "content": f"{about}\n\n{messages[0]['content']}"}, *messages[1:]]
        return [{"role": "system", "content": about}, *messages]

    def say(self, text: str, *, cut: bool = False) -> list[Message]:
        """Handle a text turn of the policy; return the reply messages, with tool results as labelled user messages."""
        turn = Turn(text, content=text, finish="length" if cut else "stop")
        if self.tools:
            finish: Literal["stop", "length"] = "length" if cut else "stop"
            turn = self.world.dialect.read(text, self.tools, turn=len(self.turns), finish=finish)
        return [self._labelled(message) for message in self.hear(turn)]

    def hear(self, turn: Turn) -> list[Message]:
        """Handle a turn of the policy; return the reply messages, none if the conversation is over."""
        if self.over:
            raise EnvError(f"the conversation about {self.task.id!r} is over ({self.trouble or self.cut or 'ended'}); begin another")
        if not self._hearing.acquire(blocking=False):
            raise EnvError(f"another turn of the conversation about {self.task.id!r} is being handled; wait for its end")
        try:
            return self._heard(turn)
        finally:
            self._hearing.release()

    def _heard(self, turn: Turn) -> list[Message]:
        if not self._lease.idle:
            raise EnvError(f"the conversation about {self.task.id!r} is closed; begin another")
        self.turns.append(turn)
        if turn.finish == "length":
            self.over, self.cut = True, "tokens"
            return []
        heard = self._ask(lambda: self._lease.hear(turn))
        if heard is None:
            return []
        self.heard.append(heard)
        if not heard.over and len(self.turns) >= self.world.environment.max_turns:
            self.cut = "turns"
        self.over = heard.over or bool(self.cut)
        return [] if self.over else list(heard.messages)

    def verdict(self) -> Verdict:
        """End the conversation, close the session and return the verdict. Never raises."""
        if self._verdict is None:
            self.over = True
            turns, heard = tuple(self.turns), tuple(self.heard)
            ending = None if self.trouble else self._ask(lambda: self._lease.collect(turns, heard))
            self._verdict = self._judged(ending)
            self.close()
        return self._verdict

    def close(self) -> None:
        """Close the session, in a thread if it is open. May be called repeatedly."""
        if not self._lease.idle:
            self._lease.close()  # does not block: the session is not open, or a running call closes it
            return
        try:
            within(self.world.actors, self._lease.close, min(CLOSING_S, self.world.deadline_s))
        except TimeoutError:
            pass  # the thread closes it later
        except RuntimeError:  # the threads have been stopped
            self._lease.close()

    def _judged(self, ending: Transcript | Verdict | None) -> Verdict:
        if ending is None:
            return Verdict(None, self.trouble, fault=Fault.INFRA)
        if isinstance(ending, Verdict):
            return ending
        verifier = self.world.environment.verifier
        try:
            return within(self.world.judges, lambda: judged_whole(verifier, self.task, ending), self.world.deadline_s)
        except TimeoutError:
            return late(self.world.deadline_s)

    def _ask(self, work: Callable[[], T]) -> T | None:
        """Call the session; on an error set `trouble`, close the session and return None."""
        try:
            return within(self.world.actors, work, self.world.deadline_s)
        except (Exception, SystemExit) as error:
            self.trouble, self.over = f"{self._lease.asked} raised {type(error).__name__}: {error}", True
            self.close()
            return None

    def _labelled(self, message: Message) -> Message:
        if message["role"] not in TOOL_ROLES:
            return message
        return {"role": "user", "content": self.world.dialect.result(str(message.get("name", "tool")), message["content"])}
