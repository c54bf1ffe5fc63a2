"""Train with rollout workers: the training loop of `rlvr.training`, with components that sample remotely."""

from __future__ import annotations

import functools
import gc
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.cluster.checks.episode_fields import EpisodeLimits
from rlvr.cluster.driver import NO_WEIGHTS, Driver, PendingTasks
from rlvr.cluster.event_log import EventLog
from rlvr.cluster.rollout_tasks import choose_groups_per_task, split_into_tasks
from rlvr.cluster.rollout_worker import check_sampler_supported
from rlvr.cluster.weights.packing import WeightPacker
from rlvr.config.cluster import ClusterConfig
from rlvr.config.config import RunConfig
from rlvr.contracts import Request, Sampler, SamplingParams, Weights
from rlvr.episode import Episode
from rlvr.errors import AllClusterWorkersLost, ConfigError, SamplerError
from rlvr.models.device import get_trainer_precision
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.rollout.timing import RolloutTiming
from rlvr.training.batch_sources import check_partial_rollouts
from rlvr.training.components import Components, EpisodeCollector, build_components
from rlvr.training.processes import run_on_main
from rlvr.training.run_inputs import RunInputs
from rlvr.training.train import train as train_here
from rlvr.training.train_report import TrainReport
from rlvr.training.trainer import make_run_folder_path

logger = logging.getLogger(__name__)
FIRST_RESUME_DELAY_S, MAX_RESUME_DELAY_S = 10.0, 600.0
"""The delay before a run that lost all rollout workers is resumed: the first one, and the maximum."""


def train(config: RunConfig, *, out: str | Path | None = None, resume: bool = False, **train_kwargs: Any) -> TrainReport:
    """Run `rlvr.training.train.train` for a configuration with a section `cluster`.

    A run that lost all rollout workers is resumed from its newest checkpoint, at most `cluster.max_resumes_after_all_rollout_workers_lost` times, with growing
    delays.
    """
    folder = out if out is not None or resume else make_run_folder_path(config)
    record = EventLog(None if folder is None else Path(folder))
    resumes = (
        config.cluster.max_resumes_after_all_rollout_workers_lost if config.cluster and os.environ.get("WORLD_SIZE", "1") == "1" else 0
    )
    builder, times = functools.partial(_build_cluster_components, event_log=record), 0
    while True:
        try:
            return train_here(config, out=folder, resume=resume, component_builder=builder, **train_kwargs)
        except AllClusterWorkersLost as error:
            if times == resumes:
                raise
            why = str(error)
        times, pause, resume = times + 1, min(FIRST_RESUME_DELAY_S * 2**times, MAX_RESUME_DELAY_S), True
        record.add("resumed", why=why, times=times, pause_s=pause)
        logger.warning(
            "%s; the run is resumed in %g s (resume %d of %d, cluster.max_resumes_after_all_rollout_workers_lost)",
            why.partition(";")[0],
            pause,
            times,
            resumes,
        )
        time.sleep(pause)
        gc.collect()  # free the model and the optimizer of the failed run


def _build_cluster_components(
    inputs: RunInputs, accelerator: Accelerator, stack: ExitStack, *, checkpoint_folder: Path | None, event_log: EventLog | None = None
) -> Components:
    """Build the components of a run, which sample as `cluster` says. `event_log`: the event log of the workers."""
    components, settings = build_components(inputs, accelerator, stack, checkpoint_folder=checkpoint_folder), inputs.config.cluster
    if settings is None:
        return components
    _check_cluster_support(inputs, components)
    num_groups = choose_groups_per_task(settings.groups_per_task, components.sampler.traits, inputs.config.rollout.num_generations)
    settings = settings.model_copy(update={"groups_per_task": num_groups})
    if settings.rollout_workers == 0:
        return replace(components, rollout=TaskwiseRollout(components.rollout, settings))
    precision, vectors = _get_precision(components), components.sampler.traits.runs_model
    packer = (
        WeightPacker(settings.weight_transfer, precision, converts_vectors=vectors) if _loads_trainer_weights(components.sampler) else None
    )
    made = list[Driver]()
    run_on_main(accelerator, lambda: made.append(_start_driver(components, settings, stack, event_log)))
    driver = made[0] if made else None
    return replace(
        components,
        rollout=RemoteRollout(components.rollout, settings, driver),
        sampler=WeightBroadcaster(components.sampler, driver, packer),
    )


