"""Conversations for frameworks that sample by themselves and hand over texts: one session, its replies, its verdict.

Every call of a session and every verdict runs in a thread with a deadline. What fails there gives a verdict without a score.
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
"""How often a task that waits for a thread is looked at, in seconds."""
CLOSING_S = 10.0
"""How long the end of a session is waited for."""


def within(pool: Judges, work: Callable[[], T], seconds: float) -> T:
    """The result of a task that may take `seconds`, counted from when it has a thread; else TimeoutError."""
    return result_of(pool, pool.submit(work), seconds)


def result_of(pool: Judges, job: Job, seconds: float) -> Any:
    """The same for a task that was submitted."""
    submitted = perf_counter()
    while not job.done():
        left = (job.since or max(pool.moved, submitted)) + seconds - perf_counter()
        if left <= 0:
            pool.give_up(job)
            raise TimeoutError(f"nothing came back within {seconds:g} s")
        wait([job], left if job.since else min(left, LOOK_S))
    return job.result()


def last_said(completion: object) -> str:
    """The policy's final text: of a conversation, its last message if the policy wrote it and called nothing in it; else no answer.

    What a tool printed is never an answer.

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
    """Judges final texts, many at once: what a reward function needs.

    >>> Scorer(make("verifier", "numeric")).verdicts([Task("t", user("2+2="), "4")], ["4"])[0].score     # doctest: +SKIP
    1.0
    """

    def __init__(self, judge: Environment | Verifier, *, workers: int = 8, deadline_s: float = 600.0) -> None:
        """Set who judges.

        Args:
            judge: an environment of one turn, or a verifier.
            workers: how many answers are judged at once.
            deadline_s: how long one verdict may take.
        """
        if isinstance(judge, Environment):
            refuse_conversation(judge, "judge a single text")
        elif not isinstance(judge, Verifier):
            raise ConfigError(
                f"{judge!r:.80} judges nothing; give an rlvr.Environment or an rlvr.Verifier, such as rlvr.make('env', 'gsm8k')"
            )
        self.judge, self.deadline_s = judge, deadline_s
        self.environment = judge if isinstance(judge, Environment) else None
        self.judges = Judges(workers)

    def verdicts(self, tasks: Sequence[Task], texts: Sequence[str]) -> list[Verdict]:
        """A verdict for each text, in order. Never raises because of a text or of a broken verifier."""
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
        """Stop the threads, and close what judges."""
        self.judges.close()
        self.judge.close()


def refuse_conversation(environment: Environment, purpose: str) -> None:
    """ConfigError for an environment that takes part in the conversation, where only one text is seen."""
    own = type(environment).open is not Environment.open or environment.tools or environment.max_turns > 1
    if own:
        raise ConfigError(
            f"{type(environment).__name__} is a conversation (max_turns {environment.max_turns}, {len(environment.tools)} tools), and this "
            f"can only {purpose}; use the adapter for whole conversations"
        )


class World:
    """An environment, with the threads in which its sessions are asked and its answers judged.

    >>> with World(make("env", "guess_number")) as world:                                # doctest: +SKIP
    ...     talk = world.begin(world.environment.task("train", 0)); talk.say("500"); talk.verdict().score
    """

    def __init__(self, environment: Environment, *, workers: int = 32, deadline_s: float = 600.0, dialect: str = "") -> None:
        """Set the limits.

        Args:
            environment: poses the tasks and opens the sessions.
            workers: how many sessions are asked at once, and how many answers are judged at once.
            deadline_s: how long one call of a session, or one verdict, may take.
            dialect: how calls are written in the policy's texts; empty: as the environment says, else as fenced blocks.
        """
        self.environment, self.deadline_s = environment, deadline_s
        self.dialect = get(dialect or environment.dialect or "fenced")
        self.actors, self.judges = Judges(workers, name="session"), Judges(workers)

    def begin(self, task: Task, *, seed: int = 0) -> Conversation:
        """Open the session of one conversation. Close it, or take its verdict."""
        return Conversation(self, task, seed)

    def close(self) -> None:
        """Stop the threads, and close the environment."""
        self.actors.close()
        self.judges.close()
        self.environment.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Conversation:
    """One conversation in texts.

    >>> talk = Conversation(world, task, seed=0)                                         # doctest: +SKIP
    >>> talk.prompt(); talk.say("500"); talk.verdict()                                   # doctest: +SKIP
    """

    def __init__(self, world: World, task: Task, seed: int) -> None:
        self.world, self.task = world, task
        self.turns, self.heard = list[Turn](), list[Heard]()
        self.over, self.cut = False, ""
        """Whether the policy has no further turn; and what ran out, if that was the end."""
        self.trouble = ""
        """What failed. The verdict then has no score."""
        self._verdict: Verdict | None = None
        self._hearing = Lock()
        self._lease = Lease(world.environment, task, seed=seed)
        self._ask(self._lease.open)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the policy may call."""
        return self._lease.tools

    @property
    def opening(self) -> tuple[Message, ...]:
        """What the session says first, after the task's prompt."""
        return self._lease.opening

    def prompt(self, *, described: bool = True) -> list[Message]:
        """The messages before the first turn; `described`: with a text about the tools, for frameworks without a place for them."""
        messages: list[Message] = [*self.task.prompt, *self.opening]
        if not (described and self.tools):
            return messages
        about = self.world.dialect.instructions(self.tools)
        if messages[0]["role"] == "system":
            return [{"role": "system", "content": f"{about}\n\n{messages[0]['content']}"}, *messages[1:]]
        return [{"role": "system", "content": about}, *messages]

    def say(self, text: str, *, cut: bool = False) -> list[Message]:
        """The policy's turn as a text; returns what it reads before its next one, with results of tools as labelled user messages."""
        turn = Turn(text, content=text, finish="length" if cut else "stop")
        if self.tools:
            finish: Literal["stop", "length"] = "length" if cut else "stop"
            turn = self.world.dialect.read(text, self.tools, turn=len(self.turns), finish=finish)
        return [self._labelled(message) for message in self.hear(turn)]

    def hear(self, turn: Turn) -> list[Message]:
        """The policy's turn; returns the messages it reads before its next one, none where the conversation is over."""
        if self.over:
            raise EnvError(f"the conversation about {self.task.id!r} is over ({self.trouble or self.cut or 'ended'}); begin another")
        if not self._hearing.acquire(blocking=False):
            raise EnvError(f"another turn of the conversation about {self.task.id!r} is being heard; wait for its end")
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
        """The verdict on what was said so far; the session is closed. Never raises."""
        if self._verdict is None:
            self.over = True
            turns, heard = tuple(self.turns), tuple(self.heard)
            ending = None if self.trouble else self._ask(lambda: self._lease.collect(turns, heard))
            self._verdict = self._judged(ending)
            self.close()
        return self._verdict

    def close(self) -> None:
        """Close the session, in a thread if it is open. Any number of times."""
        if not self._lease.idle:
            self._lease.close()  # nothing to wait for: it is not open, or is closed by the thread that is in it
            return
        try:
            within(self.world.actors, self._lease.close, min(CLOSING_S, self.world.deadline_s))
        except TimeoutError:
            pass  # it is closed when the thread comes back
        except RuntimeError:  # the threads are gone
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
        """Ask the session something; None, with `trouble`, if it fails. A session that has failed is closed."""
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
