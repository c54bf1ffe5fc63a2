"""Adapter for ms-swift: a reward class for single answers, and an environment for its GYM scheduler.

    make_reward_class        `orms["rlvr"] = ...`, `--reward_funcs rlvr`                 verifies one text
    make_environment_class   `envs["rlvr"] = ...`, `--use_gym_env true --gym_env rlvr`   whole conversations; turns are texts

ms-swift cannot leave an answer out, so an answer that could not be verified stops the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import Environment
from rlvr.errors import ConfigError, EnvError
from rlvr.integrations.rows import find_task, format_task_key, make_row, parse_split_and_index, require_score, warn_if_untested
from rlvr.integrations.texts import FinalTextVerifier, TextConversation, TextConversationFactory
from rlvr.rollout.rollout_request import derive_seed
from rlvr.turns import extract_final_text

TESTED_VERSION = "4.6.0"
warn_if_untested("ms-swift", TESTED_VERSION)


def make_swift_row(environment: Environment, split: str, index: int) -> dict[str, Any]:
    """Make a row of ms-swift."""
    row = make_row(environment.task(split, index), split, index)
    label = format_task_key(split, index, row["prompt"])
    return {"messages": row["prompt"], "label": label, "env_config": {"name": "rlvr", "label": label}}


def make_reward_class(environment: Environment, base: Any, *, workers: int = 8, call_timeout_s: float = 600.0) -> type:
    """Make a subclass of ms-swift's `ORM` for a single-turn environment.

    Args:
        environment: a single-turn environment.
        base: ms-swift's `ORM`.
        workers: number of concurrent verifications.
        call_timeout_s: timeout of one verification, in seconds.
    """
    scorer = FinalTextVerifier(environment, workers=workers, call_timeout_s=call_timeout_s)

    class RlvrReward(base):
        """The score of each completion."""

        def __call__(self, completions: Sequence[Any], label: Sequence[str] | None = None, **columns: Any) -> list[float]:
            """Score a batch."""
            if label is None:
                raise ConfigError("the data has no column 'label'; use the rows of make_swift_row, which identify the task")
            tasks = [find_task(environment, parse_split_and_index(text)) for text in label]
            return [
                require_score(verdict, "ms-swift")
                for verdict in scorer.verify_all(tasks, [extract_final_text(said) for said in completions])
            ]

    return RlvrReward


def make_environment_class(environment: Environment, base: Any, *, call_timeout_s: float = 600.0) -> type:
    """Make a subclass of ms-swift's `Env`. A system message describes the tools; their results are user messages.

    Args:
        environment: any environment; ms-swift's `--max_turns` must be at least its `max_turns`.
        base: ms-swift's `Env`.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """
    world = TextConversationFactory(environment, call_timeout_s=call_timeout_s)

    class RlvrEnv(base):
        """A conversation."""

        def __init__(self, env_config: Any = None) -> None:
            super().__init__(env_config)
            self.conversation: TextConversation | None = None

        async def reset(self, request: Any) -> tuple[str, dict[str, Any], str]:
            """Open the session; return the question and the system message."""
            config = (getattr(request, "data_dict", None) or {}).get("env_config") or {}
            task = find_task(environment, parse_split_and_index(config.get("label")))
            self.conversation = await world.start_conversation_async(task, seed=derive_seed("world", task.id))
            if self.conversation.failure:
                raise EnvError(self.conversation.failure)
            prompt = self.conversation.build_prompt()
            system = prompt[0]["content"] if prompt[0]["role"] == "system" else ""
            asked = prompt[1:] if system else prompt
            if [message["role"] for message in asked] != ["user"]:
                raise ConfigError(f"ms-swift's Env begins with one message of the user, and task {task.id!r} has {len(asked)}")
            return asked[0]["content"], {}, system

        async def step(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, float, bool, dict[str, Any]]:
            """Handle one turn of the policy, the last message."""
            if self.conversation is None:
                raise EnvError("step was called before reset")
            said = await asyncio.to_thread(self.conversation.step_text, extract_final_text(messages))
            if not self.conversation.done:
                return "\n\n".join(message["content"] for message in said), 0.0, False, {}
            return "", require_score(await asyncio.to_thread(self.conversation.finish_and_verify), "ms-swift"), True, {}

        async def close(self) -> None:
            """Close the session."""
            if self.conversation is not None:
                self.conversation.close()

    return RlvrEnv
