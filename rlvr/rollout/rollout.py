"""Rollouts: sample episodes of an environment. A failure gives a failed episode, not an exception.

Each conversation continues as soon as its own session has replied, independently of the others. Sessions run in one bounded thread pool,
verification runs in another; the sampler and the tokenizer are used only in the calling thread.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.config.hub import is_model_folder
from rlvr.contracts import Environment, Sampler, SamplingParams, Tokenizer
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.hints import Hinted, add_usage_to_errors
from rlvr.mdp.task_data import describe_text_env, unwrap_environment
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import check_model_vocabulary, get_model_vocab_size, load_tokenizer
from rlvr.mdp.verifier_executor import DaemonThreadExecutor
from rlvr.registry.plugins import build, build_from_config
from rlvr.rollout.hang_watchdog import abort_on_blocked_interpreter
from rlvr.rollout.rollout_request import RolloutRequest as RolloutRequest
from rlvr.rollout.rollout_request import derive_seed as derive_seed
from rlvr.rollout.scheduler import RolloutScheduler
from rlvr.rollout.session_scheduler import SessionRolloutScheduler
from rlvr.rollout.timing import RolloutTiming as RolloutTiming
from rlvr.rollout.timing import measure_covered_time as measure_covered_time
from rlvr.synonyms import accept_synonyms, translate_env_name
from rlvr.task import Task

if TYPE_CHECKING:
    from torch import nn

    from rlvr.mdp.env import TokenEnv

DEFAULT_CALL_TIMEOUT_S = 600.0
"""The default timeout of one verification or one session call."""


class Rollout(Hinted):
    """Samples episodes of one environment with one sampler.

    >>> with Rollout("arithmetic", "chars", "scripted") as rollout:
    ...     [group] = rollout.sample(rollout.mdp.environment.task("train", 0), n=8, seed=1)
    >>> len(group), group[0].reward
    (8, 1.0)
    """

    main_process_samples = False
    """True if the main process samples for all training processes; otherwise each process samples its shard."""

    _synonyms = {"environment": "mdp.environment", "env": "mdp.environment", "tokenizer": "mdp.tokenizer"}
    _hints = {
        "rollout": "write .sample(tasks, n=8)",
        "run": "write .sample(tasks, n=8)",
        "generate": "write .sample(tasks, n=8)",
    }

    @accept_synonyms
    @add_usage_to_errors
    def __init__(
        self,
        environment: TokenMDP | Environment | TokenEnv | str | Mapping[str, Any],
        tokenizer: Tokenizer | str | None = None,
        sampler: Sampler | str | Path | Mapping[str, Any] | nn.Module | Callable[..., Any] = "hf",
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        max_turn_tokens: int | None = None,
        max_concurrent_calls: int = 32,
        session_workers: int = 64,
        max_open_sessions: int = 256,
        call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S,
        episode_timeout_s: float | None = None,
        sync_turns: bool | None = None,
    ) -> None:
        """Create the rollout with its thread pools.

        Args:
            environment: the environment, by name, as a mapping, as an object or as a Gymnasium environment; or a `TokenMDP`, which has its
                own tokenizer and limits.
            tokenizer: the tokenizer of the policy: an object, a folder, a Hub id, or `chars`.
            sampler: the sampler of the policy; a model or its folder is sampled by `hf`, and a function from the text of a prompt to that of
                a completion by `function`.
            max_new_tokens: the maximum number of tokens of the policy in one episode; None: the environment's default.
            max_length: the maximum number of tokens of a prompt and all that follows.
            max_turn_tokens: the maximum number of tokens of one turn.
            max_concurrent_calls: the number of concurrent verifications.
            session_workers: the number of concurrent session calls.
            max_open_sessions: the maximum number of open sessions, for environments with stateful sessions.
            call_timeout_s: the timeout of one verification or one session call; after it the episode has no verdict.
            episode_timeout_s: after this time a conversation ends with its current turn and is verified; None: no limit.
            sync_turns: whether all conversations wait for the slowest one before each turn. With some samplers the last bits of a result
                depend on the batch composition (`Sampler.eval_batch_size`), and without synchronous turns the composition depends on
                timing. None: only for such samplers, with a stateless interactive environment.
        """
        if max_concurrent_calls < 1 or call_timeout_s <= 0:
            raise ConfigError(f"max_concurrent_calls {max_concurrent_calls} and call_timeout_s {call_timeout_s} must be above 0")
        if session_workers < 1 or max_open_sessions < 1:
            raise ConfigError(f"session_workers {session_workers} and max_open_sessions {max_open_sessions} must be at least 1")
        if episode_timeout_s is not None and episode_timeout_s <= 0:
            raise ConfigError(f"episode_timeout_s is {episode_timeout_s}; it must be above 0")
        limits = {"max_new_tokens": max_new_tokens, "max_length": max_length, "max_turn_tokens": max_turn_tokens}
        model = sampler if hasattr(sampler, "forward") and hasattr(sampler, "parameters") else None
        if is_model_folder(sampler):
            tokenizer = str(sampler) if tokenizer is None and not isinstance(environment, TokenMDP) else tokenizer
            sampler = {"name": "hf", "model": str(sampler)}
        mdp = _make_mdp(environment, tokenizer, limits)
        if inspect.isroutine(sampler) or isinstance(sampler, functools.partial):
            sampler = {"name": "function", "function": sampler}
        sampler = build("sampler", "hf") if model is not None else build_from_config("sampler", sampler)
        if not isinstance(sampler, Sampler):
            raise ConfigError(f"the sampler is a {type(sampler).__name__}; give a name such as hf, a model, or an rlvr.Sampler")
        sampler.setup(mdp.environment, mdp.tokenizer)
        if model is not None:
            check_model_vocabulary(mdp.tokenizer, get_model_vocab_size(model) or mdp.tokenizer.vocab_size)
            sampler.update_from_model(model, 0)
        self.mdp, self.sampler, self.call_timeout_s, self.max_open_sessions = mdp, sampler, call_timeout_s, max_open_sessions
        self.version = 0
        """The version of the weights that sample, counted by `update_weights`."""
        self.episode_timeout_s = episode_timeout_s
        self.sync_turns = (
            bool(sampler.traits.eval_batch_size) and mdp.is_interactive and not mdp.has_sessions if sync_turns is None else sync_turns
        )
        self.has_async_verifier = mdp.environment.verifier.traits.is_async
        """True if the verifier is asynchronous, so that verdicts are awaited without blocking a thread."""
        self.timing = RolloutTiming()
        self.verifier_executor, self.session_executor = (
            DaemonThreadExecutor(max_concurrent_calls),
            DaemonThreadExecutor(session_workers, name="session"),
        )

    def sample(
        self,
        tasks: Task | Iterable[Task] | int,
        *,
        n: int = 1,
        seed: int = 0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> list[list[Episode]]:
        """Sample `n` episodes of each task; returns one group per task, in order. The same arguments give the same episodes.

        Args:
            tasks: the tasks, a single one, or how many of the first of the split `train`.
            n: the number of episodes of each task.
            seed: the seed of all randomness, for example the number of the training step.
            temperature: 0 is greedy.
            top_p: sample from the likeliest tokens of this total probability.
            top_k: sample from so many of the likeliest tokens; 0: all.
        """
        if n < 1:
            raise ConfigError(f"n is {n}; at least one episode of each task must be sampled")
        if isinstance(tasks, int) and not isinstance(tasks, bool) and tasks > 0:
            tasks = [self.mdp.environment.task("train", index) for index in range(tasks)]
        if isinstance(tasks, str | Mapping) or not isinstance(tasks, Task | Iterable):
            raise ConfigError(
                f"tasks is {tasks!r:.60}; give tasks, such as [env.task('train', index) for index in range(2)], or the number of the first ones "
                "of the split train"
            )
        requests = _make_group_requests([tasks] if isinstance(tasks, Task) else [*tasks], n, seed)
        episodes = self.collect(requests, SamplingParams(temperature, top_p, top_k), version=self.version)
        return [episodes[start : start + n] for start in range(0, len(episodes), n)]

    async def stream_groups(self, tasks: Sequence[Task], *, n: int = 1, seed: int = 0, **sampling: Any) -> AsyncIterator[list[Episode]]:
        """Yield each group as soon as its episodes are verified; the arguments are those of `sample`. Order is by completion."""
        requests = _make_group_requests(tasks, n, seed)
        stream = self.stream_episodes(requests, SamplingParams(**sampling), version=self.version)
        found: dict[int, dict[int, Episode]] = {}
        try:
            while (item := await asyncio.to_thread(next, stream, None)) is not None:
                number, episode = item
                group = found.setdefault(number // n, {})
                group[number % n] = episode
                if len(group) == n:
                    yield [group[member] for member in range(n)]
        finally:
            stream.close()

    def update_weights(self, source: Any, version: int | None = None) -> None:
        """Give the sampler the weights of a learner, or of a model; the version of the episodes that follow goes up by one."""
        self.version = self.version + 1 if version is None else version
        weights = getattr(source, "weights", None)
        if weights is None:
            from rlvr.models.plain_weights import PlainWeights  # torch comes with it

            weights = PlainWeights(source)
        self.sampler.update_weights(weights, self.version)

    def collect(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, *, version: int = 0) -> list[Episode]:
        """Return one episode per request, in order."""
        found = dict(self.stream_episodes(requests, sampling, version=version))
        return [found[i] for i in range(len(requests))]

    def stream_episodes(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, *, version: int = 0
    ) -> Generator[tuple[int, Episode]]:
        """Yield the index of each request with its episode, as soon as it is verified. All sessions are closed at the end.

        The stop ids of the tokenizer are filled in where `sampling` has none: without them, a completion would go on after its end.
        """
        sampling = self._fill_stop_ids(sampling)
        self.timing = RolloutTiming()
        schedule = (SessionRolloutScheduler if self.mdp.is_interactive else RolloutScheduler)(self, requests, self.timing)
        try:
            with abort_on_blocked_interpreter(self.call_timeout_s):
                for conversation in schedule.run(sampling):
                    yield conversation.number, conversation.build_episode(version)
        finally:
            schedule.close()

    def _fill_stop_ids(self, sampling: SamplingParams) -> SamplingParams:
        stop_ids = self.mdp.tokenizer.stop_ids
        if sampling.stop_ids and sampling.stop_ids != stop_ids:
            raise ConfigError(
                f"the stop ids of the sampling are {sorted(sampling.stop_ids)}, but those of the tokenizer are {sorted(stop_ids)}; "
                "leave stop_ids out, and the tokenizer's are used"
            )
        return sampling if sampling.stop_ids else replace(sampling, stop_ids=stop_ids)

    def compute_timing_metrics(self, step_times: Mapping[str, float]) -> dict[str, float]:
        """Return additional timing metrics of a step; empty here, since only remote rollouts have some."""
        return {}

    def close(self) -> None:
        """Stop the threads, without waiting for hanging verifiers or sessions."""
        self.verifier_executor.close()
        self.session_executor.close()

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _make_group_requests(tasks: Sequence[Task], n: int, seed: int) -> list[RolloutRequest]:
    """Make the requests of `n` episodes for each task. Members of a group share the seed of their session, and no other randomness."""
    return [
        RolloutRequest(task, f"{seed}:{place}", derive_seed(seed, place, member)) for place, task in enumerate(tasks) for member in range(n)
    ]


def _make_mdp(
    environment: TokenMDP | Environment | TokenEnv | str | Mapping[str, Any],
    tokenizer: Tokenizer | str | None,
    limits: Mapping[str, int | None],
) -> TokenMDP:
    environment = translate_env_name(unwrap_environment(environment))
    environment = describe_text_env(environment) or environment
    if isinstance(environment, TokenMDP):
        if tokenizer is not None or any(value is not None for value in limits.values()):
            raise ConfigError("a TokenMDP has its own tokenizer and limits; give the environment instead, or leave them out")
        return environment
    if tokenizer is None:
        raise ConfigError("no tokenizer is given; write Rollout(environment, tokenizer, sampler), for example with tokenizer='chars'")
    made = build_from_config("env", environment)
    return TokenMDP(made, load_tokenizer(tokenizer), **limits)
