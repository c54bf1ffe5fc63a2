"""Adapter for OpenRLHF: a reward function for single answers, and an agent executor for whole conversations with the tokens of rlvr.

    make_reward_function   `--reward.remote_url FILE.py`         verifies one text
    make_executor_class    `--train.agent_func_path FILE.py`     token ids, action ranges, log-probabilities and reward
    make_instance_class    `--train.agent_func_path FILE.py`     for the loop of OpenRLHF over texts

OpenRLHF cannot leave an answer out, so an answer that could not be verified stops the run. OpenRLHF only logs errors of a reward function,
so prefer the executor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from itertools import groupby
from typing import Any

from rlvr.contracts import Completion, Environment, Request
from rlvr.errors import ConfigError, EnvError
from rlvr.integrations.rows import find_task, format_task_key, make_row, parse_split_and_index, require_score, warn_if_untested
from rlvr.integrations.texts import FinalTextVerifier, TextConversation, TextConversationFactory
from rlvr.integrations.tokens import TokenConversationRunner, make_completion, make_token_conversation_runner
from rlvr.integrations.tokens import make_token_row as played_row
from rlvr.mdp.tokenizers import HFTokenizer
from rlvr.rollout.rollout_request import RolloutRequest, derive_seed

TESTED_VERSION = "0.11.2"
warn_if_untested("openrlhf", TESTED_VERSION)


def make_openrlhf_row(environment: Environment, split: str, index: int) -> dict[str, Any]:
    """Make a row of OpenRLHF: the prompt as messages (`--data.apply_chat_template`), and a label that identifies the task."""
    row = make_row(environment.task(split, index), split, index)
    return {"input": row["prompt"], "label": format_task_key(split, index, row["prompt"])}


def make_reward_function(
    environment: Environment, *, stop_texts: Sequence[str] = (), tensor: Callable[[list[float]], Any] = list, workers: int = 8,
    call_timeout_s: float = 600.0,
) -> Callable[..., dict[str, Any]]:  # fmt: skip
    """Make a `reward_func(queries, prompts, labels)` for a single-turn environment.

    Args:
        environment: a single-turn environment.
        stop_texts: the texts of the stop tokens, such as `<|im_end|>`; OpenRLHF keeps them at the end of a query.
        tensor: converts the rewards to a tensor: `torch.tensor`.
        workers: number of concurrent verifications.
        call_timeout_s: timeout of one verification, in seconds.
    """
    scorer = FinalTextVerifier(environment, workers=workers, call_timeout_s=call_timeout_s)

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
        texts = []
        for query, prompt in zip(queries, prompts, strict=True):
            if not query.startswith(prompt):
                raise EnvError(f"the query {query!r:.80} does not begin with its prompt, so the answer in it is unknown; use the executor")
            texts.append(_strip_stop_text(query.removeprefix(prompt), stop_texts))
        tasks = [find_task(environment, parse_split_and_index(label)) for label in labels]
        scores = [require_score(verdict, "OpenRLHF") for verdict in scorer.verify_all(tasks, texts)]
        return {"rewards": tensor(scores), "scores": tensor(scores), "extra_logs": {}}

    setattr(reward_func, "close", scorer.close)  # noqa: B010 -- a function has no such attribute for type checkers
    return reward_func


def _strip_stop_text(text: str, ends: Sequence[str]) -> str:
    return next((text.removesuffix(end) for end in ends if end and text.endswith(end)), text)


def make_executor_class(environment: Environment, base: Any, *, stop_ids: Iterable[int] = (), call_timeout_s: float = 600.0) -> type:
    """Make a subclass of OpenRLHF's `AgentExecutorBase` for an environment; rlvr renders the prompt.

    Args:
        environment: any environment.
        base: OpenRLHF's `AgentExecutorBase`.
        stop_ids: stop token ids of the engine besides EOS.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """
    players: dict[int, TokenConversationRunner] = {}

    class AgentExecutor(base):
        """Run one conversation for each prompt."""

        async def execute(
            self, prompt: Any, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, llm_engine: Any, images: Any = None
        ) -> dict[str, Any]:
            """Run the conversation of a label, and return it in the format of OpenRLHF."""
            if images is not None:
                raise ConfigError("the data has images, and environments of rlvr have texts only; remove --data.image_key")
            if max_length not in players:
                players[max_length] = make_token_conversation_runner(
                    environment, hf_tokenizer, stop_ids=stop_ids, max_length=max_length, call_timeout_s=call_timeout_s
                )
            player, task = players[max_length], find_task(environment, parse_split_and_index(label))

            async def generate(request: Request) -> Completion:
                settings = deepcopy(sampling_params)
                settings.max_tokens = request.max_tokens
                answer = (await llm_engine.generate(list(request.prompt), settings)).outputs[0]
                tokens, given = list(answer.token_ids), answer.logprobs if sampling_params.logprobs is not None else None
                logprobs = None if given is None else [entry[token].logprob for token, entry in zip(tokens, given, strict=True)]
                return make_completion(tokens, logprobs, player.mdp.tokenizer.stop_ids)

            episode = await player.run_conversation(RolloutRequest(task, task.id, seed=0), generate)
            played = played_row(episode, player.mdp.tokenizer.eos_id)
            score, start = require_score(played.verdict, "OpenRLHF"), len(played.prompt_ids)
            return {
                "prompt": prompt,
                "label": label,
                "images": None,
                "mm_train_inputs": None,
                "reward": score,
                "scores": score,
                "observation_tokens": played.prompt_ids + played.response_ids,
                "action_ranges": _find_action_ranges(played.action_mask, start),
                "rollout_log_probs": None if sampling_params.logprobs is None else [0.0] * start + played.logprobs,
                "truncated": played.truncated,
                "extra_logs": {"turns": float(played.turns)},
            }

    return AgentExecutor


def _find_action_ranges(mask: Sequence[int], offset: int) -> list[tuple[int, int]]:
    """Return the positions of the policy's tokens, as pairs of start and exclusive end.

    >>> _find_action_ranges([1, 1, 0, 1], 10)
    [(10, 12), (13, 14)]
    """
    found, at = [], offset
    for own, run in groupby(mask):
        length = len(list(run))
        found += [(at, at + length)] if own else []
        at += length
    return found


def _decode_reversibly(tokenizer: HFTokenizer, ids: list[int]) -> str:
    """Decode ids for a framework that encodes the text again; an error if that would give other ids."""
    text = str(tokenizer.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    if list(tokenizer.tokenizer.encode(text, add_special_tokens=False)) != ids:
        raise EnvError(f"the reply {text!r:.80} cannot be passed as text: it would be encoded differently; use the executor")
    return text


def make_instance_class(
    environment: Environment, base: Any, tokenizer: Any, *, stop_texts: Sequence[str] = (), tensor: Callable[[float], Any] = float,
    call_timeout_s: float = 600.0,
) -> type:  # fmt: skip
    """Make a subclass of OpenRLHF's `AgentInstanceBase`, for its loop that concatenates texts and encodes them.

    The run stops if a text of the environment would be encoded differently than by rlvr (for example, a spelled control token): such a text
    could forge a turn. The executor has no such limit.

    Args:
        environment: any environment.
        base: OpenRLHF's `AgentInstanceBase`.
        tokenizer: the loaded tokenizer of the policy; its chat template writes the text after a turn.
        stop_texts: the texts of the stop tokens; OpenRLHF keeps them at the end of an action.
        tensor: converts a reward to a tensor: `torch.tensor`.
        call_timeout_s: timeout of one call of a session and of one verification, in seconds.
    """
    world, writer = TextConversationFactory(environment, call_timeout_s=call_timeout_s), HFTokenizer(tokenizer)

    class AgentInstance(base):
        """A conversation."""

        def __init__(self, *rest: Any, **named: Any) -> None:
            self.conversation: TextConversation | None = None

        async def reset(self, states: dict[str, Any], **named: Any) -> dict[str, Any]:
            """Begin the conversation of a label. The prompt is rendered again if the session adds tools or messages."""
            task = find_task(environment, parse_split_and_index(states["label"]))
            self.conversation = await world.start_conversation_async(task, seed=derive_seed("world", task.id))
            if not (self.conversation.tools or self.conversation.initial_messages):
                return {"observation": states["observation"]}
            return {"observation": _decode_reversibly(writer, writer.render(self.conversation.build_prompt()))}

        async def step(self, states: dict[str, Any], **named: Any) -> dict[str, Any]:
            """Handle one turn of the policy."""
            conversation = self.conversation
            if conversation is None:
                raise EnvError("step was called before reset")
            action = states["action_text"]
            text = _strip_stop_text(action, stop_texts)
            messages = await asyncio.to_thread(conversation.step_text, text, truncated=bool(stop_texts) and text == action)
            score = require_score(await asyncio.to_thread(conversation.finish_and_verify), "OpenRLHF") if conversation.done else 0.0
            feedback = "" if conversation.done else _decode_reversibly(writer, writer.render_environment_reply(messages))
            return {
                "rewards": tensor(score),
                "scores": tensor(score),
                "environment_feedback": feedback,
                "done": conversation.done,
                "extra_logs": {},
            }

    return AgentInstance
