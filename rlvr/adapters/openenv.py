"""OpenEnv: an environment as a server, one conversation for each session.

    environment_of   a subclass of OpenEnv's `Environment`; turns and what is read next are texts

An answer that could not be judged is an error of the step, and has no reward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlvr.adapters.rows import agreed, score_of, task_of
from rlvr.adapters.texts import Conversation, World
from rlvr.contracts import Environment
from rlvr.errors import ConfigError, EnvError
from rlvr.rollout.draws import seed_of

TESTED = "0.10.0"
agreed("openenv", TESTED)


def environment_of(
    environment: Environment, base: Any, observation: Callable[..., Any], state: Callable[..., Any], *, split: str = "train",
    count: int = 1000, deadline_s: float = 600.0,
) -> type:  # fmt: skip
    """A subclass of OpenEnv's `Environment`. Tools are described in the first text, their results are texts.

    Args:
        environment: any environment.
        base: OpenEnv's `Environment`.
        observation: a subclass of OpenEnv's `Observation` with the field `text`.
        state: OpenEnv's `State`.
        split: the split of a reset that names none.
        count: of a reset that names no index, the task is its seed, counted within so many.
        deadline_s: how long one call of a session, or one verdict, may take.
    """
    world = World(environment, deadline_s=deadline_s)

    class RlvrEnvironment(base):
        """One conversation."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.talk: Conversation | None = None
            self.episode_id: str | None = None

        def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Any:
            """Begin the conversation of a row; without one, of the task that the seed stands for."""
            self.close()
            if row.get("index") is None and seed is None:
                raise ConfigError("a reset names no task; give split and index, as in the rows that rlvr wrote, or a seed")
            index = seed % count if row.get("index") is None and seed is not None else row.get("index")
            task = task_of(environment, {**row, "split": row.get("split") or split, "index": index})
            self.episode_id = episode_id
            self.talk = world.begin(task, seed=seed_of("world", task.id))
            if self.talk.trouble:
                raise EnvError(self.talk.trouble)
            return observation(text=_as_text(self.talk.prompt()))

        def step(self, action: Any, timeout_s: float | None = None, **named: Any) -> Any:
            """One turn of the policy."""
            if self.talk is None:
                raise EnvError("step was called before reset")
            heard = self.talk.say(str(action.text))
            if not self.talk.over:
                return observation(text=_as_text(heard))
            return observation(text="", done=True, reward=score_of(self.talk.verdict(), "OpenEnv"))

        @property
        def state(self) -> Any:
            """How many turns there were."""
            return state(episode_id=self.episode_id, step_count=len(self.talk.turns) if self.talk else 0)

        def close(self) -> None:
            """Close the session."""
            if self.talk is not None:
                self.talk.close()

    return RlvrEnvironment


def _as_text(messages: Any) -> str:
    return "\n\n".join(message["content"] for message in messages)
