"""An environment of your own in Gymnasium's form, whose observations and actions are texts: `reset` and `step`, with its own rewards."""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from rlvr.contracts import Environment, Session, StepResult, Verifier
from rlvr.envs.external._game_env import is_held_out
from rlvr.errors import ConfigError, EnvError, RlvrError, describe_exception
from rlvr.extraction import strip_thinking
from rlvr.mdp.sessions import call_with_exceptions
from rlvr.registry.plugins import load_function_from_file
from rlvr.task import Message, Task, make_user_prompt
from rlvr.turns import Turn

MAX_SEED_TRIES = 64
"""How many seeds are tried for a first observation that belongs to the split."""
START_TRIES, START_PAUSE_S = 3, 0.2
"""How often an episode is begun for its first observation where that fails: one failure of a server must not end a run."""
WARNED_CLASSES: WeakSet[type] = WeakSet()
"""Classes whose `close` raised: a warning for each episode would hide all else."""
logger = logging.getLogger(__name__)


class SumExample:
    """Asks for a sum.

    >>> SumExample().reset(seed=9)[0]
    '9+9='
    """

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Return the question."""
        self.parts = (seed or 0) % 97, (seed or 0) % 89
        return f"{self.parts[0]}+{self.parts[1]}=", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pay 1 for the sum, and end."""
        return "", float(action.strip() == str(sum(self.parts))), True, False, {}


