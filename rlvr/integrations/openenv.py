"""Adapter for OpenEnv: an environment as a server, with one conversation per session.

    make_environment_class   a subclass of OpenEnv's `Environment`; turns and replies are texts

`step` raises an error for an answer that could not be verified.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlvr.contracts import Environment
from rlvr.errors import ConfigError, EnvError
from rlvr.integrations.rows import find_task, require_score, warn_if_untested
from rlvr.integrations.texts import TextConversation, TextConversationFactory
from rlvr.rollout.rollout_request import derive_seed

TESTED_VERSION = "0.10.0"
warn_if_untested("openenv", TESTED_VERSION)


def make_environment_class(
    environment: Environment, base: Any, observation: Callable[..., Any], state: Callable[..., Any], *, split: str = "train",
    count: int = 1000, call_timeout_s: float = 600.0,
) -> type:  # fmt: skip
    """Make a subclass of OpenEnv's `Environment`. The first text describes the tools; their results are texts.

    Args:
        environment: any environment.
        base: OpenEnv's `Environment`.
        observation: a subclass of OpenEnv's `Observation` with the field `text`.
        state: OpenEnv's `State`.
        split: the split of a reset without a split.
        count: for a reset without an index: the task is its seed modulo this number, or modulo the size of a smaller split.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """
    world = TextConversationFactory(environment, call_timeout_s=call_timeout_s)

    class RlvrEnvironment(base):
        """A conversation."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.conversation: TextConversation | None = None
            self.episode_id: str | None = None

        def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Any:
            """Begin the conversation of a row; without a row, that of the seed."""
            self.close()
            task = find_task(environment, _add_index_from_seed(environment, {**row, "split": row.get("split") or split}, seed, count))
            conversation = world.start_conversation(task, seed=derive_seed("world", task.id))
            if conversation.failure:
                raise EnvError(conversation.failure)
            self.conversation, self.episode_id = conversation, episode_id
            return observation(text=_join_contents(conversation.build_prompt()))

        def step(self, action: Any, timeout_s: float | None = None, **named: Any) -> Any:
            """Handle one turn of the policy."""
            if self.conversation is None:
                raise EnvError("there is no conversation: step was called before reset, after a failed reset, or after close; call reset")
            heard = self.conversation.step_text(_get_action_text(action))
            if not self.conversation.done:
                return observation(text=_join_contents(heard))
            return observation(text="", done=True, reward=require_score(self.conversation.finish_and_verify(), "OpenEnv"))

        @property
        def state(self) -> Any:
            """Return the number of turns."""
            return state(episode_id=self.episode_id, step_count=len(self.conversation.turns) if self.conversation else 0)

        def close(self) -> None:
            """Close the session."""
            conversation, self.conversation = self.conversation, None
            if conversation is not None:
                conversation.close()

    return RlvrEnvironment


def _get_action_text(action: Any) -> str:
    if not isinstance(action.text, str):
        raise ConfigError(f"the text of an action is {action.text!r:.80}; it must be a string, the turn of the policy")
    return str(action.text)


def _add_index_from_seed(environment: Environment, row: dict[str, Any], seed: object, count: int) -> dict[str, Any]:
    """Complete a row without an index with the index of the seed."""
    split = row["split"]
    if row.get("index") is not None:
        return row
    if seed is None:
        raise ConfigError("a reset names no task; give split and index, as in the rows that rlvr wrote, or a seed")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"the seed of a reset is {seed!r:.80}; it must be a whole number, or leave it out and give split and index")
    size = environment.num_tasks(split) if isinstance(split, str) and split in environment.splits else None
    return {**row, "index": seed % (count if size is None else max(1, min(count, size)))}


def _join_contents(messages: Any) -> str:
    return "\n\n".join(message["content"] for message in messages)
