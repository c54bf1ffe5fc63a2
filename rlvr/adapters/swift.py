"""Adapter for ms-swift: a reward class for single answers, and an environment for its GYM scheduler.

    make_reward_class        `orms["rlvr"] = ...`, `--reward_funcs rlvr`                 verifies one text
    make_environment_class   `envs["rlvr"] = ...`, `--use_gym_env true --gym_env rlvr`   whole conversations; turns are texts

ms-swift cannot leave an answer out, so an answer that could not be verified stops the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.adapters.rows import agreed, label_of, labelled, row_of, score_of, task_of
from rlvr.adapters.texts import Conversation, Scorer, World, last_said
from rlvr.contracts import Environment
from rlvr.errors import ConfigError, EnvError
from rlvr.rollout.draws import seed_of

TESTED = "4.6.0"
agreed("ms-swift", TESTED)


def swift_row(environment: Environment, split: str, index: int) -> dict[str, Any]:
    """Make a row of ms-swift."""
    row = row_of(environment.task(split, index), split, index)
    label = label_of(split, index, row["prompt"])
    return {"messages": row["prompt"], "label": label, "env_config": {"name": "rlvr", "label": label}}


def reward_class_of(environment: Environment, base: Any, *, workers: int = 8, deadline_s: float = 600.0) -> type:
    """Make a subclass of ms-swift's `ORM` for a single-turn environment.

    Args:
        environment: a single-turn environment.
        base: ms-swift's `ORM`.
        workers: number of concurrent verifications.
        deadline_s: timeout of one verification, in seconds.
    """
    scorer = Scorer(environment, workers=workers, deadline_s=deadline_s)

    class RlvrReward(base):
        """The score of each completion."""

        def __call__(self, completions: Sequence[Any], label: Sequence[str] | None = None, **columns: Any) -> list[float]:
            """Score a batch."""
            if label is None:
                raise ConfigError("the data has no column 'label'; use the rows of make_swift_row, which identify the task")
            tasks = [task_of(environment, labelled(text)) for text in label]
            return [score_of(verdict, "ms-swift") for verdict in scorer.verdicts(tasks, [last_said(said) for said in completions])]

    return RlvrReward


def environment_of(environment: Environment, base: Any, *, deadline_s: float = 600.0) -> type:
    """Make a subclass of ms-swift's `Env`. A system message describes the tools; their results are user messages.

    Args:
        environment: any environment; ms-swift's `--max_turns` must be at least its `max_turns`.
        base: ms-swift's `Env`.
        deadline_s: timeout of one call of a session and of one verification, in seconds.
    """
    world = World(environment, deadline_s=deadline_s)

    class RlvrEnv(base):
        """A conversation."""

        def __init__(self, env_config: Any = None) -> None:
            super().__init__(env_config)
            self.talk: Conversation | None = None

        async def reset(self, request: Any) -> tuple[str, dict[str, Any], str]:
            """Open the session; return the question and the system message."""
            config = (getattr(request, "data_dict", None) or {}).get("env_config") or {}
            task = task_of(environment, labelled(config.get("label")))
            self.talk = await asyncio.to_thread(world.begin, task, seed=seed_of("world", task.id))
            if self.talk.trouble:
                raise EnvError(self.talk.trouble)
            prompt = self.talk.prompt()
            system = prompt[0]["content"] if prompt[0]["role"] == "system" else ""
            asked = prompt[1:] if system else prompt
            if [message["role"] for message in asked] != ["user"]:
                raise ConfigError(f"ms-swift's Env begins with one message of the user, and task {task.id!r} has {len(asked)}")
            return asked[0]["content"], {}, system

        async def step(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, float, bool, dict[str, Any]]:
            """Handle one turn of the policy, the last message."""
            if self.talk is None:
                raise EnvError("step was called before reset")
            said = await asyncio.to_thread(self.talk.say, last_said(messages))
            if not self.talk.over:
                return "\n\n".join(message["content"] for message in said), 0.0, False, {}
            return "", score_of(await asyncio.to_thread(self.talk.verdict), "ms-swift"), True, {}

        async def close(self) -> None:
            """Close the session."""
            if self.talk is not None:
                self.talk.close()

    return RlvrEnv
