"""An environment of your own in Gymnasium's form, whose observations and actions are texts: `reset` and `step`, with its own rewards."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlvr.contracts import Environment, Session, StepResult, Verifier
from rlvr.envs.external._game_env import is_held_out
from rlvr.errors import ConfigError, EnvError
from rlvr.extraction import strip_thinking
from rlvr.registry.plugins import load_function_from_file
from rlvr.task import Message, Task, make_user_prompt
from rlvr.turns import Turn

MAX_SEED_TRIES = 64
"""How many seeds are tried for a first observation that belongs to the split."""


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
    the same way with the same seed, since all answers of a group begin alike.

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
        max_turns: int = 16,
        reward_range: Sequence[float] = (0.0, 1.0),
        max_prompt_tokens: int = 1024,
        seed: int = 0,
        instruction: str = "",
    ) -> None:
        """Set the environment and the range of its rewards.

        Args:
            verifier: adds up the rewards of `step`.
            env_class: the class, a function that builds an environment, or path/to/file.py:Class; None: an example.
            max_turns: the most turns of the policy.
            reward_range: what the rewards of an episode may add up to; the sums become the scores 0 and 1.
            max_prompt_tokens: the most tokens of a first observation.
            seed: another seed gives other tasks.
            instruction: a system message.
        """
        self.env_class = load_function_from_file(env_class, "env") if isinstance(env_class, str) else env_class or SumExample
        if not callable(self.env_class):
            raise ConfigError(f"env_class is {env_class!r:.60}; give a class with reset and step, or path/to/file.py:Class")
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r:.60}; at least 1 turn must be allowed")
        if len(reward_range) != 2 or not reward_range[0] < reward_range[1]:
            raise ConfigError(f"reward_range is {reward_range!r:.60}; it must be the lowest and the highest sum of rewards, such as (0, 1)")
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
            env, texts[seed] = self.start_episode(seed)
            _close(env)
            if (split == "test") == is_held_out(texts[seed]):
                break
            if attempt >= 7 and len(set(texts.values())) <= attempt // 4:  # it begins in a few ways only
                break
        prompt = make_user_prompt(texts[seed], system=self.instruction)
        return Task(prompt, self.reference, id=f"{self.label}/{split}/{self.seed}.{index}", meta={"seed": seed})

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Start the environment of a task. All answers of a group begin alike, so `seed` is ignored."""
        return TextSession(self, task)

    def start_episode(self, seed: int) -> tuple[Any, str]:
        """Build the environment and reset it; returns it with its first observation."""
        env = self.env_class()
        try:
            takes = inspect.signature(env.reset).parameters
            is_seeded = "seed" in takes or any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
            returned = env.reset(seed=seed) if is_seeded else env.reset()
            observation = returned[0] if isinstance(returned, tuple) and len(returned) == 2 else returned
            return env, _require_text(observation, self.label, "reset")
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
                "how an episode begins"
            )
        return ()

    def step(self, turn: Turn) -> StepResult | None:
        """Take the text of the turn as the action."""
        if self._is_done:
            return None
        label, returned = self.environment.label, self._env.step(strip_thinking(turn.text) or "")
        if not isinstance(returned, tuple) or len(returned) not in (4, 5):
            raise EnvError(f"{label}.step returned {returned!r:.80}; it must return observation, reward, terminated, truncated and info")
        observation, reward, *ended, _ = returned
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
    return observation


def _close(env: Any) -> None:
    if callable(close := getattr(env, "close", None)):
        close()


make = TextEnvironment
