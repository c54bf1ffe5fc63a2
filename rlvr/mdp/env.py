"""TokenEnv: a task as a Gymnasium environment whose action is one token, or a whole turn as text.

>>> import gymnasium
>>> env = gymnasium.make("rlvr:rlvr/Arithmetic-v0", obs="ids")
>>> observation, info = env.reset(seed=7)
>>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
>>> observation, reward, terminated, truncated, info = env.step("42")

The reward is 0.0 until the episode ends, then the verifier's score, also if the verdict has step rewards (`Verdict.step_rewards`; the
learner assigns them to their tokens). An episode that could not be verified ends truncated with reward 0.0 and `info["is_scored"]` False:
exclude it, because it is not a wrong answer. No TimeLimit wrapper is registered: it would end the episode without running the verifier.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlvr.contracts import Environment, Plugin, Session, Tokenizer
from rlvr.contracts.environment import NUM_PROCEDURAL_TASKS
from rlvr.episode import StopReason, find_path
from rlvr.errors import ConfigError, EnvError, format_suggestion
from rlvr.hints import Hinted, add_usage_to_errors
from rlvr.mdp.limits import get_num_tasks
from rlvr.mdp.token_mdp import ConversationState, TokenMDP
from rlvr.mdp.tokenizers import load_text_tokenizer, load_tokenizer
from rlvr.registry.plugins import build_from_config, get_parameters, load_factory
from rlvr.synonyms import translate_keywords
from rlvr.task import Task, Verdict

TOKEN_OBSERVATIONS = ("dict", "ids", "onehot_ids")
OBSERVATION_KINDS = (*TOKEN_OBSERVATIONS, "text")
MAX_SAMPLED_CHARACTERS = 16
"""The length of a text that `action_space.sample()` draws; an action may be longer."""
_ROLE_LABELS = {"user": "env"}


class AnyText(spaces.Text):
    """A Gymnasium space of all texts; samples are short texts of its characters."""

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a text."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "AnyText()"


class TokenEnv(Hinted, gymnasium.Env[Any, Any]):
    """A Gymnasium environment over one environment and one tokenizer; each step appends one token.

    An action may also be a text: a whole turn of the policy, with the token that ends it.

    Observations; those of tokens are padded on the right to `max_length`:
        dict          input_ids, attention_mask, loss_mask (1 at policy tokens), length
        ids           Box of ids; the pad id is V, one past the last action
        onehot_ids    the same ids as MultiDiscrete, which stable-baselines3 and others one-hot encode
        text          what the environment said since the policy's last turn; actions are texts

    >>> env = TokenEnv("arithmetic", obs="text")
    >>> question, info = env.reset(seed=0)
    >>> env.step("It is 7.")[4]["stop_reason"]
    'terminated'
    """

    _synonyms = {
        "env": "environment",
        **dict.fromkeys(("verifier", "rubric"), "environment.verifier"),
        "evaluate": "environment.evaluate",
        **dict.fromkeys(("to_dataset", "get_dataset"), "environment.to_dataset"),
    }
    _hints = {
        "seed": "write env.reset(seed=0)",
        **{
            name: f"it is of the environment inside: write .environment.{call}"
            for name, call in (("task", "task('train', 0)"), ("num_tasks", "num_tasks('train')"), ("splits", "splits"))
        },
    }
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 10}

    @add_usage_to_errors
    def __init__(
        self,
        env: str | dict[str, Any] | Environment,
        *,
        tokenizer: str | Tokenizer | Any = None,
        obs: str = "dict",
        split: str = "",
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        max_turn_tokens: int | None = None,
        on_length: str = "truncate",
        render_mode: str | None = None,
    ) -> None:
        """Build the environment.

        Args:
            env: the environment: a name, a mapping with its settings, or an object.
            tokenizer: a name, a folder or an object; None: characters, or bytes where `obs` is text.
            obs: the observation: `dict`, `ids`, `onehot_ids` or `text`.
            split: the tasks that `reset` draws from; "": the first split.
            max_new_tokens: the most tokens of the policy in an episode.
            max_length: the most tokens of the prompt and all turns.
            max_turn_tokens: the most tokens of the policy in a turn.
            on_length: what a limit on tokens does: `truncate`, or `terminate` for learners that bootstrap the value of a truncated episode.
            render_mode: `ansi`: `render` returns the conversation as text.
        """
        if obs not in OBSERVATION_KINDS:
            raise ConfigError(f"obs is {obs!r}; {format_suggestion(str(obs), OBSERVATION_KINDS)}")
        if on_length not in ("truncate", "terminate"):
            raise ConfigError(f"on_length is {on_length!r}; {format_suggestion(str(on_length), ('truncate', 'terminate'))}")
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"render_mode is {render_mode!r}; allowed: ansi, or none")
        self.tokenizer = load_default_tokenizer(obs) if tokenizer is None else load_tokenizer(tokenizer)
        self.environment: Environment = build_from_config("env", env)
        try:
            self.mdp = TokenMDP(
                self.environment, self.tokenizer, max_new_tokens=max_new_tokens, max_length=max_length, max_turn_tokens=max_turn_tokens
            )
            split = split or self.environment.splits[0]  # evaluation environments have no "train" split
            if split not in self.environment.splits:
                raise ConfigError(f"split is {split!r}; {format_suggestion(str(split), self.environment.splits)}")
        except ConfigError:
            if self.environment is not env and isinstance(self.environment, Plugin):
                self.environment.close()  # close only what was built here
            raise
        self.obs, self.split, self.on_length, self.render_mode = obs, split, on_length, render_mode
        self.pad_id = self.tokenizer.vocab_size
        self.observation_space = _build_observation_space(obs, self.pad_id, self.mdp.max_length)
        self.action_space: Any = AnyText(self._count_sampled_characters()) if obs == "text" else spaces.Discrete(self.tokenizer.vocab_size)
        self.state: ConversationState | None = None
        self.verdict: Verdict | None = None
        self._num_seen_results, self._opening = 0, ""
        # observation buffers, updated token by token; every observation is a copy
        self._ids = np.full(self.mdp.max_length, self.pad_id, dtype=np.int64)
        self._attention = np.zeros(self.mdp.max_length, dtype=np.int8)
        self._action_mask = np.zeros(self.mdp.max_length, dtype=np.int8)

    def __repr__(self) -> str:
        return f"<TokenEnv of {self.environment!r}, obs {self.obs!r}, split {self.split!r}>"

    __str__ = __repr__

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with the task at `options["index"]`, or with one drawn from the seeded generator."""
        super().reset(seed=seed)
        unknown = next((key for key in options or {} if key != "index"), None)
        if unknown is not None:
            raise EnvError(f"reset() has no option {unknown!r}; {format_suggestion(str(unknown), ('index',))}")
        size = get_num_tasks(self.environment, self.split)
        index = (options or {}).get("index")
        if index is None:
            index = self.np_random.integers(NUM_PROCEDURAL_TASKS if size is None else size)
        elif not isinstance(index, int | np.integer) or index < 0 or (size is not None and index >= size):
            raise EnvError(f"there is no task {index!r} in split {self.split!r}; allowed: 0 to {(size or NUM_PROCEDURAL_TASKS) - 1}")
        return self.reset_to_task(self.environment.task(self.split, int(index)))

    def reset_to_task(self, task: Task, *, seed: int = 0, session: Session | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with the given task and session, or a new session with `seed`; the previous session is closed."""
        self._close_session()
        self.state = None
        state = self.mdp.start_conversation(task, seed=seed, session=session)
        if state.session_handle is not None and not self.mdp.has_sessions:
            state.session_handle.open()
        self.state = state
        self.verdict = None
        self._ids.fill(self.pad_id)
        self._attention.fill(0)
        self._action_mask.fill(0)
        self._opening = self.mdp.format_prompt_as_plain_text(state)
        self._update_buffers(0)
        return self._build_observation(), self._build_info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Append one token, or a whole turn as text. At the end of the episode, the reward is the verifier's score."""
        self.step_without_verification(action)
        if self.state is not None and self.state.stop_reason is not None:
            self.set_verdict(self.mdp.verify(self.state))
        return self.build_step_tuple()

    def step_without_verification(self, action: Any) -> bool:
        """Append a token, or a whole turn as text, without verification; return whether the episode is over. The first half of `step`."""
        if self.state is not None:
            self._num_seen_results = len(self.state.step_results)
        if self.obs == "text" and not isinstance(action, str):
            raise EnvError(
                f"action {action!r} is no text; with obs='text' an action is a whole turn of the policy, and with obs='ids' a token id: "
                f"rlvr.make(env, obs='ids')"
            )
        if not isinstance(action, str) or self.state is None:
            return self._append_token(action)
        num_turns = len(self.state.turns)
        for token in [*self.tokenizer.encode(action), self.tokenizer.eos_id]:
            if self._append_token(token) or len(self.state.turns) > num_turns:  # a call in the text may end the turn
                break
        return self.state.stop_reason is not None

    def _append_token(self, action: Any) -> bool:
        state = self.state
        if state is None or state.stop_reason is not None:
            raise EnvError("step() was called with no episode under way; call reset() first")
        try:
            token = operator.index(action)
        except TypeError:
            token = -1
        if not 0 <= token < self.pad_id:
            raise EnvError(f"action {action!r} is no token id; allowed: whole numbers from 0 to {self.pad_id - 1}, or a whole turn as text")
        before = len(state.tokens)
        self.mdp.step_token(state, token)
        self._update_buffers(before)
        return state.stop_reason is not None

    def set_verdict(self, verdict: Verdict) -> None:
        """Store the verdict of a finished episode. The second half of `step`."""
        self.verdict = verdict

    def build_step_tuple(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Build the return value of `step`: observation, reward, terminated, truncated, info."""
        assert self.state is not None
        score = self.verdict.score if self.verdict is not None else None
        if self.verdict is not None and self.verdict.step_rewards:
            score = math.fsum(self.mdp.compute_token_rewards(self.state, self.verdict))  # the same sum as in `Episode.reward`
        end = self.state.stop_reason
        failed = self.verdict is not None and score is None
        by_length = end is StopReason.TRUNCATED and self.on_length == "terminate"
        terminated = not failed and (end is StopReason.TERMINATED or by_length)
        truncated = failed or (end is StopReason.TRUNCATED and not by_length)
        return self._build_observation(), 0.0 if score is None else score, terminated, truncated, self._build_info()

    def render(self) -> str | None:
        """Render the conversation as text."""
        if self.render_mode is None or self.state is None:
            return None
        opening = self.state.session_handle.initial_messages if self.state.session_handle else ()
        lines = [f"{message['role']}: {message['content']}" for message in (*self.state.task.prompt, *opening)]
        turns, heard = self.state.turns, self.state.step_results
        for place, turn in enumerate(turns):
            lines.append(f"policy: {turn.text}")
            if place < len(heard) and (
                place + 1 < len(turns) or self.state.stop_reason is None
            ):  # skip messages that the policy never received
                lines += [
                    f"{_ROLE_LABELS.get(message['role'], message['role'])}: {message['content']}" for message in heard[place].messages
                ]
        if self.state.stop_reason is None:
            lines.append(f"policy: {self.tokenizer.decode(self.state.tokens[self.state.turn_start :])}")
        return "\n".join([*lines, *([f"verdict: {self.verdict.reason}"] if self.verdict is not None else [])])

    def close(self) -> None:
        """Close the session and the environment with its verifier."""
        self._close_session()
        self.environment.close()

    def _count_sampled_characters(self) -> int:
        """Count the characters of the longest sampled text, which with the token that ends it must fit a turn."""
        return max(1, min(MAX_SAMPLED_CHARACTERS, self.mdp.max_new_tokens - 1, self.mdp.max_turn_tokens - 1))

    def _close_session(self) -> None:
        if self.state is not None:
            self.state.close()

    def _update_buffers(self, start: int) -> None:
        """Update the observation buffers with the tokens from `start` on; after a fork, with the branch that the policy sees."""
        assert self.state is not None
        tokens, end = self.state.tokens, len(self.state.tokens)
        if segments := self.state.segments:
            places = [place for a, b in find_path(segments, len(segments) - 1, end) for place in range(a, b)]
            self._ids.fill(self.pad_id)
            self._ids[: len(places)] = [tokens[place] for place in places]
            self._action_mask.fill(0)
            self._action_mask[: len(places)] = [self.state.action_mask[place] for place in places]
            self._attention[:] = np.arange(len(self._attention)) < len(places)
            return
        if end == start + 1:  # the common case: one policy token
            self._ids[start], self._action_mask[start], self._attention[start] = tokens[start], 1, 1
            return
        self._ids[start:end] = tokens[start:]
        self._action_mask[start:end] = self.state.action_mask[start:]
        self._attention[start:end] = 1

    def _build_observation(self) -> Any:
        assert self.state is not None
        if self.obs == "text":
            return self._format_news()
        if self.obs != "dict":
            return self._ids.copy()
        return {
            "input_ids": self._ids.copy(),
            "attention_mask": self._attention.copy(),
            "loss_mask": self._action_mask.copy(),
            "length": np.array([len(self.state.context)], dtype=np.int64),
        }

    def _format_news(self) -> str:
        """Format what the environment said since the policy's last turn: at first the prompt, with a description of the tools."""
        assert self.state is not None
        if self.state.turns:
            told = [message for result in self.state.step_results[self._num_seen_results :] for message in result.messages]
            return "" if self.state.stop_reason is not None else "\n\n".join(map(self.mdp.tool_format.format_as_plain_text, told))
        return self._opening

    def _build_info(self) -> dict[str, Any]:
        """Build the info dict, always with the same keys and types, so that vector environments can batch it."""
        assert self.state is not None
        verdict = self.verdict
        return {
            "task_id": self.state.task.id,
            "prompt": self._opening,
            "turns": len(self.state.completions),
            "text": self.mdp.get_verified_answer(self.state) if verdict is not None else "",
            "stop_reason": ""
            if self.state.stop_reason is None
            else "failed"
            if verdict is not None and not verdict.is_scored
            else self.state.stop_reason.value,
            "is_scored": verdict is not None and verdict.is_scored,
            "score": float(verdict.score or 0.0) if verdict is not None else 0.0,
            "fault": verdict.fault.value if verdict is not None else "",
            "reason": self._format_reason() if verdict is not None else "",
        }

    def _format_reason(self) -> str:
        """Format the reason of the verdict; of a truncated episode with the limit that ended it."""
        assert self.state is not None and self.verdict is not None
        if self.state.stop_reason is not StopReason.TRUNCATED or self.state.truncation_reason != "tokens":
            return self.verdict.reason
        return f"{self.verdict.reason}; the episode was truncated at max_new_tokens={self.mdp.max_new_tokens}"


def load_default_tokenizer(obs: str) -> Tokenizer:
    """Load the tokenizer of a TokenEnv that names none. For texts: `bytes`, which can encode any of them, with tool calls as JSON in tags."""
    if obs != "text":
        return load_tokenizer("chars")
    return load_text_tokenizer()


def _build_observation_space(obs: str, pad_id: int, length: int) -> spaces.Space[Any]:
    if obs == "text":
        return AnyText(MAX_SAMPLED_CHARACTERS)
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
    own, rest = split_token_env_settings(translate_keywords("make", kwargs, keep=get_parameters(load_factory("env", name))))
    return TokenEnv(env={"name": name, **rest}, **own)


def split_token_env_settings(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into those of TokenEnv and those of the wrapped environment.

    >>> split_token_env_settings({"obs": "ids", "digits": 2})
    ({'obs': 'ids'}, {'digits': 2})
    """
    own = {"tokenizer", "obs", "split", "max_new_tokens", "max_length", "max_turn_tokens", "on_length", "render_mode"}
    return {k: v for k, v in kwargs.items() if k in own}, {k: v for k, v in kwargs.items() if k not in own}
