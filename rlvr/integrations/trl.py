"""Adapter for TRL: reward functions, environments with tools, and rollouts with the tokens of rlvr.

    make_reward_function   `reward_funcs=`          TRL samples and tokenizes; rlvr verifies the final text
    EnvironmentFactory     `environment_factory=`   TRL calls the tools; the verifier sees the artifacts of the session
    RolloutFunction        `rollout_func=`          rlvr runs the conversation; TRL gets its token ids, mask and log-probabilities

An answer that could not be verified has the reward None, which TRL leaves out of the mean and of the baseline.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rlvr.contracts import Environment, Sampler, SamplingParams, Verifier
from rlvr.errors import ConfigError, EnvError
from rlvr.integrations.rows import find_task, warn_if_untested
from rlvr.integrations.texts import FinalTextVerifier, TextConversation, TextConversationFactory
from rlvr.integrations.tokens import make_token_row
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import HFTokenizer, get_model_vocab_size
from rlvr.registry.plugins import build
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed
from rlvr.task import Task, make_user_prompt
from rlvr.turns import Call, ToolSpec, Turn, extract_final_text

TESTED_VERSION = "1.16.0"
warn_if_untested("trl", TESTED_VERSION)

RewardFunction = Callable[..., list[float | None]]


def make_reward_function(
    env_or_verifier: Environment | Verifier,
    *,
    reference: str = "reference",
    meta: str = "meta",
    workers: int = 8,
    call_timeout_s: float = 600.0,
) -> RewardFunction:
    """Make a function for `reward_funcs=`: the score of the final text of each completion; None if it could not be verified.

    Args:
        env_or_verifier: a single-turn environment, for rows of `rlvr.integrations.rows.make_rows`; or a verifier, for other rows.
        reference: with a verifier: the column of the reference.
        meta: with a verifier: the optional column of the task's meta.
        workers: number of concurrent verifications.
        call_timeout_s: timeout of one verification, in seconds.
    """
    scorer = FinalTextVerifier(env_or_verifier, workers=workers, call_timeout_s=call_timeout_s)

    def task_at(place: int, prompt: Any, columns: Mapping[str, Any]) -> Task:
        if scorer.environment is not None:
            return find_task(
                scorer.environment, {"prompt": prompt} | {key: columns[key][place] for key in ("split", "index") if key in columns}
            )
        if reference not in columns:
            raise ConfigError(
                f"the data set has no column {reference!r}; it has {', '.join(sorted(columns)) or 'none'}; name it: reference="
            )
        found = columns[meta][place] if meta in columns else None
        return Task(make_user_prompt(str(prompt)), columns[reference][place], id=f"row {place}", meta=found or {})

    def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        tasks = [task_at(place, prompt, columns) for place, prompt in enumerate(prompts)]
        return [verdict.score for verdict in scorer.verify_all(tasks, [extract_final_text(said) for said in completions])]

    reward.__name__ = f"rlvr_{type(env_or_verifier).__name__.lower()}"
    setattr(reward, "close", scorer.close)  # noqa: B010 -- a function has no such attribute for type checkers
    return reward


# ---- environment_factory


class EnvironmentFactory:
    """Makes environments for TRL's `environment_factory=`: objects with a method for each tool. Pass its `reward` to `reward_funcs=`.

    TRL calls tools as methods. Each call is one turn of the session, so parallel calls count separately towards `max_turns`.
    """

    def __init__(self, environment: Environment, *, workers: int = 32, call_timeout_s: float = 600.0) -> None:
        """Read the tools from a first session, for TRL to describe them to the policy.

        Args:
            environment: an environment with tools; one that replies to texts needs `RolloutFunction`.
            workers: number of concurrent verifications.
            call_timeout_s: timeout of one tool call and of one verification, in seconds.
        """
        if environment.traits.replies:
            raise ConfigError(
                f"{type(environment).__name__} replies to the policy's texts, and TRL's environments have tools only; use RolloutFunction"
            )
        self.runner = TextConversationFactory(environment, workers=workers, call_timeout_s=call_timeout_s)
        probe = self.runner.start_conversation(environment.task(environment.splits[0], 0))
        self.specs, trouble = probe.tools, probe.failure
        probe.close()
        if not self.specs:
            why = trouble or "its sessions have none"
            self.runner.close()
            raise ConfigError(f"{type(environment).__name__} has no tools ({why}); use reward_function or RolloutFunction")
        self._environments: list[_TrlEnvironment] = []
        methods = {spec.name: _make_tool_method(spec) for spec in self.specs}
        if taken := sorted(set(methods) & {"reset", "get_reward"}):
            raise ConfigError(f"a tool is called {taken[0]!r}, which TRL reserves; give it another name")
        self._environment_class = type(f"Rlvr{type(environment).__name__}", (_TrlEnvironment,), methods)

    def __call__(self) -> Any:
        """Make an environment for the pool of TRL."""
        self._environments.append(self._environment_class(self.runner))
        return self._environments[-1]

    def reward(self, completions: Sequence[Any], environments: Sequence[Any], **columns: Any) -> list[float | None]:
        """Score each conversation of a batch, from its final text and the artifacts of its session."""
        for environment, completion in zip(environments, completions, strict=True):
            environment._step_final_text(completion)
        return [environment._get_score() for environment in environments]

    @property
    def __name__(self) -> str:
        return f"rlvr_{type(self.runner.environment).__name__.lower()}"

    def close(self) -> None:
        """Close all open sessions, the threads and the environment."""
        for made in self._environments:
            made._close()
        self.runner.close()


class _TrlEnvironment:
    """An environment in the pool of TRL. Subclasses have a method for each tool, since TRL treats every public method as a tool."""

    def __init__(self, world: TextConversationFactory) -> None:
        self._runner = world
        self._conversation: TextConversation | None = None

    def reset(self, **row: Any) -> str | None:
        """Begin the conversation of a row; return the first messages of the session, to append to the question."""
        self._close()
        task = find_task(self._runner.environment, row)
        self._conversation = self._runner.start_conversation(task, seed=derive_seed("world", task.id))
        said = "\n\n".join(message["content"] for message in self._conversation.initial_messages)
        return f"\n\n{said}" if said else None

    def _call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        conversation = self._conversation
        if conversation is None:
            raise EnvError("a tool was called before reset")
        if conversation.done:
            return "Error: this call was not run. The conversation is over."
        conversation.step(Turn("", calls=(Call(f"{len(conversation.turns)}.0", name, dict(arguments)),)))
        if conversation.failure:
            raise EnvError("the tool failed")  # TRL shows this text to the policy; the verdict has the reason
        return conversation.step_results[-1].messages[0]["content"] if conversation.step_results[-1].messages else ""

    def _step_final_text(self, completion: Any) -> None:
        """Pass the final text of the policy to the session. Without a final text there is no answer."""
        text = extract_final_text(completion)
        if self._conversation is not None and not self._conversation.done and text:
            self._conversation.step(Turn(text, content=text))

    def _get_score(self) -> float | None:
        return None if self._conversation is None else self._conversation.finish_and_verify().score

    def _close(self) -> None:
        if self._conversation is not None:
            self._conversation.close()


def _make_tool_method(spec: ToolSpec) -> Callable[..., str]:
    """Make a method for a tool, with the signature and the docstring that TRL needs to describe it."""

    def method(self: _TrlEnvironment, **arguments: Any) -> str:
        return self._call_tool(spec.name, {key: value for key, value in arguments.items() if value is not None})

    properties, required = spec.parameters.get("properties", {}), set(spec.parameters.get("required", ()))
    names = sorted(properties, key=lambda name: name not in required)  # parameters with a default come last
    kinds: dict[str, Any] = {name: _schema_to_type(properties[name]) for name in names}
    kinds |= {name: kind | None for name, kind in kinds.items() if name not in required}
    empty = inspect.Parameter.empty
    given = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=empty if name in required else None, annotation=kinds[name])
        for name in names
    ]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    lines = [f"    {name}: {' '.join(str(properties[name].get('description') or name).split())}" for name in names]
    method.__name__ = spec.name
    method.__doc__ = "\n".join([" ".join(spec.description.split()), *(["", "Args:", *lines] if lines else [])])
    setattr(method, "__signature__", inspect.Signature([itself, *given], return_annotation=str))  # noqa: B010
    method.__annotations__ = kinds | {"return": str}
    return method


def _schema_to_type(schema: Mapping[str, Any]) -> Any:
    """Return the type that fits a schema best. The session checks the arguments against the schema itself."""
    if schema.get("enum"):
        return Literal[tuple(schema["enum"])]
    named = schema.get("type")
    if named == "array":
        return list[_schema_to_type(schema.get("items", {}))]  # type: ignore[misc]  # a type that is made here
    plain: dict[Any, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}
    return plain.get(named if isinstance(named, str) else None, str)


# ---- rollout_func


class RolloutFunction:
    """Callable for TRL's `rollout_func=`: runs conversations; returns token ids, mask and log-probabilities. Pass its `reward` to
    `reward_funcs=`.

    rlvr runs the conversations, with its sampler on the model of TRL. TRL gets the exact token ids, mask (`env_mask`) and log-probabilities
    of the sampled tokens. Tested with one process, which must have the full model (no ZeRO-3, no FSDP).
    """

    def __init__(
        self, environment: Environment, rows: Sequence[Mapping[str, Any]], *, sampler: Sampler | str = "hf", max_length: int | None = None,
        call_timeout_s: float = 600.0, seed: int = 0,
    ) -> None:  # fmt: skip
        """Set the environment and its rows.

        Args:
            environment: any environment.
            rows: the rows of the dataset, made by `make_rows`; TRL only passes the prompts.
            sampler: the sampler, which uses the model of TRL.
            max_length: maximum tokens of prompt and completion; None: the value of the environment.
            call_timeout_s: timeout of one call of a session and of one verification, in seconds.
            seed: the seed of all sampling.
        """
        self.environment, self.max_length, self.call_timeout_s, self.seed = environment, max_length, call_timeout_s, seed
        self.tasks: dict[str, Task] = {}
        for row in rows:
            task = find_task(environment, row)
            other = self.tasks.setdefault(_make_prompt_key(task.prompt), task)
            if other.reference != task.reference:
                raise ConfigError(f"tasks {other.id!r} and {task.id!r} have the same prompt and different references; leave one out")
        self.sampler: Sampler = build("sampler", sampler) if isinstance(sampler, str) else sampler
        self.rollout: Rollout | None = None
        self.num_calls = 0

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Run one conversation for each prompt. Adjacent equal prompts are a group."""
        rollout = self.rollout = self.rollout or self._make_rollout(trainer)
        from rlvr.models.plain_weights import PlainWeights

        self.sampler.update_weights(PlainWeights(trainer.accelerator.unwrap_model(trainer.model)), trainer.state.global_step)
        requests = [self._make_request(prompt, place, trainer) for place, prompt in enumerate(prompts)]
        self.num_calls += 1
        args, stops = trainer.args, rollout.mdp.tokenizer.stop_ids
        sampling = SamplingParams(temperature=args.temperature, top_p=args.top_p, top_k=max(args.top_k or 0, 0), stop_ids=stops)
        rows = [make_token_row(episode, rollout.mdp.tokenizer.eos_id) for episode in rollout.collect(requests, sampling)]
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.response_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.action_mask for row in rows],
            "rlvr_score": [row.verdict.score for row in rows],
            "rlvr_answer": [row.answer for row in rows],
            "rlvr_reason": [row.verdict.reason for row in rows],
        }

    def reward(self, rlvr_score: Sequence[float | None], **columns: Any) -> list[float | None]:
        """Return the scores of the rows; None if an answer could not be verified."""
        return list(rlvr_score)

    def _make_rollout(self, trainer: Any) -> Rollout:
        """Build the rollout, with the tokenizer and the limits of TRL."""
        ids = get_model_vocab_size(trainer.model)
        tokenizer = HFTokenizer(trainer.processing_class, _find_stop_ids(trainer.model), model_vocab_size=ids)
        mdp = TokenMDP(self.environment, tokenizer, max_new_tokens=trainer.max_completion_length, max_length=self.max_length)
        return Rollout(mdp, sampler=self.sampler, call_timeout_s=self.call_timeout_s)

    def _make_request(self, prompt: Any, place: int, trainer: Any) -> RolloutRequest:
        task = self.tasks.get(_make_prompt_key(prompt) if not isinstance(prompt, str) else "")
        if task is None:
            raise ConfigError(f"the prompt {prompt!r:.120} belongs to no row; pass make_rows(...) to both the dataset and RolloutFunction")
        rank = trainer.accelerator.process_index
        return RolloutRequest(task, f"{self.num_calls}:{task.id}", derive_seed("trl", self.seed, self.num_calls, rank, place))

    def close(self) -> None:
        """Stop the threads, and close the sampler and the environment."""
        if self.rollout is not None:
            self.rollout.close()
        self.sampler.close()
        self.environment.close()


def _make_prompt_key(prompt: Any) -> str:
    return json.dumps([[message["role"], message["content"]] for message in prompt], ensure_ascii=False)


def _find_stop_ids(model: Any) -> list[int]:
    """Return the stop token ids in the generation config of the model."""
    found = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return [] if found is None else [found] if isinstance(found, int) else list(found)