def _start_driver(components: Components, settings: ClusterConfig, stack: ExitStack, event_log: EventLog | None) -> Driver:
    """Start the rollout workers of a run and their driver, in the main process; return the driver."""
    from rlvr.cluster.ray_transport import RayTransport
    from rlvr.cluster.rollout_worker import WorkerSettings

    precision = _get_precision(components)
    facts = WorkerSettings(
        precision,
        components.rollout.sync_turns,
        torch.get_num_threads(),
        uses_weights=_loads_trainer_weights(components.sampler),
        weight_bytes=getattr(torch, precision).itemsize * sum(weight.numel() for weight in components.model.parameters()),
        position_limit=components.mdp.position_limit,
    )
    actors = RayTransport(settings, components.config.model_dump(mode="json"), facts)
    stack.callback(actors.close)
    info = components.sampler.traits
    limits = EpisodeLimits.from_mdp(components.mdp, may_count_own_tokens=not (info.runs_model or info.loads_weights))
    driver = stack.enter_context(Driver(actors, settings, record=event_log, limits=limits))
    if (judges := actors.verifier_workers) is not None:
        driver.metrics.get_verifier_load = lambda: judges.busy_fraction
    return driver


def _get_precision(components: Components) -> str:
    """Return the precision of the run and of its rollout workers."""
    return get_trainer_precision(components.model, components.accelerator.mixed_precision, components.accelerator.device)


def _loads_trainer_weights(sampler: Sampler) -> bool:
    """Whether a sampler loads the weights of the trainer."""
    return sampler.traits.loads_weights


def _check_cluster_support(inputs: RunInputs, components: Components) -> None:
    """Raise an error for configurations that rollout workers do not support."""
    if inputs.environment is not None or inputs.tokenizer is not None:
        raise ConfigError(
            "cluster is set, and rollout workers build their own environment and tokenizer; give them by name, not as objects"
        )
    check_sampler_supported(components.sampler, components.config.rollout.sampler["name"])
    check_partial_rollouts(components)


class TaskwiseRollout:
    """Samples in this process, rollout task by rollout task as rollout workers do: the reference that a cluster run is compared with."""

    main_process_samples = True

    def __init__(self, inner: EpisodeCollector, settings: ClusterConfig) -> None:
        self.inner, self.settings, self.timing, self.sync_turns = inner, settings, RolloutTiming(), inner.sync_turns

    def collect(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, *, version: int = 0) -> list[Episode]:
        """Sample one episode per request in this process, rollout task by rollout task."""
        found, self.timing = list[Episode](), RolloutTiming()
        for unit in split_into_tasks(requests, self.settings.groups_per_task):
            found += self.inner.collect(unit, sampling, version=version)
            self.timing = self.timing + self.inner.timing
        return found

    def compute_timing_metrics(self, step_times: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of the local rollout."""
        return self.inner.compute_timing_metrics(step_times)

    def close(self) -> None:
        """Close the local rollout."""
        self.inner.close()


class RemoteRollout(TaskwiseRollout):
    """Sample with the rollout workers of the driver. Only the main process has a driver."""

    def __init__(self, inner: EpisodeCollector, settings: ClusterConfig, driver: Driver | None) -> None:
        super().__init__(inner, settings)
        self.driver = driver

    def collect(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, *, version: int = 0) -> list[Episode]:
        """Return one episode for each request, in order."""
        batch = self.start_rollout(requests, sampling, version=version)
        found, self.timing = batch.result(), batch.timing
        return found

    def compute_timing_metrics(self, step_times: Mapping[str, float]) -> dict[str, float]:
        """Return how workers and trainer spent the time of this step, and the counters."""
        if self.driver is None:
            return {}
        return self.driver.metrics.take_step_metrics() | {
            "cluster/trainer_busy_fraction": step_times["time/update"] / max(step_times["step_time"], 1e-9)
        }

    def start_rollout(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, *, version: int = 0) -> PendingTasks:
        """Start to sample one episode for each request; does not block."""
        if self.driver is None:
            raise SamplerError("only the main process has rollout workers, and this is another process")
        return self.driver.start_rollout(requests, sampling, version=version)

    def close(self) -> None:
        """Stop waiting for the rollout workers, and close the local rollout."""
        if self.driver is not None:
            self.driver.is_closed = True
        super().close()


class WeightBroadcaster(Sampler):
    """Stands in for the run's sampler in the training process: sends the weights to the rollout workers, which sample."""

    def __init__(self, inner: Sampler, driver: Driver | None, packer: WeightPacker | None) -> None:
        """`packer`: None if the sampler loads no weights."""
        self.inner, self.driver, self.packer = inner, driver, packer
        self._sent: int | None = None
        self.traits, self.tokenizer = inner.traits, inner.tokenizer

    def update_weights(self, weights: Weights, version: int) -> None:
        """Send new weights to the rollout workers, unless this version was sent already. During the SFT warmup all weights have version
        0, and are always sent.
        """
        if version != self._sent or version == 0:
            self._sent = version
            tensors = {} if self.packer is None else weights.gather_on_main()
            if self.driver is not None:
                self.driver.send_weights(NO_WEIGHTS if self.packer is None else self.packer.pack(tensors))

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Any:
        """Raise an error: rollout workers sample whole tasks."""
        raise SamplerError("rollout workers sample the completions, not this process")

    def close(self) -> None:
        """Close the sampler of this process."""
        self.inner.close()
