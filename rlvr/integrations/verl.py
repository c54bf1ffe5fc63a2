"""Adapter for verl: `compute_score` for single answers, and an agent loop for whole conversations with the tokens of rlvr.

    make_compute_score      `reward.custom_reward_function.path`                       verifies one text
    make_agent_loop_class   `actor_rollout_ref.rollout.agent.agent_loop_config_path`   token ids, mask, log-probabilities and score

verl cannot leave an answer out, so an answer that could not be verified stops the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from rlvr.contracts import Completion, Environment, Request
from rlvr.errors import EnvError
from rlvr.integrations.rows import find_task, format_task_key, make_row, parse_split_and_index, require_score, warn_if_untested
from rlvr.integrations.texts import FinalTextVerifier
from rlvr.integrations.tokens import TokenConversationRunner, TokenRow, make_completion, make_token_conversation_runner
from rlvr.integrations.tokens import make_token_row as played_row
from rlvr.rollout.rollout_request import RolloutRequest

TESTED_VERSION = "0.9.1"
warn_if_untested("verl", TESTED_VERSION)

DATA_SOURCE = "rlvr"
"""`data_source` and `agent_name` of the rows."""
SINGLE_TURN_COUNT = 2
"""The `num_turns` of verl for one prompt and one answer."""


def make_verl_row(environment: Environment, split: str, index: int) -> dict[str, Any]:
    """Make a row of verl."""
    row = make_row(environment.task(split, index), split, index)
    extra = {"split": split, "index": index, "task_id": row["task_id"]}
    return {
        "data_source": DATA_SOURCE,
        "agent_name": DATA_SOURCE,
        "prompt": row["prompt"],
        "reward_model": {"style": "rule", "ground_truth": format_task_key(split, index, row["prompt"])},
        "extra_info": extra,
    }


def make_compute_score(environment: Environment, *, workers: int = 8, call_timeout_s: float = 600.0) -> Callable[..., dict[str, float]]:
    """Make verl's `compute_score` for a single-turn environment.

    Rows with more turns raise EnvError: their text includes tool output.
    """
    scorer = FinalTextVerifier(environment, workers=workers, call_timeout_s=call_timeout_s)

    def compute_score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None, **settings: Any
    ) -> dict[str, float]:
        turns = (extra_info or {}).get("num_turns")
        if turns is not None and int(turns) > SINGLE_TURN_COUNT:
            raise EnvError(f"the text of {int(turns)} turns includes tool output, so it cannot be verified; use the agent loop")
        task = find_task(environment, parse_split_and_index(ground_truth))
        return {"score": require_score(scorer.verify_all([task], [solution_str])[0], "verl")}

    setattr(compute_score, "close", scorer.close)  # noqa: B010 -- a function has no such attribute for type checkers
    return compute_score


def make_agent_loop_class(
    environment: Environment, base: Any, output: Callable[..., Any], *, stop_ids: Iterable[int] = (), call_timeout_s: float = 600.0
) -> type:
    """Make a subclass of verl's `AgentLoopBase` for an environment.

    Args:
        environment: any environment.
        base: verl's `AgentLoopBase`.
        output: verl's `AgentLoopOutput`.
        stop_ids: stop token ids of the engine besides EOS.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """
    players: list[TokenConversationRunner] = []  # one per process; verl makes an instance of the class for each row

    def player_in(loop: Any) -> TokenConversationRunner:
        if not players:
            limits = loop.config.actor_rollout_ref.rollout
            room = int(limits.response_length)
            longest = int(limits.prompt_length) + room
            made = make_token_conversation_runner(
                environment, loop.tokenizer, stop_ids=stop_ids, max_new_tokens=room, max_length=longest, call_timeout_s=call_timeout_s
            )
            players.append(made)
        return players[0]

    class RlvrLoop(base):
        """Run one conversation for each row."""

        async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
            """Run the conversation of a row, and return the output of verl."""
            player = player_in(self)
            named = {**parse_split_and_index(row["extra_info"]), "prompt": [dict(message) for message in row["raw_prompt"]]}
            task, request_id = find_task(environment, named), uuid4().hex
            known: list[bool] = []

            async def generate(request: Request) -> Completion:
                settings = {**sampling_params, "max_tokens": request.max_tokens, "logprobs": True}
                said = await self.server_manager.generate(request_id=request_id, prompt_ids=list(request.prompt), sampling_params=settings)
                known.append(bool(said.log_probs))
                return make_completion(said.token_ids, said.log_probs or None, player.mdp.tokenizer.stop_ids)

            episode = await player.run_conversation(RolloutRequest(task, task.id, seed=0), generate)
            played = played_row(episode, player.mdp.tokenizer.eos_id)
            _check_length(played, task.id, int(self.config.actor_rollout_ref.rollout.response_length))
            return output(**_make_output(played, has_logprobs=all(known)))

    return RlvrLoop


def _check_length(row: TokenRow, task_id: str, max_response_tokens: int) -> None:
    """Raise EnvError if a conversation has more tokens after its prompt than verl keeps."""
    if len(row.response_ids) > max_response_tokens:
        raise EnvError(
            f"task {task_id!r} took {len(row.response_ids)} tokens after its prompt, and verl keeps {max_response_tokens}; raise "
            "data.max_response_length, or lower data.max_prompt_length, which limits the sum of both"
        )


def _make_output(row: TokenRow, *, has_logprobs: bool) -> dict[str, Any]:
    """Make the fields of the output of verl."""
    return {
        "prompt_ids": row.prompt_ids,
        "response_ids": row.response_ids,
        "response_mask": row.action_mask,
        "response_logprobs": row.logprobs if has_logprobs else None,
        "reward_score": require_score(row.verdict, "verl"),
        "num_turns": 2 * row.turns,
        "metrics": {},
        "extra_fields": {"turn_scores": [], "tool_rewards": []},
    }
