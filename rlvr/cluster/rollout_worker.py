"""The rollout worker: a sampler and a rollout in one process, which samples and verifies whole rollout tasks. It does not know the cluster.

torch is only imported for weights: a worker whose sampler loads no weights starts in one second and needs 300 MB less.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from rlvr.cluster.checks.episode_fields import EpisodeLimits
from rlvr.cluster.rollout_tasks import RolloutTask, make_sendable
from rlvr.cluster.verifier_workers import RemoteVerifier, VerifierClient
from rlvr.cluster.weights.weight_updates import WeightUpdate
from rlvr.config.config import RunConfig, validate_config
from rlvr.contracts import Completion, Environment, RequestQueue, Sampler, SamplingParams, Tokenizer
from rlvr.errors import ConfigError, RlvrError, SamplerError
from rlvr.evaluation.episode_sources import make_mdp, make_rollout
from rlvr.evaluation.suite import SuiteItem
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.registry.plugins import PluginSpec, build_from_config
from rlvr.rollout.episode_encoding import encode_episodes
from rlvr.rollout.partial_rollouts import build_rollout
from rlvr.rollout.rollout import Rollout


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of the driver that a rollout worker must share to sample the same bits.

    >>> WorkerSettings(precision="float32", sync_turns=True, threads=1).threads
    1
    """

    precision: str
    sync_turns: bool | None
    threads: int
    uses_weights: bool = True
    """Whether the sampler loads weights."""
    weight_bytes: int = 0
    """The bytes of one version of the weights."""
    position_limit: int | None = None
    """How many positions the policy has, which limits the default window; None: not known."""

    def build_worker(self, config: Mapping[str, Any]) -> RolloutWorker:
        """Build a worker for the run with this configuration."""
        return RolloutWorker(validate_config(config, "the run"), self)


@dataclass(frozen=True, slots=True)
class EvalWorkerSettings:
    """What a rollout worker of an evaluation samples.

    >>> EvalWorkerSettings(PluginSpec("sampler", "scripted", {"answer": "gold"}), (SuiteItem(env={"name": "arithmetic"}),)).threads
    0
    """

    sampler: PluginSpec
    """The policy."""
    items: tuple[SuiteItem, ...]
    """The environments to evaluate it in."""
    threads: int = 0
    """Number of threads of torch; 0: the policy does not need torch."""
    weight_bytes: int = 0
    """No weights are sent."""

    def build_worker(self, _: Mapping[str, Any]) -> RolloutWorker:
        """Build a worker for this evaluation."""
        return EvalWorker(self)


class RolloutCancelled(RlvrError):
    """The driver has cancelled the task."""


class RolloutWorker:
    """Run rollout tasks with the weights that the driver sends."""

    def __init__(self, config: RunConfig, settings: WorkerSettings) -> None:
        self._set_up(settings.threads if settings.uses_weights else 0)
        self.settings = settings
        asked = config.rollout
        tokenizer = load_tokenizer(config.tokenizer_name)
        environment: Environment = self._resources.enter_context(build_from_config("env", config.env))
        elsewhere = config.cluster is not None and config.cluster.verifier_workers > 0
        limit_s = config.cluster.startup_timeout_s if config.cluster is not None else 0.0
        self.verifier_client = VerifierClient(limit_s, heartbeat_interval_s=asked.call_timeout_s / 4, heartbeat=self._extend_timeout)
        if elsewhere:
            environment.verifier = RemoteVerifier(environment.verifier, self.verifier_client)
        environment.prepare()
        mdp = TokenMDP(environment, tokenizer, **asked.token_limits, position_limit=settings.position_limit)
        self.sampler: Sampler = self._resources.enter_context(build_from_config("sampler", asked.sampler))
        self.sampler.setup(environment, tokenizer, precision=settings.precision, max_length=mdp.max_length)
        self.model = (
            _build_model(config, tokenizer, settings.precision, converts_vectors=self.sampler.traits.runs_model)
            if settings.uses_weights
            else None
        )
        rollout = build_rollout(
            mdp, _CancellableSampler(self.sampler, self._is_cancelled), sync_turns=settings.sync_turns, **asked.rollout_kwargs
        )
        self.rollout = self._resources.enter_context(rollout)

    def _set_up(self, threads: int) -> None:
        self._resources = ExitStack()
        self.threads, self.version, self.model = threads, -1, None
        self._current_order: Hashable = None
        self._cancelled_order: Hashable = None
        """The call that runs, and the call that was cancelled last. Each has one writing thread; a late cancellation has no effect."""
        self._set_threads()

    def load_weights(self, version: int, updates: Iterable[WeightUpdate]) -> None:
        """Load these weights; RlvrError if a checksum does not match."""
        self._set_threads()
        if self.model is not None:
            from rlvr.cluster.weights.packing import apply_updates

            apply_updates(self.model, updates)
            from rlvr.models.plain_weights import PlainWeights  # torch comes with it

            self.sampler.update_weights(PlainWeights(self.model), version)
        self.version = version

    def run_task(
        self, weights_version: int, rollout_task: RolloutTask, sampling: SamplingParams, policy_version: int, call_id: Hashable = None
    ) -> tuple[bytes, float]:
        """Sample and verify the episodes of a task; return them encoded as columns, and the seconds of verification.

        `weights_version` must be the version that this worker has. `call_id` identifies this call for `cancel`.
        """
        if weights_version != self.version:
            raise SamplerError(f"asked for version {weights_version} of the weights, but this rollout worker has version {self.version}")
        self._set_threads()
        self._current_order = call_id
        rollout = self._get_rollout(rollout_task)
        found = rollout.collect(rollout_task, sampling, version=policy_version)
        limits = EpisodeLimits.from_mdp(rollout.mdp, may_count_own_tokens=True)
        found = make_sendable(rollout_task, found, policy_version=policy_version, limits=limits)
        return encode_episodes([found]).to_bytes(), rollout.timing.total_verify_s

    def _get_rollout(self, rollout_task: RolloutTask) -> Rollout:
        """Return the rollout for this task."""
        return self.rollout

    def _extend_timeout(self) -> None:
        """Restart the local timeouts while a verdict is pending at a verifier worker, which has the timeout."""
        self.rollout.verifier_executor.last_progress_at = perf_counter()

    def _set_threads(self) -> None:
        """Use as many threads as the driver, since the last bits depend on the number. The setting holds for the current thread."""
        if self.threads:
            import torch

            torch.set_num_threads(self.threads)

    def cancel(self, call_id: Hashable) -> None:
        """Cancel this call, from another thread. Another call that runs by now goes on."""
        self._cancelled_order = call_id

    def _is_cancelled(self) -> bool:
        return self._current_order is not None and self._current_order == self._cancelled_order

    def close(self) -> None:
        """Stop the threads and close the environment."""
        self._resources.close()


