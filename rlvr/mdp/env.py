"""TokenEnv: a task as a Gymnasium environment whose action is one token.

>>> import gymnasium
>>> env = gymnasium.make("rlvr:rlvr/Arithmetic-v0", obs="ids")        # doctest: +SKIP
>>> observation, info = env.reset(seed=7)                             # doctest: +SKIP
>>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())   # doctest: +SKIP

The reward is 0.0 until the episode ends, then the verifier's score, also if the verdict has step rewards (`Verdict.step_rewards`; the
learner assigns them to their tokens). An episode that could not be verified ends truncated with reward 0.0 and `info["scored"]` False:
exclude it, because it is not a wrong answer.
No TimeLimit wrapper is registered: it would end the episode without running the verifier.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlvr.contracts import Environment, Plugin, Session, Tokenizer
from rlvr.episode import End
from rlvr.errors import ConfigError, EnvError, suggest
from rlvr.mdp.limits import size_of
from rlvr.mdp.rules import State, TokenMDP
from rlvr.mdp.tokenizers import tokenizer_from
from rlvr.plugins.registry import from_config
from rlvr.task import Task, Verdict

OBSERVATIONS = ("dict", "ids", "onehot_ids")
_SPEAKERS = {"user": "env"}
PROCEDURAL_TASKS = 2**31
"""The number of indices that are drawn for an environment with endless tasks."""


class TokenEnv(gymnasium.Env[Any, Any]):
    """A Gymnasium environment over one environment and one tokenizer; each step appends one token.

    Observations, all padded on the right to `max_length`:
        dict          input_ids, attention_mask, loss_mask (1 at policy tokens), length
        ids           Box of ids; the pad id is V, one past the last action
        onehot_ids    the same ids as MultiDiscrete, which stable-baselines3 and others one-hot encode
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 10}

    def __init__(
        self,
        *,
        env: str | dict[str, Any] | Environment,
        tokenizer: str | Tokenizer = "chars",
        obs: str = "dict",
        split: str = "",
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        max_turn_tokens: int | None = None,
        on_length: str = "truncate",
        render_mode: str | None = None,
    ) -> None:
        if obs not in OBSERVATIONS:
            raise ConfigError(f"obs is {obs!r}; {suggest(str(obs), OBSERVATIONS)}")
        if on_length not in ("truncate", "terminate"):
            raise ConfigError(f"on_length is {on_length!r}; {suggest(str(on_length), ('truncate', 'terminate'))}")
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"render_mode is {render_mode!r}; allowed: ansi, or none")
        self.tokenizer = tokenizer_from(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self.environment: Environment = from_config("env", env)
        try:
            self.mdp = TokenMDP(
                self.environment, self.tokenizer, max_new_tokens=max_new_tokens, max_length=max_length, max_turn_tokens=max_turn_tokens
            )
            split = split or self.environment.splits[0]  # evaluation environments have no "train" split
            if split not in self.environment.splits:
                raise ConfigError(f"split is {split!r}; {suggest(str(split), self.environment.splits)}")
        except ConfigError:
            if self.environment is not env and isinstance(self.environment, Plugin):
                self.environment.close()  # close only what was built here
            raise
        self.obs, self.split, self.on_length, self.render_mode = obs, split, on_length, render_mode
        self.pad_id = self.tokenizer.vocab_size
        self.action_space = spaces.Discrete(self.tokenizer.vocab_size)
        self.observation_space = _space(obs, self.pad_id, self.mdp.max_length)
        self.state: State | None = None
        self.verdict: Verdict | None = None
        # observation buffers, updated token by token; every observation is a copy
        self._ids = np.full(self.mdp.max_length, self.pad_id, dtype=np.int64)
        self._attention = np.zeros(self.mdp.max_length, dtype=np.int8)
        self._acted = np.zeros(self.mdp.max_length, dtype=np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with the task at `options["index"]`, or with one drawn from the seeded generator."""
        super().reset(seed=seed)
        unknown = next((key for key in options or {} if key != "index"), None)
        if unknown is not None:
            raise EnvError(f"reset() has no option {unknown!r}; {suggest(str(unknown), ('index',))}")
        size = size_of(self.environment, self.split)
        index = (options or {}).get("index")
        if index is None:
            index = self.np_random.integers(PROCEDURAL_TASKS if size is None else size)
        elif not isinstance(index, int | np.integer) or index < 0 or (size is not None and index >= size):
            raise EnvError(f"there is no task {index!r} in split {self.split!r}; allowed: 0 to {(size or PROCEDURAL_TASKS) - 1}")
        return self.begin(self.environment.task(self.split, int(index)))

    def begin(self, task: Task, *, seed: int = 0, session: Session | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with the given task and session, or a new session with `seed`; the previous session is closed."""
        self._leave()
        self.state = None
        state = self.mdp.start(task, seed=seed, session=session)
        if state.lease is not None and not self.mdp.worlds:
            state.lease.open()
        self.state = state
        self.verdict = None
        self._ids.fill(self.pad_id)
        self._attention.fill(0)
        self._acted.fill(0)
        self._write(0)
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Append one token. At the end of the episode, the reward is the verifier's score."""
        self.append(action)
        if self.state is not None and self.state.end is not None:
            self.settle(self.mdp.judge(self.state))
        return self.outcome()

    def append(self, action: Any) -> bool:
        """Append a token, without verification; return whether the episode is over. The first half of `step`."""
        state = self.state
        if state is None or state.end is not None:
            raise EnvError("step() was called with no episode under way; call reset() first")
        try:
            token = operator.index(action)
        except TypeError:
            token = -1
        if not 0 <= token < self.pad_id:
            raise EnvError(f"action {action!r} is no token id; allowed: whole numbers from 0 to {self.pad_id - 1}")
        before = len(state.tokens)
        self.mdp.advance(state, token)
        self._write(before)
        return state.end is not None

    def settle(self, verdict: Verdict) -> None:
        """Store the verdict of a finished episode. The second half of `step`."""
        self.verdict = verdict

    def outcome(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Build the return value of `step`: observation, reward, terminated, truncated, info."""
        assert self.state is not None
        score = self.verdict.score if self.verdict is not None else None
        if self.verdict is not None and self.verdict.earned:
            score = math.fsum(self.mdp.rewards(self.state, self.verdict))  # the same sum as in `Episode.reward`
        end = self.state.end
        failed = self.verdict is not None and score is None
        by_length = end is End.TRUNCATED and self.on_length == "terminate"
        terminated = not failed and (end is End.TERMINATED or by_length)
        truncated = failed or (end is End.TRUNCATED and not by_length)
        return self._observe(), 0.0 if score is None else score, terminated, truncated, self._info()

    def render(self) -> str | None:
        """Render the conversation as text."""
        if self.render_mode is None or self.state is None:
            return None
        opening = self.state.lease.opening if self.state.lease else ()
        lines = [f"{message['role']}: {message['content']}" for message in (*self.state.task.prompt, *opening)]
        turns, heard = self.state.turns, self.state.heard
        for place, turn in enumerate(turns):
            lines.append(f"policy: {turn.text}")
            if place < len(heard) and (place + 1 < len(turns) or self.state.end is None):  # skip messages that the policy never received
                lines += [f"{_SPEAKERS.get(message['role'], message['role'])}: {message['content']}" for message in heard[place].messages]
        if self.state.end is None:
            lines.append(f"policy: {self.tokenizer.decode(self.state.tokens[self.state.turn_start :])}")
        return "\n".join([*lines, *([f"verdict: {self.verdict.reason}"] if self.verdict else [])])

    def close(self) -> None:
        """Close the session and the environment with its verifier."""
        self._leave()
        self.environment.close()

    def _leave(self) -> None:
        if self.state is not None:
            self.state.close()

    def _write(self, start: int) -> None:
        """Update the observation buffers with the tokens from `start` on."""
        assert self.state is not None
        tokens, end = self.state.tokens, len(self.state.tokens)
        if end == start + 1:  # the common case: one policy token
            self._ids[start], self._acted[start], self._attention[start] = tokens[start], 1, 1
            return
        self._ids[start:end] = tokens[start:]
        self._acted[start:end] = self.state.acted[start:]
        self._attention[start:end] = 1

    def _observe(self) -> Any:
        if self.obs != "dict":
            return self._ids.copy()
        assert self.state is not None
        return {
            "input_ids": self._ids.copy(),
            "attention_mask": self._attention.copy(),
            "loss_mask": self._acted.copy(),
            "length": np.array([len(self.state.tokens)], dtype=np.int64),
        }

    def _info(self) -> dict[str, Any]:
        """Build the info dict, always with the same keys and types, so that vector environments can batch it."""
        assert self.state is not None
        verdict = self.verdict
        return {
            "task_id": self.state.task.id,
            "turns": len(self.state.said),
            "text": self.mdp.answer(self.state) if verdict else "",
            "end": "" if self.state.end is None else "failed" if verdict and not verdict.scored else self.state.end.value,
            "scored": bool(verdict and verdict.scored),
            "score": float(verdict.score or 0.0) if verdict else 0.0,
            "fault": verdict.fault.value if verdict else "",
            "reason": verdict.reason if verdict else "",
        }


def _space(obs: str, pad_id: int, length: int) -> spaces.Space[Any]:
    if obs == "onehot_ids":
        return spaces.MultiDiscrete(np.full(length, pad_id + 1, dtype=np.int64))
    ids = spaces.Box(0, pad_id, (length,), np.int64)
    if obs == "ids":
        return ids
    flags = spaces.Box(0, 1, (length,), np.int8)
    return spaces.Dict(
        {"input_ids": ids, "attention_mask": flags, "loss_mask": flags, "length": spaces.Box(0, length, (1,), np.int64)},
    )


def make_token_env(*, name: str, **kwargs: Any) -> TokenEnv:
    """Build a TokenEnv, as Gymnasium's entry point; settings unknown to TokenEnv are passed to the environment."""
    own, rest = token_env_settings(kwargs)
    return TokenEnv(env={"name": name, **rest}, **own)


def token_env_settings(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into those of TokenEnv and those of the wrapped environment.

    >>> token_env_settings({"obs": "ids", "digits": 2})
    ({'obs': 'ids'}, {'digits': 2})
    """
    own = {"tokenizer", "obs", "split", "max_new_tokens", "max_length", "max_turn_tokens", "on_length", "render_mode"}
    return {k: v for k, v in kwargs.items() if k in own}, {k: v for k, v in kwargs.items() if k not in own}
