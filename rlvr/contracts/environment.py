"""The environment contract: pose tasks, reply to the policy or open a session per conversation, choose the text to judge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from rlvr.contracts.plugin import Plugin
from rlvr.contracts.sandbox import Sandbox
from rlvr.contracts.session import Heard, Session
from rlvr.contracts.tool import Tool
from rlvr.contracts.toolsession import ToolSession
from rlvr.contracts.verifier import Verifier
from rlvr.task import Earned, Task, Verdict
from rlvr.turns import Call, Turn


class Environment(Plugin, ABC):
    """Poses tasks, in text. Subclass it, say what it needs, and write `task`. Everything else may be called from several threads at once.

    A conversation whose world has no state of its own is written as `reply`. Where it has one (a shell, a database), `open` it.

    Tools that the policy may call are named in `needs`, as a list, and the registry builds them. It builds the `sandbox` only if one of
    them needs a box. `tools: []` in the configuration is the same environment without tools. A world with files, data or evidence of its
    own opens its own kind of `ToolSession`. A tool that belongs to this world alone is a `Tool` in the same file, put before the others:

        needs = {"verifier": "exact", "tools": ["python", "submit"], "sandbox": "docker"}
        max_turns = 8

        def __init__(self, *, verifier: Verifier, tools: Sequence[Tool], sandbox: Sandbox | None) -> None:
            self.verifier, self.tools, self.sandbox = verifier, (Move(), *tools), sandbox

        def open(self, task: Task, *, seed: int) -> Session:
            return MySession(task, self.tools, sandbox=self.sandbox, seed=seed)

    >>> class Doubling(Environment):
    ...     needs = {"verifier": "exact"}
    ...     def __init__(self, *, verifier: Verifier) -> None: self.verifier = verifier
    ...     def task(self, split: str, index: int) -> Task:
    ...         return Task(f"doubling/{split}/{index}", user(f"2 * {index} ="), reference=str(2 * index))
    """

    verifier: Verifier
    tools: Sequence[Tool] = ()
    """What the policy may call in every conversation."""
    sandbox: Sandbox | None = None
    """Opens a box for each conversation, if one of the tools needs one."""
    dialect: str = ""
    """How the policy writes calls: a name of `rlvr.dialects`. Empty: as the chat template does."""
    splits: tuple[str, ...] = ("train", "test")
    members: Sequence[str] = ()  # the names of the environments that a mixture poses the tasks of; figures are also given for each
    notes: Sequence[str] = ()  # what a user should know about the data, one line each; printed before a run
    must_call: bool = False  # whether an answer without any call of a tool never gets the full score; `rlvr check` tries it
    max_turns: int = 1  # the most turns that the policy may take
    max_prompt_tokens: int = 96  # the default limit on the prompt, for a character tokenizer; the description of the tools comes on top
    max_new_tokens: int = 32  # the default limit on the policy's tokens, all turns together

    @classmethod
    def offered(cls) -> Sequence[Mapping[str, str]]:
        """What it offers of another package: rows of `name`, `offered` and `why`, for `rlvr list envs --of NAME`. Else nothing."""
        return ()

    @abstractmethod
    def task(self, split: str, index: int) -> Task:
        """The task at `index`: always the same for the same environment settings, split and index."""

    def size(self, split: str) -> int | None:
        """How many tasks the split has; None if they are generated without end."""
        return None

    def gold(self, task: Task) -> str | None:
        """A text that gets the full score (in a multi-turn task: the first turn), or None if none is known."""
        return None

    def script(self, task: Task) -> Sequence[str | Call | Sequence[Call]] | None:
        """The policy's turns of a conversation that gets the full score, or None if none is known. One or more calls are a turn, too."""
        return None

    def open(self, task: Task, *, seed: int) -> Session:
        """The world of one conversation. All members of a group get the same `seed`, so that they begin in the same world."""
        plain = Replying(self, task)
        return ToolSession(task, self.tools, sandbox=self.sandbox, seed=seed, inner=plain) if self.tools else plain

    def reply(self, task: Task, said: Sequence[str]) -> str | None:
        """The environment's reply to the policy's turns `said`; None ends the conversation."""
        return None

    def answer(self, task: Task, said: Sequence[str]) -> str:
        """The text to be judged at the end. The default: the policy's last turn."""
        return said[-1] if said else ""

    def earned(self, task: Task, said: Sequence[str], verdict: Verdict) -> Sequence[Earned]:
        """When the score was earned; the amounts add up to it. The default: as in the verdict; if that is empty, all at the end."""
        return verdict.earned

    def earned_in(self, task: Task, turns: Sequence[Turn], verdict: Verdict) -> Sequence[Earned]:
        """The same from the turns with their calls, for an environment around another one. The default gives `earned` their texts."""
        return self.earned(task, [turn.text for turn in turns], verdict)

    def close(self) -> None:
        """Close the verifier, the tools and the sandbox; an environment that holds other resources overrides this to close them too."""
        for plugin in (getattr(self, "verifier", None), *self.tools, self.sandbox):
            if plugin is not None:
                plugin.close()


class Replying(Session):
    """The session of an environment whose world has no state: it asks `reply` and `answer`.

    >>> Replying(environment, task).hear(Turn("500")).messages                               # doctest: +SKIP
    ({'role': 'user', 'content': 'lower'},)
    """

    def __init__(self, environment: Environment, task: Task) -> None:
        self.environment, self.task, self.said = environment, task, list[str]()

    def hear(self, turn: Turn) -> Heard | None:
        """Ask `reply`."""
        self.said.append(turn.text)
        reply = self.environment.reply(self.task, list(self.said))  # a copy, as everywhere: what is done to it changes no record
        if reply is None:
            return None
        if not isinstance(reply, str):
            raise TypeError(f"reply gave {reply!r:.80}; it must be a text, or None where nothing is to be answered")
        return Heard(({"role": "user", "content": reply},))

    def answer(self, turns: Sequence[Turn]) -> str:
        """Ask `answer`."""
        return self.environment.answer(self.task, [turn.text for turn in turns])
