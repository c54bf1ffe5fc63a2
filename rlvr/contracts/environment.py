"""The environment contract: provide tasks, reply to the policy or create a session per conversation, select the text to verify."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from rlvr.contracts.admission import CapacityLimiter
from rlvr.contracts.plugin import Plugin, is_default_implementation, mark_default_implementation
from rlvr.contracts.sandbox import Sandbox
from rlvr.contracts.session import Session, StepResult
from rlvr.contracts.tool import Tool
from rlvr.contracts.toolsession import ToolSession
from rlvr.contracts.verifier import Verifier
from rlvr.hints import add_usage_to_errors
from rlvr.synonyms import accept_synonyms
from rlvr.task import StepReward, Task, Verdict
from rlvr.turns import Call, Turn

NUM_PROCEDURAL_TASKS = 2**31
"""The number of indices that are drawn for an environment with endless tasks."""
NUM_GENERATED_ROWS = 1000
"""How many tasks `to_dataset` returns of those that are generated without an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentTraits:
    """What an environment does in a conversation: open sessions, reply, select the answer, give step rewards.

    >>> EnvironmentTraits(has_sessions=True).replies
    False
    """

    has_sessions: bool = False
    """True if it has stateful sessions. Their replies are recorded, because they may not be reproducible."""
    replies: bool = False
    """True if it replies to the policy's texts without a session."""
    selects_answer: bool = False
    """True if it selects the text to verify; otherwise that is the policy's last turn."""
    has_step_rewards: bool = False
    """True if it distributes the score over turns."""
    plays_agent: bool = False
    """True if an agent plays its tasks: the prompts are those that the agent sends, and not those of the tasks."""
    rewrites_context: bool = False
    """True if a conversation that fills its window goes on from a rewritten history, which only a rollout of rlvr can do."""

    @property
    def is_interactive(self) -> bool:
        """Whether the environment takes part in the conversation after the prompt; if not, the first completed turn ends the
        conversation.
        """
        return self.has_sessions or self.replies or self.selects_answer


