"""Adapter for SkyRL: an environment for skyrl-gym, and a generator for whole conversations with the tokens of rlvr.

    make_environment_class   `skyrl_gym.register(id="rlvr", entry_point=...)`    for the loop of SkyRL; turns are texts
    make_generator_class     a subclass of `GeneratorInterface`                  token ids, loss masks, log-probabilities and rewards

SkyRL cannot leave an answer out, so an answer that could not be verified stops the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rlvr.contracts import Completion, Environment, Request
from rlvr.errors import ConfigError, EnvError
from rlvr.integrations.rows import find_task, format_task_key, make_row, parse_split_and_index, require_score, warn_if_untested
from rlvr.integrations.texts import TextConversation, TextConversationFactory
from rlvr.integrations.tokens import TokenRow, make_completion, make_token_conversation_runner
from rlvr.integrations.tokens import make_token_row as played_row
from rlvr.rollout.rollout_request import RolloutRequest, derive_seed

TESTED_VERSION = "0.4.0"
warn_if_untested("skyrl", TESTED_VERSION)
warn_if_untested("skyrl-gym", TESTED_VERSION)


def make_skyrl_row(environment: Environment, split: str, index: int) -> dict[str, Any]:
    """Make a row of SkyRL."""
    row = make_row(environment.task(split, index), split, index)
    return {
        "data_source": "rlvr",
        "env_class": "rlvr",
        "prompt": row["prompt"],
        "reward_spec": {"method": "rule", "ground_truth": format_task_key(split, index, row["prompt"])},
        "split": split,
        "index": index,
    }


def make_environment_class(
    environment: Environment, base: Any, *, output: Callable[..., Any] = dict, call_timeout_s: float = 600.0
) -> type:
    """Make a subclass of skyrl-gym's `BaseTextEnv`. A system message describes the tools; their results are user messages.

    Args:
        environment: any environment.
        base: skyrl-gym's `BaseTextEnv`.
        output: skyrl-gym's `BaseTextEnvStepOutput`.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """
    world = TextConversationFactory(environment, call_timeout_s=call_timeout_s)

    class RlvrEnv(base):
        """A conversation."""

        def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
            super().__init__()
            self.named = parse_split_and_index(((extras or {}).get("reward_spec") or {}).get("ground_truth"))
            self.max_turns = environment.max_turns
            self.conversation: TextConversation | None = None

        def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
            """Open the session; return the prompt with the tools and the first messages of the session."""
            task = find_task(environment, {**self.named, "prompt": prompt})
            self.conversation = world.start_conversation(task, seed=derive_seed("world", task.id))
            if self.conversation.failure:
                raise EnvError(self.conversation.failure)
            return self.conversation.build_prompt(), {}

        def step(self, action: str) -> Any:
            """Handle one turn of the policy. On an error SkyRL never calls `close`, so `verdict` closes the session."""
            if self.conversation is None:
                raise EnvError("step was called before init")
            observations = self.conversation.step_text(action)
            over = self.conversation.done
            reward = require_score(self.conversation.finish_and_verify(), "SkyRL") if over else 0.0
            return output(observations=[] if over else observations, reward=reward, done=over, metadata={})

        def close(self) -> None:
            """Close the session."""
            if self.conversation is not None:
                self.conversation.close()

    return RlvrEnv


def make_generator_class(
    environment: Environment, base: Any, *, stop_ids: Iterable[int] = (), max_new_tokens: int | None = None, max_length: int | None = None,
    call_timeout_s: float = 600.0,
) -> type:  # fmt: skip
    """Make a subclass of SkyRL's `GeneratorInterface`: `RlvrGenerator(inference_engine_client, tokenizer)`.

    Args:
        environment: any environment.
        base: SkyRL's `GeneratorInterface`.
        stop_ids: stop token ids of the engine besides EOS.
        max_new_tokens: maximum tokens of the policy per conversation; None: the value of the environment.
        max_length: maximum tokens of prompt and completion; None: the value of the environment.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """

    class RlvrGenerator(base):
        """Run one conversation for each prompt."""

        def __init__(self, inference_engine_client: Any, tokenizer: Any) -> None:
            self.engine = inference_engine_client
            self.player = make_token_conversation_runner(
                environment,
                tokenizer,
                stop_ids=stop_ids,
                max_new_tokens=max_new_tokens,
                max_length=max_length,
                call_timeout_s=call_timeout_s,
            )

        async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
            """Run the conversations of a batch; keep the order."""
            extras = input_batch.get("env_extras")
            if extras is None:
                raise ConfigError("the batch has no env_extras; use the rows of make_skyrl_row, which identify the task")
            params, ids = input_batch.get("sampling_params") or {}, input_batch.get("trajectory_ids")
            names = [str(ids[place] if ids else place) for place in range(len(extras))]
            rows = await asyncio.gather(*(self._play(params, extra, name) for extra, name in zip(extras, names, strict=True)))
            return {**_make_output([row for row, _ in rows], has_logprobs=all(known for _, known in rows)), "trajectory_ids": ids}

        async def _play(self, params: Mapping[str, Any], extra: Mapping[str, Any], name: str) -> tuple[TokenRow, bool]:
            known: list[bool] = []
            task = find_task(environment, parse_split_and_index((extra.get("reward_spec") or {}).get("ground_truth")))

            async def generate(request: Request) -> Completion:
                asked = {
                    "prompt_token_ids": [list(request.prompt)],
                    "session_ids": [name],
                    "sampling_params": {**params, "max_tokens": request.max_tokens},
                }
                said = await self.engine.generate(asked)
                logprobs = (said.get("response_logprobs") or [None])[0]
                known.append(logprobs is not None)
                return make_completion(said["response_ids"][0], logprobs, self.player.mdp.tokenizer.stop_ids)

            episode = await self.player.run_conversation(RolloutRequest(task, task.id, seed=0), generate)
            return played_row(episode, self.player.mdp.tokenizer.eos_id), all(known)

        def close(self) -> None:
            """Stop the threads and close the environment."""
            self.player.close()

    return RlvrGenerator


def _make_output(rows: list[TokenRow], *, has_logprobs: bool) -> dict[str, Any]:
    """Make the output of SkyRL."""
    return {
        "prompt_token_ids": [row.prompt_ids for row in rows],
        "response_ids": [row.response_ids for row in rows],
        "rewards": [require_score(row.verdict, "SkyRL") for row in rows],
        "loss_masks": [row.action_mask for row in rows],
        "stop_reasons": ["length" if row.truncated else "stop" for row in rows],
        "rollout_metrics": {f"rlvr/end_{end}": float(count) for end, count in Counter(row.stop_reason for row in rows).items()},
        "rollout_logprobs": [row.logprobs for row in rows] if has_logprobs else None,
        "is_last_step": None,
    }