class EvalWorker(RolloutWorker):
    """Rollout worker of an evaluation. Its sampler has its own policy and is used in one environment after the other."""

    def __init__(self, settings: EvalWorkerSettings) -> None:
        self._set_up(settings.threads)
        self.verifier_client = VerifierClient(0.0)
        self.items = {item.name: item for item in settings.items}
        self.environments = dict[str, Environment]()
        for item in settings.items:
            self.environments[item.name] = self._resources.enter_context(build_from_config("env", item.env))
            self.environments[item.name].prepare()
        self.sampler = self._resources.enter_context(settings.sampler.build())
        self.sampler.prepare()
        self._env_name, self._env_resources = "", self._resources.enter_context(ExitStack())
        """The environment of the current rollout, and the resources to close with that rollout."""

    def _get_rollout(self, rollout_task: RolloutTask) -> Rollout:
        name = str(rollout_task[0].meta["env"])
        if name != self._env_name:
            self._env_resources.close()
            mdp = make_mdp(self.items[name], self.environments[name], self.sampler)
            self.rollout = self._env_resources.enter_context(
                make_rollout(self.items[name], mdp, _CancellableSampler(self.sampler, self._is_cancelled))
            )
            self._env_name = name
        return self.rollout


def check_sampler_supported(sampler: Sampler, name: str) -> None:
    """Raise ConfigError for a sampler that rollout workers do not support."""
    if sampler.traits.loads_weights and not (sampler.traits.runs_model or sampler.traits.blocks_trainer_reason):
        raise ConfigError(
            f"cluster is set, but the sampler {name!r} has its own processes; rollout workers need one that runs in their process, "
            "such as hf, or vllm with placement: colocated"
        )


class _CancellableSampler(Sampler):
    """A sampler that can be cancelled between two tokens."""

    def __init__(self, inner: Sampler, unneeded: Callable[[], bool]) -> None:
        self.inner, self.is_cancelled = inner, unneeded
        self.traits, self.tokenizer = inner.traits, inner.tokenizer

    def setup(self, environment: Environment, tokenizer: Tokenizer, *, precision: str | None = None, max_length: int = 0) -> None:
        self.inner.setup(environment, tokenizer, precision=precision, max_length=max_length)

    def stream_completions(self, requests: Any, sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        yield from self._check_cancelled(self.inner.stream_completions(requests, sampling))

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        yield from self._check_cancelled(self.inner.stream_from_queue(queue, sampling))

    def _check_cancelled(self, given: Iterator[Any]) -> Iterator[Any]:
        for one in given:
            if self.is_cancelled():
                raise RolloutCancelled("the rollout task was cancelled")
            yield one


def _build_model(config: RunConfig, tokenizer: Tokenizer, precision: str, *, converts_vectors: bool) -> Any:
    """Build the model that receives the weights, in the precision in which they are sent."""
    from rlvr.cluster.weights.packing import convert_model
    from rlvr.models.device import resolve_device
    from rlvr.models.model_loading import load_model

    return convert_model(load_model(config.model, tokenizer, config.seed), precision, converts_vectors=converts_vectors).to(
        resolve_device()
    )