class Environment(Plugin, ABC):
    """Provides tasks as text. Subclass it, declare its plugins in `needs`, and define `task`. All methods must be thread-safe.

    For a stateless multi-turn environment, override `reply`. For a stateful one (a shell, a database), override `new_session`.

    List the tools of the policy in `needs`; the registry builds them, and builds the `sandbox` only if a tool needs it. `tools: []` in
    the configuration gives the environment without tools. An environment with its own files, data or artifacts returns a subclass of
    `ToolSession`. A tool that only this environment has is a `Tool` in the same file, placed before the configured ones:

        needs = {"verifier": "exact", "tools": ["python", "submit"], "sandbox": "auto"}
        max_turns = 8

        def __init__(self, *, verifier: Verifier, tools: Sequence[Tool], sandbox: Sandbox | None) -> None:
            self.verifier, self.tools, self.sandbox = verifier, (Move(), *tools), sandbox

        def new_session(self, task: Task, *, seed: int) -> Session:
            return MySession(task, self.tools, sandbox=self.sandbox, seed=seed)

    >>> class Doubling(Environment):
    ...     needs = {"verifier": "exact"}
    ...     def __init__(self, *, verifier: Verifier) -> None: self.verifier = verifier
    ...     def task(self, split: str, index: int) -> Task:
    ...         return Task(f"2 * {index} =", reference=str(2 * index), id=f"doubling/{split}/{index}")
    """

    _synonyms = {
        "verify": "verifier.verify",
        **dict.fromkeys(("rubric", "scorer"), "verifier"),
        **dict.fromkeys(("get_dataset", "as_dataset"), "to_dataset"),
    }
    _hints = {
        "tasks": "write env.task('train', 0); env.num_tasks('train') is how many there are, None for generated ones",
        **dict.fromkeys(
            ("dataset", "eval_dataset", "get_eval_dataset", "to_list", "rows", "sample", "take", "head"),
            "write env.to_dataset(8), or env.to_dataset(8, 'test'), or [env.task('train', index) for index in range(8)] for the tasks",
        ),
        **dict.fromkeys(
            ("score", "judge", "grade"),
            "write .verifier.verify(env.task('train', 0), answer) for one answer, or rlvr.evaluate(env, policy=function) for a policy",
        ),
        **dict.fromkeys(("reward_func", "reward_funcs"), "write .verifier"),
        "rollout": "write rlvr.Rollout(env, tokenizer, sampler).sample(env.task('train', 0), n=8)",
        "generate": "write rlvr.Rollout(env, tokenizer, sampler).sample(env.task('train', 0), n=8)",
        "system_prompt": "the system message is in the prompt of a task: env.task('train', 0).prompt",
    }
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Play with `reset` and `step` what `rlvr.make` makes of the environment, as environments are played elsewhere."""
            if name in ("reset", "step"):
                import rlvr

                self.reset, self.step = (played := rlvr.make(self)).reset, played.step
                return getattr(played, name)
            return super().__getattr__(name)

    label: str = ""
    """Its name in reports; empty: that of its class."""
    verifier: Verifier
    tools: Sequence[Tool] = ()
    """The tools that the policy may call in every conversation."""
    sandbox: Sandbox | None = None
    """Creates a sandbox session for each conversation, if one of the tools needs it."""
    dialect: str = ""
    """The format of tool calls: a name of `rlvr.chat.dialects`. Empty: the format of the chat template."""
    splits: tuple[str, ...] = ("train", "test")
    has_loaded_tasks: bool = False  # True if `num_tasks` loads nothing any more
    sub_environments: Sequence[str] = ()  # the names of a mixture's environments; metrics are also reported for each
    warnings: Sequence[str] = ()  # warnings about the data, one line each; printed before a run
    requires_tool_call: bool = False  # True if an answer without a tool call never gets the full score; tested by `rlvr check`
    max_turns: int = 1  # the maximum number of policy turns
    max_prompt_tokens: int = 96  # the default prompt limit, for a character tokenizer; tool descriptions are added to it
    max_new_tokens: int = 32  # the default limit on the policy's tokens, over all turns

    def __init__(self, *, verifier: Verifier | None = None) -> None:
        """Take the verifier, for a class without a constructor of its own: `rlvr.make_env(MyEnv, verifier="exact")`."""
        if verifier is not None:
            self.verifier = verifier

    def __repr__(self) -> str:
        """Show the class, the size of each split, the verifier and the tools."""
        try:
            parts = [f"{split} {self.describe_size(split)}" for split in self.splits]
            parts.append(f"verifier {type(self.verifier).__name__}")
            parts += [f"tools {', '.join(type(tool).__name__ for tool in self.tools)}"] if self.tools else []
            return f"<{self.label or type(self).__name__}: {', '.join(parts[:-1])}, {parts[-1]}>"
        except Exception:  # an object that is not complete yet must be shown too, in a debugger
            return object.__repr__(self)

    def describe_size(self, split: str) -> str:
        """Describe the number of tasks of a split for `repr`, which must not load anything."""
        if is_default_implementation(type(self).num_tasks):
            return "generated"
        return format(self.num_tasks(split), ",") if self.has_loaded_tasks else "not loaded"

    @property
    def traits(self) -> EnvironmentTraits:
        """What this environment does in a conversation (sessions, replies, step rewards), derived from the methods that it defines and
        from its tools.
        """
        return EnvironmentTraits(
            has_sessions=bool(self.tools) or not is_default_implementation(self.new_session),
            replies=not is_default_implementation(self.reply),
            selects_answer=not is_default_implementation(self.select_answer),
            has_step_rewards=not (is_default_implementation(self.step_rewards) and is_default_implementation(self.step_rewards_for_turns)),
        )

    @classmethod
    def list_support_status(cls) -> Sequence[Mapping[str, str]]:
        """List the environments of an external package that this one can load, for `rlvr list envs --catalog NAME`; empty by default.

        Each row has the keys `name`, `offered` and `why`.
        """
        return ()

    @abstractmethod
    def task(self, split: str, index: int) -> Task:
        """Return the task at `index`. The result must depend only on the environment settings, the split and the index."""

    @mark_default_implementation
    def num_tasks(self, split: str) -> int | None:
        """Return the number of tasks of a split, or None if tasks are generated endlessly."""
        return None

    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        """Return a task of the first split, or a list of several: `env[0]`, `env[:3]`."""
        if isinstance(index, slice):
            stop = index.stop if index.stop is not None or (size := self.num_tasks(self.splits[0])) is None else size
            if stop is None or stop < 0:
                raise IndexError(f"the tasks have no end, so [{index.start}:{index.stop}] needs one, such as env[:8]")
            return [self.task(self.splits[0], place) for place in range(index.start or 0, stop, index.step or 1)]
        size = self.num_tasks(self.splits[0])
        place = index + size if index < 0 and size is not None else index
        if place < 0 or (size is not None and place >= size):
            raise IndexError(
                f"there is no task {index}; the split {self.splits[0]!r} has {'tasks without an end' if size is None else size}"
            )
        return self.task(self.splits[0], place)

    def __len__(self) -> int:
        """Return the number of tasks of the first split."""
        size = self.num_tasks(self.splits[0])
        if size is None:
            raise TypeError("the tasks are generated without an end, so there is no len(env); env[:8] makes eight")
        return size

    def __bool__(self) -> bool:
        return True

    def evaluate(self, policy: Any = None, **settings: Any) -> Any:
        """Measure a policy on this environment and return the report, as `rlvr.evaluate` does with the same arguments."""
        import rlvr

        return rlvr.evaluate(self, **({} if policy is None else {"policy": policy}), **settings)

    @accept_synonyms
    @add_usage_to_errors
    def to_dataset(self, n: int | None = None, split: str = "train", *, seed: int | None = None) -> Any:
        """Return tasks of a split as a `datasets.Dataset` with the columns prompt, answer and id, such as for another trainer.

        A prompt is a text where every task is one user message, else a list of messages. Without `n`, these are all tasks, or 1,000 if they
        are generated without an end. The tasks are the first ones; with a seed they are drawn with it.
        """
        from rlvr.errors import ConfigError, MissingExtra

        try:
            from datasets import Dataset
        except ModuleNotFoundError as error:
            raise MissingExtra("datasets", "train") from error
        for name, value, lowest in (("n", n, 1), ("seed", seed, 0)):
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < lowest):
                raise ConfigError(f"{name} is {value!r:.60}; it must be a whole number from {lowest}, or left out")
        size = self.num_tasks(split)
        count = min(int(number) for number in (n, size, NUM_GENERATED_ROWS if n is size is None else None) if number is not None)
        indices = (
            range(count) if seed is None else random.Random(int(seed)).sample(range(NUM_PROCEDURAL_TASKS if size is None else size), count)
        )
        tasks = [self.task(split, index) for index in indices]
        is_text = all(len(task.prompt) == 1 and task.prompt[0]["role"] == "user" for task in tasks)
        prompts = [task.prompt[0]["content"] if is_text else [dict(message) for message in task.prompt] for task in tasks]
        columns = {"prompt": prompts, "answer": [task.reference for task in tasks], "id": [task.id for task in tasks]}
        return Dataset.from_dict(columns)

    def gold(self, task: Task) -> str | None:
        """Return a completion that gets the full score (in a multi-turn task: the first turn), or None if none is known."""
        return None

    def oracle_turns(self, task: Task) -> Sequence[str | Call | Sequence[Call]] | None:
        """Return the policy turns of a conversation that gets the full score, or None if unknown. A turn is a text or one or more calls."""
        return None

    def list_legal_turns(self, task: Task, completions: Sequence[str]) -> Sequence[str] | None:
        """Return all turns that are legal after the policy's `completions`, for players that choose one at random; None if unknown."""
        return None

    @mark_default_implementation
    def new_session(self, task: Task, *, seed: int) -> Session:
        """Create the session of one conversation. All members of a group get the same `seed`, so they start in the same state."""
        plain = ReplySession(self, task)
        return ToolSession(task, self.tools, sandbox=self.sandbox, seed=seed, inner=plain) if self.tools else plain

    def get_session_limiters(self, task: Task) -> Sequence[CapacityLimiter]:
        """Return the limiters that admit a session of this task. A rollout gets a unit of each, all at once, before it creates the session.

        The default is that of the sandbox. Override it for a session that holds something else that is scarce, or holds a thing twice.
        """
        limiter = None if self.sandbox is None else self.sandbox.session_limiter
        return () if limiter is None else (limiter,)

    @mark_default_implementation
    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        """Return the environment's reply to the policy's turns so far; None ends the conversation."""
        return None

    @mark_default_implementation
    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        """Return the text to verify at the end. The default is the policy's last turn."""
        return completions[-1] if completions else ""

    @mark_default_implementation
    def step_rewards(self, task: Task, completions: Sequence[str], verdict: Verdict) -> Sequence[StepReward]:
        """Distribute the score over turns; the amounts must add up to it. The default uses the verdict's step rewards, if it has any."""
        return verdict.step_rewards

    @mark_default_implementation
    def step_rewards_for_turns(self, task: Task, turns: Sequence[Turn], verdict: Verdict) -> Sequence[StepReward]:
        """Distribute the score over turns, given the turns with their calls; for wrappers. The default calls `step_rewards`."""
        return self.step_rewards(task, [turn.text for turn in turns], verdict)

    def close(self) -> None:
        """Close the verifier, the tools and the sandbox; an environment that holds other resources overrides this to close them too."""
        for plugin in (getattr(self, "verifier", None), *self.tools, self.sandbox):
            if isinstance(plugin, Plugin):  # what is none is told where it is used
                plugin.close()