class TextEnvironment(Environment):
    """A Gymnasium environment of yours over texts: `reset(seed=...)` returns the first observation, and `step(action)` gets a turn of the policy.

    `step` gets a turn without its thinking, and returns observation, reward, terminated, truncated and info, as in Gymnasium. The score is the
    sum of the rewards; where rewards may be negative, an episode that is not over scores 0. Each task is a seed; the environment must begin
    the same way with the same seed, since all answers of a group begin alike. Episodes are played at once in several threads, and the calls of
    one come one after the other, from any of them.

    >>> import rlvr
    >>> class Double(rlvr.Env):
    ...     def reset(self, seed=None, options=None):
    ...         self.number = seed % 10
    ...         return f"2 * {self.number} =", {}
    ...     def step(self, action):
    ...         return "", float(action == str(2 * self.number)), True, False, {}
    >>> env = rlvr.make_env(Double)
    >>> rlvr.evaluate(env, lambda prompt: str(2 * int(prompt[4:5])), tasks=5).accuracy
    1.0
    """

    needs = {"verifier": "session_reward"}

    def __init__(
        self,
        *,
        verifier: Verifier,
        env_class: Callable[..., Any] | str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        max_turns: int = 16,
        reward_range: Sequence[float] | None = None,
        max_prompt_tokens: int = 1024,
        seed: int = 0,
        instruction: str = "",
    ) -> None:
        """Set the environment and the range of its rewards.

        Args:
            verifier: adds up the rewards of `step`.
            env_class: the class, a function that builds an environment, or path/to/file.py:Class; None: an example.
            kwargs: the settings of the class.
            max_turns: the most turns of the policy.
            reward_range: what the rewards of an episode may add up to; the sums become the scores 0 and 1. None: the `reward_range` of the
                class, if it has one with two numbers, else (0, 1).
            max_prompt_tokens: the most tokens of a first observation.
            seed: another seed gives other tasks.
            instruction: a system message.
        """
        self.env_class = load_function_from_file(env_class, "env") if isinstance(env_class, str) else env_class or SumExample
        if not callable(self.env_class):
            raise ConfigError(f"env_class is {env_class!r:.60}; give a class with reset and step, or path/to/file.py:Class")
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r:.60}; at least 1 turn must be allowed")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise ConfigError(f"kwargs is {kwargs!r:.60}; it must be a mapping of the settings of env_class")
        if reward_range is None:
            reward_range = _read_declared_range(self.env_class) or (0.0, 1.0)
        if reward_range is None or not _is_range(reward_range):
            raise ConfigError(f"reward_range is {reward_range!r:.60}; it must be the lowest and the highest sum of rewards, such as (0, 1)")
        self.kwargs = dict(kwargs or {})
        self.label = getattr(self.env_class, "__name__", "text_env")
        self.verifier, self.max_turns, self.seed, self.instruction = verifier, max_turns, seed, instruction
        self._tasks: dict[tuple[str, int], Task] = {}
        self.reference, self.max_prompt_tokens = {"scale": [*map(float, reward_range)]}, max_prompt_tokens

    def task(self, split: str, index: int) -> Task:
        """Return the task at `index`: what the environment says first, with a seed. What it says in one split, it says in no other one,
        if it begins in many ways.
        """
        if split not in self.splits:
            raise ConfigError(f"there is no split {split!r}; allowed: {', '.join(self.splits)}")
        if (split, index) not in self._tasks:
            if len(self._tasks) > 10_000:
                self._tasks.clear()
            self._tasks[split, index] = self._make_task(split, index)
        return self._tasks[split, index]

    def _make_task(self, split: str, index: int) -> Task:
        seed, texts = 0, dict[int, str]()
        for attempt in range(MAX_SEED_TRIES):
            digest = hashlib.blake2b(f"{self.seed}/{split}/{index}/{attempt}".encode(), digest_size=4).digest()
            seed = 2 * (int.from_bytes(digest) >> 2) + (split == "test")
            texts[seed] = self._look_at_start(seed)
            if (split == "test") == is_held_out(texts[seed]):
                break
            if attempt >= 7 and len(set(texts.values())) <= attempt // 4:  # it begins in a few ways only
                break
        prompt = make_user_prompt(texts[seed], system=self.instruction)
        return Task(prompt, self.reference, id=f"{self.label}/{split}/{self.seed}.{index}", meta={"seed": seed})

    def _look_at_start(self, seed: int) -> str:
        """Return the first observation with a seed."""
        for left in reversed(range(START_TRIES)):
            try:
                env, text = call_with_exceptions(lambda: self.start_episode(seed))
            except RlvrError:
                raise
            except Exception as error:
                if not left:
                    raise EnvError(f"{self.label} could not begin with the seed {seed}: {describe_exception(error)}") from error
                time.sleep(START_PAUSE_S)
            else:
                _close(env)
                return text
        raise AssertionError

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Start the environment of a task. All answers of a group begin alike, so `seed` is ignored."""
        return TextSession(self, task)

    def start_episode(self, seed: int) -> tuple[Any, str]:
        """Build the environment and reset it; returns it with its first observation."""
        try:
            env = self.env_class(**self.kwargs)
        except SystemExit as error:
            raise EnvError(f"{self.label} ended the program while it was built: {describe_exception(error)}") from error
        try:
            takes = inspect.signature(env.reset).parameters
            is_seeded = "seed" in takes or any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
            returned = env.reset(seed=seed) if is_seeded else env.reset()
            observation = returned[0] if isinstance(returned, tuple) and len(returned) == 2 else returned
            return env, _require_text(observation, self.label, "reset")
        except SystemExit as error:
            _close(env)
            raise EnvError(f"{self.label}.reset ended the program: {describe_exception(error)}") from error
        except BaseException:
            _close(env)
            raise


class TextSession(Session):
    """One episode of a text environment."""

    def __init__(self, environment: TextEnvironment, task: Task) -> None:
        self.environment, self.task = environment, task
        self._env: Any = None
        self._is_done = False

    def initial_messages(self) -> Sequence[Message]:
        """Start the episode, whose first observation is the prompt already."""
        self._env, text = self.environment.start_episode(self.task.meta["seed"])
        if text != self.task.question:
            raise EnvError(
                f"{self.environment.label} began with {text!r:.80} and with {self.task.question!r:.80} for one seed; reset(seed=...) must decide "
                "how an episode begins. Episodes are played at once in threads, which share the module `random`; random.Random(seed) or "
                "self.np_random is an episode's own"
            )
        return ()

    def step(self, turn: Turn) -> StepResult | None:
        """Take the text of the turn as the action."""
        if self._is_done:
            return None
        label, returned = self.environment.label, self._env.step(strip_thinking(turn.text) or "")
        if not isinstance(returned, tuple | list) or len(returned) not in (4, 5) or isinstance(returned[-1], bool):
            raise EnvError(f"{label}.step returned {returned!r:.80}; it must return observation, reward, terminated, truncated and info")
        observation, reward, *ended, _ = returned
        if wrong := [flag for flag in ended if isinstance(flag, str | bytes | Mapping | Sequence)]:
            raise EnvError(f"{label}.step returned {wrong[0]!r:.60} as terminated or truncated; both must be True or False")
        if reward is None or isinstance(reward, str | bytes):
            raise EnvError(f"{label}.step returned the reward {reward!r:.60}; it must be a number")
        self._is_done = any(map(bool, ended))
        if self._is_done and observation is None:
            observation = ""
        said = make_user_prompt(_require_text(observation, label, "step"))
        return StepResult(said, done=self._is_done, reward=float(reward))

    def artifacts(self) -> Mapping[str, Any]:
        """Return whether the episode is over, where breaking it off could save the rest of its negative rewards."""
        return {"over": self._is_done} if self.environment.reference["scale"][0] < 0 else {}

    def close(self) -> None:
        """Close the environment."""
        _close(self._env)


def _require_text(observation: Any, label: str, method: str) -> str:
    if not isinstance(observation, str):
        raise EnvError(f"{label}.{method} returned the observation {observation!r:.80}; it must be a text")
    return observation.encode("utf-8", "replace").decode()  # half a character, such as one that an action repeats, is no text


def _is_range(value: Any) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        return False
    return all(isinstance(end, int | float) and math.isfinite(end) for end in value) and value[0] < value[1]


def _read_declared_range(env_class: Any) -> tuple[float, float] | None:
    """Return the `reward_range` of a class; None for Gymnasium's infinite one, and for what is no range."""
    declared: Any = getattr(env_class, "reward_range", None)
    try:
        low, high = map(float, () if isinstance(declared, str) else declared)
    except (TypeError, ValueError):
        return None
    return (low, high) if _is_range((low, high)) else None


def _close(env: Any) -> None:
    """Close an environment, if it can be closed. An episode is over by then, and what closing it raises is not about an answer."""
    if callable(close := getattr(env, "close", None)):
        try:
            call_with_exceptions(close)
        except (Exception, SystemExit) as error:
            if type(env) not in WARNED_CLASSES:
                WARNED_CLASSES.add(type(env))
                logger.warning("%s.close raised %s; further ones are not shown", type(env).__name__, describe_exception(error))


make = TextEnvironment