class EnvironmentWrapper(Environment):
    """Plays the tasks of another environment in another way. What describes the tasks is that of the other environment.

    A subclass has `needs = {"env": ""}`, calls this constructor first, and defines `new_session`.

    >>> import rlvr
    >>> rlvr.make_env("with_tools", env="arithmetic").env.task("train", 0).question
    '3+8='
    """

    def __init__(self, env: Environment) -> None:
        """Take over the verifier, the splits and the limits of an environment, and what is said of its tasks."""
        self.env, self.verifier, self.splits, self.dialect = env, env.verifier, env.splits, env.dialect
        self.sub_environments, self.warnings = env.sub_environments, env.warnings
        self.max_turns, self.max_prompt_tokens, self.max_new_tokens = env.max_turns, env.max_prompt_tokens, env.max_new_tokens

    def task(self, split: str, index: int) -> Task:
        """Return the task of the other environment."""
        return self.env.task(split, index)

    def num_tasks(self, split: str) -> int | None:
        """Return the number of tasks of the other environment."""
        return self.env.num_tasks(split)

    def describe_size(self, split: str) -> str:
        """Describe the number of tasks of the other environment."""
        return self.env.describe_size(split)

    def gold(self, task: Task) -> str | None:
        """Return the gold answer of the other environment."""
        return self.env.gold(task)

    def get_session_limiters(self, task: Task) -> Sequence[CapacityLimiter]:
        """Return the limiters of the other environment, and that of a sandbox of its own."""
        return (*self.env.get_session_limiters(task), *super().get_session_limiters(task))

    def close(self) -> None:
        """Close what this environment has, and the other one."""
        super().close()
        self.env.close()


class ReplySession(Session):
    """The session of an environment whose replies depend on the turns so far alone: it calls `Environment.reply` and `Environment.select_answer`."""

    def __init__(self, environment: Environment, task: Task) -> None:
        self.environment, self.task, self.completions = environment, task, list[str]()

    def step(self, turn: Turn) -> StepResult | None:
        """Call `Environment.reply` with the turns so far; None ends the conversation."""
        self.completions.append(turn.text)
        reply = self.environment.reply(self.task, list(self.completions))  # a copy, so that changes to it do not affect the record
        if reply is None:
            return None
        if not isinstance(reply, str):
            raise TypeError(f"reply gave {reply!r:.80}; it must be a text, or None to end the conversation")
        return StepResult(({"role": "user", "content": reply},))

    def select_answer(self, turns: Sequence[Turn]) -> str:
        """Call `Environment.select_answer` with the texts of the turns."""
        return self.environment.select_answer(self.task, [turn.text for turn in turns])
