"""Where the batches of a run come from. `make_batch_source` chooses from the configuration; the training loop calls `next(step)`.

    OnPolicySource           sample one group for each of the next tasks, with the current weights
    DynamicSamplingSource    the same, in rounds, until enough groups have a spread of rewards
    PartialRolloutSource     long completions are interrupted and continue in the next step
    OfflineSource            recorded groups or gold solutions; nothing is sampled
    PrefetchedSource         any of these that samples, ahead of the trainer and with older weights (`rollout.max_staleness`)
    ConcurrentBatchSource    the same with rollout workers, which accept new requests while they sample earlier ones

A source of your own is a `SynchronousSource` with a `collect`, and is given to the trainer: `Trainer(..., batch_source=TheClass)`.

Each process samples its shard of the groups, or the main process all of them; then every process has all groups.
"""

from __future__ import annotations

import copy
import functools
import json
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import nn

from rlvr.algorithms.functions.preferences import add_mismatched_answers
from rlvr.contracts import Sampler, SamplingParams
from rlvr.episode import Episode, StopReason, segments_from_json, segments_to_json
from rlvr.errors import ConfigError
from rlvr.models.plain_weights import PlainWeights
from rlvr.rollout.rollout import RolloutRequest, RolloutTiming, derive_seed
from rlvr.task import Task, Verdict
from rlvr.training.components import Components
from rlvr.training.processes import map_sharded, run_on_main
from rlvr.training.task_sampling.dynamic_sampling import DynamicSampling, Group
from rlvr.training.task_sampling.offline_dataset import build_gold_groups
from rlvr.training.task_sampling.partial_buffer import PartialRolloutBuffer
from rlvr.training.task_sampling.task_sampler import IndexedTasks
from rlvr.training.update.learner import Learner

DroppedGroups = Mapping[str, list[Group]]
"""Groups that are not trained on, by reason."""
MAX_REFERENCE_CHARACTERS = 2_000
"""The maximum length of a reference that is stored with each episode."""
CPU_DEVICE = torch.device("cpu")
POLL_INTERVAL_S = 1.0
"""The poll interval of a thread that waits for a batch, so that PeerLost can be raised in it."""


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The rollout batch of one step.

    >>> RolloutBatch(groups=[], dropped={"surplus": []}, metrics={}, timing=RolloutTiming()).all_groups
    []
    """

    groups: list[Group]
    """The groups to train on."""
    dropped: DroppedGroups
    """The groups not trained on, by reason."""
    metrics: Mapping[str, float]
    timing: RolloutTiming
    """The timing of this process."""

    @property
    def all_groups(self) -> list[Group]:
        """All sampled groups: first those that are trained on, then the dropped ones."""
        return [*self.groups, *(group for groups in self.dropped.values() for group in groups)]


class BatchSource(ABC):
    """Gives the training loop the batch of each step."""

    sends_weights = False
    """True if the source itself gives the sampler the weights that it samples with; the trainer then does so only at the
    start, at a resume, before an evaluation and at the end. Otherwise the trainer does, after each step.
    """

    is_off_policy = False
    """A class attribute: true if the source also returns episodes that were sampled with older weights, such as a replay. The run then has
    the algorithm's defaults for off-policy data, and no exact comparison of sampler and trainer. Where groups are left out, give copies:
    the reason is written into an episode's `meta`.
    """

    @abstractmethod
    def next(self, step: int) -> RolloutBatch:
        """Return the batch of a step. All processes call this, in the order of the steps, and get the same batch."""

    def wait_until_idle(self) -> None:  # noqa: B027 -- a source that never samples beside the trainer has nothing to wait for
        """Wait until nothing is being sampled, before the sampler gets other weights; raise any error."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint. May wait for running sampling, so it comes before the state of the task sampler."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 -- most sources have no state
        """Restore the state from `state_dict`."""

    def close(self) -> None:  # noqa: B027 -- most sources have no thread
        """Stop sampling."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def check_batch_source_unchanged(saved: str | None, given: str | None) -> None:
    """Raise ConfigError if a run is resumed with another batch source than it began with; None is the one that the configuration chooses.

    >>> check_batch_source_unchanged("BetterOfTwo", "BetterOfTwo")
    """
    if saved != given:
        began = f"batch_source={saved}" if saved else "no batch source of its own"
        now = f"batch_source={given} is given" if given else "none is given"
        raise ConfigError(f"the run began with {began}, and {now}; resume it with the same, or begin a new run")


def make_batch_source(components: Components, learner: Learner, source_class: type[SynchronousSource] | None = None) -> BatchSource:
    """Choose the batch source of a run from its configuration; `source_class` is the user's own, if any."""
    check_sampling_supported(components)
    config, algorithm = components.config, components.algorithm
    if source_class is not None:
        _check_source_class(components, source_class)
    source: SynchronousSource = (
        source_class(components)
        if source_class is not None
        else OfflineSource(components)
        if config.data is not None
        else PartialRolloutSource(components)
        if config.rollout.partial_rollout_tokens
        else DynamicSamplingSource(components)
        if algorithm.traits.sampling_rounds > 1
        else OnPolicySource(components)
    )
    if not config.rollout.max_staleness:
        return source
    independent = type(source) is OnPolicySource and not components.task_sampler.needs_previous_batch
    if independent and isinstance(components.rollout, AsyncRollout):
        return ConcurrentBatchSource(components, learner, source, components.rollout)
    return PrefetchedSource(components, learner, source)


def check_sampling_supported(components: Components) -> None:
    """Raise ConfigError if this run cannot be sampled as configured, before anything is written."""
    check_partial_rollouts(components)
    staleness, sampler = components.config.rollout.max_staleness, components.sampler
    if not staleness:
        return
    if components.accelerator.num_processes > 1 and not components.rollout.main_process_samples:
        raise ConfigError(
            f"rollout.max_staleness is {staleness}, and each of {components.accelerator.num_processes} processes samples its share: "
            "sampling during training would interleave their messages; set it to 0, launch one process, or let a `cluster` sample for all"
        )
    if sampler.traits.blocks_trainer_reason:
        raise ConfigError(
            f"rollout.max_staleness is {staleness}, but the sampler {components.config.rollout.sampler['name']!r} cannot sample while the "
            f"trainer trains: {sampler.traits.blocks_trainer_reason}; or set max_staleness to 0"
        )


def _check_source_class(components: Components, source_class: Any) -> None:
    """Raise ConfigError if this is no batch source, or if the configuration asks for another one."""
    if not (isinstance(source_class, type) and issubclass(source_class, SynchronousSource)):
        raise ConfigError(
            f"batch_source is {source_class!r:.100}; give a subclass of rlvr.training.batch_sources.SynchronousSource, not an object"
        )
    config, name = components.config, source_class.__name__
    for setting, is_set, remedy in (
        ("data", config.data is not None, "leave it out"),
        ("rollout.partial_rollout_tokens", config.rollout.partial_rollout_tokens, "leave it unset"),
        ("algorithm.dynamic_sampling_rounds", components.algorithm.traits.sampling_rounds > 1, "set it to 1"),
    ):
        if is_set:
            raise ConfigError(f"{setting} chooses another batch source than the given {name}; {remedy}, or leave batch_source out")


def check_partial_rollouts(components: Components) -> None:
    """Raise ConfigError if the configuration does not support partial rollouts."""
    if not (most := components.config.rollout.partial_rollout_tokens):
        return
    name = f"rollout.partial_rollout_tokens is {most}, which continues answers of one turn in later steps"
    if components.mdp.is_interactive or components.environment.max_turns > 1:
        raise ConfigError(f"{name}; in {components.config.env['name']} conversations have several turns, so leave it unset")
    if components.sampler.traits.text_only:
        raise ConfigError(
            f"{name}; the sampler {components.config.rollout.sampler['name']!r} gives texts, which it cannot continue; leave it unset"
        )
    if components.algorithm.traits.needs_greedy_sample or components.algorithm.traits.sampling_rounds > 1:
        raise ConfigError(f"{name}; {components.config.algorithm['name']} needs all answers of a step at its end, so leave it unset")


# ---- one step at a time -----------------------------------------------------------------------------------------------


class StepRollout:
    """Samples the groups of one training step, in one call or in several, and makes the batch of them.

    >>> StepRollout(components, step=0, version=0).sample_groups(8)  # doctest: +SKIP
    """

    def __init__(self, components: Components, step: int, version: int) -> None:
        self.components, self.step, self.version = components, step, version
        """What a run samples and trains with, the step (from 0), and the version of the weights that the sampler has."""
        self.timing = RolloutTiming()
        self._num_sampled, self._dropped = 0, dict[str, list[Group]]()

    def sample_groups(self, tasks: int | Sequence[int]) -> list[Group]:
        """Sample one group for each of the next tasks, or for each task of a list of indices, such as `episode.meta["index"]` of an
        earlier step; returns those that the algorithm selects. Groups are numbered through the step, so no two of them share their seeds.
        """
        c = self.components
        plan = plan_sampling_round(c, tasks, self.step, first_group_number=self._num_sampled)
        self._num_sampled += len(plan.tasks)
        found = [_sample_requests(c, requests, sampling, self.version) for requests, sampling in plan.calls]
        groups, dropped, timing = _record_sampling_round(c, plan, found)
        self._dropped = _merge_dropped(self._dropped, dropped)
        self.timing = self.timing + timing
        return groups

    def build_batch(
        self, groups: list[Group], *, dropped: DroppedGroups, metrics: Mapping[str, float] = MappingProxyType({})
    ) -> RolloutBatch:
        """Make the batch of the step. Every group that `sample_groups` returned must be in it.

        Args:
            groups: the groups to train on.
            dropped: all other groups, by the reason why they are not trained on, which is also written into their episodes.
            metrics: metrics of the source, logged with the step.
        """
        return build_batch(self.components, groups, _merge_dropped(dropped, self._dropped), self.timing, metrics)


class SynchronousSource(BatchSource):
    """Samples the batch of a step when the trainer asks for it; sampling and training alternate.

    A subclass defines `collect`, and `state_dict` and `load_state_dict` if it keeps something from step to step. With `rollout.max_staleness`
    a `PrefetchedSource` calls `collect` in a thread, for a later step, with its own older weights in the sampler.
    """

    def __init__(self, components: Components) -> None:
        self.components = components

    @abstractmethod
    def collect(self, rollout: StepRollout) -> RolloutBatch:
        """Collect the batch of the step `rollout.step`. If the main process samples for all, only it calls this.

        With several processes that sample, all of them call this, and each `sample_groups` returns the groups of all of them.
        """

    def next(self, step: int) -> RolloutBatch:
        """Collect the batch of a step with the current weights, and let the sampler sleep."""
        c = self.components
        if c.rollout.main_process_samples:
            batch = run_on_main(c.accelerator, lambda: self.collect(StepRollout(c, step, step)))
        else:
            batch = self.collect(StepRollout(c, step, step))
        c.sampler.sleep()
        return batch


class OnPolicySource(SynchronousSource):
    """Samples one group for each of the next tasks, with the current weights."""

    def collect(self, rollout: StepRollout) -> RolloutBatch:
        """Sample one round."""
        return rollout.build_batch(rollout.sample_groups(self.components.config.rollout.prompts_per_step), dropped={})


class DynamicSamplingSource(SynchronousSource):
    """Samples groups in rounds, until enough of them have a spread of rewards."""

    def collect(self, rollout: StepRollout) -> RolloutBatch:
        """Sample rounds; what is not trained on is kept in the batch with the reason."""
        c = self.components
        collector = DynamicSampling(c.config.rollout.prompts_per_step, max_rounds=c.algorithm.traits.sampling_rounds)
        while not collector.is_done:
            count = collector.next_num_groups
            collector.add_groups(rollout.sample_groups(count), num_sampled=count)
        return rollout.build_batch(collector.select_groups(), dropped=collector.list_dropped(), metrics=collector.metrics())


class PartialRolloutSource(SynchronousSource):
    """Interrupts long completions and continues them in the next step; a batch has the groups whose last completion ends in this step."""

    def __init__(self, components: Components) -> None:
        super().__init__(components)
        self.buffer = PartialRolloutBuffer(components.environment)

    def collect(self, rollout: StepRollout) -> RolloutBatch:
        """Begin new groups, and sample the next part of every open completion."""
        c, buffer, timing = self.components, self.buffer, RolloutTiming()
        resumed, plan = buffer.num_partial, plan_sampling_round(c, c.config.rollout.prompts_per_step, rollout.step)
        buffer.add_groups(plan.tasks, plan.calls[0][0])
        while not (done := buffer.pop_finished()):
            found, spent = _sample_requests(c, buffer.open_requests, c.sampling, rollout.version)
            buffer.store_results(found)
            timing = timing + spent
        groups = [[answer for answer in group.completions if isinstance(answer, Episode)] for group in done]
        c.task_sampler.on_verified([group.indexed_task for group in done], groups)
        selected, dropped = select_groups(c, groups)
        metrics = {
            "partial/resumed_completions": float(resumed),
            "partial/open_completions": float(buffer.num_partial),
            "partial/finished_groups": float(len(groups)),
        }
        return build_batch(c, selected, dropped, timing, metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the partial completions."""
        return self.buffer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the partial completions."""
        self.buffer.load_state_dict(state)


class OfflineSource(SynchronousSource):
    """Takes recorded groups of another run, or the gold solutions of the next tasks, instead of sampling."""

    def collect(self, rollout: StepRollout) -> RolloutBatch:
        """Take the groups of a step; nothing is sampled."""
        c, count = self.components, self.components.config.rollout.prompts_per_step
        if c.offline_dataset is not None:
            groups = list(c.offline_dataset.get_groups(rollout.step * count, count))
        else:
            groups = list(build_gold_groups(c.task_sampler.next_tasks(count), c.mdp))
        groups, dropped = select_groups(c, groups)
        return build_batch(c, groups, dropped, RolloutTiming())


# ---- ahead of the trainer ---------------------------------------------------------------------------------------------


class PrefetchedSource(BatchSource):
    """Samples the batches of later steps while the trainer trains, with weights of a known age.

    With `rollout.max_staleness: k` the batch of step t is always sampled with the weights of version max(0, t - k), independent of
    timing, so a run is repeatable. With k = 1:

        worker     batch 0 by 0 | batch 1 by 0 | batch 2 by 1 | batch 3 by 2 | ...
        trainer                 | 0 -> 1       | 1 -> 2       | 2 -> 3       | ...

    One worker thread samples the batches in order, so that a curriculum sees the results in the order of the steps. The trainer changes
    its weights in place, so each batch in progress has its own copy of them. With several training processes, the main process samples
    for all and sends each complete batch to the others, so prefetching never participates in collective operations.
    """

    sends_weights = True

    def __init__(self, components: Components, learner: Learner, source: SynchronousSource) -> None:
        self.components, self.source = components, source
        self.learner = weakref.proxy(learner)  # the trainer owns it, and lets it go before the process group ends
        self.max_staleness, self.num_steps = components.config.rollout.max_staleness, components.config.train.steps
        self._is_requesting_process = components.accelerator.is_main_process
        """True if this process requests batches; in other processes the pending batches are placeholders."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._pending_batches: deque[Future[RolloutBatch]] = deque()
        """The batches in progress, the next one first."""
        self._copies: dict[int, Any] = {}

    def next(self, step: int) -> RolloutBatch:
        """Return the batch of a step, and start sampling the batches up to `max_staleness` steps ahead.

        The timeouts of the sampler and of the verifier limit the wait.
        """
        self._request_batches(step, step, version=step)
        batch = run_on_main(self.components.accelerator, functools.partial(wait_for_batch, self._pending_batches.popleft()))
        self._request_batches(step + 1, self._last_step(step), version=step)
        return batch

    def wait_until_idle(self) -> None:
        """Wait in all processes until nothing is being sampled; raise any error in all of them."""

        def wait_for_all() -> None:
            for batch in self._pending_batches:
                wait_for_batch(batch)

        run_on_main(self.components.accelerator, wait_for_all)

    def close(self) -> None:
        """Stop sampling: with the rollout closed, the worker exits at the next completion."""
        self.components.rollout.close()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def state_dict(self) -> dict[str, Any]:
        """Wait for the prefetched batches, and return them for the checkpoint.

        They are stored because resampling them would need the older weights and a bitwise deterministic sampler. The next step must wait
        for the first of them in any case.
        """
        PrefetchedSource.wait_until_idle(self)
        batches = [batch_to_json(batch.result()) for batch in self._pending_batches] if self._is_requesting_process else []
        return {"batches": json.dumps(batches), "source": self.source.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the prefetched batches."""
        self.source.load_state_dict(state["source"])
        for row in json.loads(state["batches"]):
            batch: Future[RolloutBatch] = Future()
            batch.set_result(batch_from_json(row))
            self._pending_batches.append(batch)

    def _last_step(self, step: int) -> int:
        return min(step + self.max_staleness, self.num_steps - 1)

    def _request_batches(self, first_step: int, last_step: int, *, version: int) -> None:
        """Request the batches of these steps that are not requested yet, with the current weights."""
        for step in range(first_step + len(self._pending_batches), last_step + 1):
            model = self.learner.gather_model()
            self._pending_batches.append(
                self._worker.submit(self._prepare_batch(model, step, version)) if self._is_requesting_process else Future()
            )

    def _prepare_batch(self, model: Any, step: int, version: int) -> Callable[[], RolloutBatch]:
        """Copy the weights; return the function that samples the batch with them."""
        place = step % self.max_staleness
        if place in self._copies:  # the copy of a finished batch: at most `max_staleness` are being sampled
            self._copies[place].load_state_dict(model.state_dict())
        else:
            self._copies[place] = copy_model_for_sampler(self.components.sampler, model)
        return functools.partial(self._sample_batch, self._copies[place], step, version)

    def _sample_batch(self, model: Any, step: int, version: int) -> RolloutBatch:
        self.components.sampler.update_weights(PlainWeights(model), version)
        return self.source.collect(StepRollout(self.components, step, version))


class ConcurrentBatchSource(PrefetchedSource):
    """Samples several batches concurrently, with rollout workers that accept new requests while they sample earlier ones.

    Batch t + k is requested as soon as version t exists, before batch t is complete, so an idle rollout worker starts the next batch
    while others still sample batch t:

        rollout worker 1     0 0 0 0 0 0 | 1 1 1 1 | 2 2 2 ...
        rollout worker 2     0 0 | 1 1 1 1 1 | 2 2 2 2 2 2 ...

    The episodes are those of a `PrefetchedSource`, because tasks, seeds and versions are. Only for batches that do not depend on the
    results of the batch before.
    """

    def __init__(self, components: Components, learner: Learner, source: SynchronousSource, rollout: AsyncRollout) -> None:
        super().__init__(components, learner, source)
        self._rollout = rollout

    def next(self, step: int) -> RolloutBatch:
        """Return the batch of a step; the later ones are requested before the wait."""
        self._request_batches(step, self._last_step(step), version=step)
        return super().next(step)

    def wait_until_idle(self) -> None:
        """Return at once, because each rollout worker loads the next weights when it has finished its own work."""

    def _request_batches(self, first_step: int, last_step: int, *, version: int) -> None:
        steps = range(first_step + len(self._pending_batches), last_step + 1)
        if steps:
            self.components.sampler.update_weights(self.learner.weights, version)
        for step in steps:
            self._pending_batches.append(
                self._worker.submit(_request_batch(self.components, self._rollout, step, version=version))
                if self._is_requesting_process
                else Future()
            )


def wait_for_batch(batch: Future[RolloutBatch]) -> RolloutBatch:
    """Wait for a batch and return it."""
    while not wait([batch], timeout=POLL_INTERVAL_S).done:
        pass
    return batch.result()


def copy_model_for_sampler(sampler: Sampler, model: Any) -> Any:
    """Copy the model: to the trainer's device for a sampler that runs the model itself, otherwise to host memory.

    Engines read files, so a copy on the device would waste memory.
    """
    device = model.device if sampler.traits.runs_model else CPU_DEVICE
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach().to(device, copy=True), p.requires_grad) for p in model.parameters()}
    memo |= {id(buffer): buffer.to(device, copy=True) for buffer in model.buffers()}
    return copy.deepcopy(model, memo)


# ---- one round of sampling --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """The requests of one sampling round.

    >>> SamplePlan([], [([], SamplingParams())]).calls[0][1].temperature
    1.0
    """

    tasks: IndexedTasks
    calls: list[tuple[list[list[RolloutRequest]], SamplingParams]]
    """The calls of the round, each with its sampling parameters: the groups and canaries, then a greedy request per task if needed."""


class PendingRollout(Protocol):
    """Requests that are being sampled."""

    timing: RolloutTiming

    def result(self) -> list[Episode]:
        """Wait for the episodes, one per request."""
        ...


@runtime_checkable
class AsyncRollout(Protocol):
    """A rollout that accepts new requests while it samples earlier ones."""

    def start_rollout(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, *, version: int = 0) -> PendingRollout:
        """Request one episode per request, without waiting."""
        ...


def _request_batch(components: Components, rollout: AsyncRollout, step: int, *, version: int) -> Callable[[], RolloutBatch]:
    """Request the groups of one step; return a function that waits for the batch. Call these in the order of the steps."""
    asked = plan_sampling_round(components, components.config.rollout.prompts_per_step, step)
    begun = [rollout.start_rollout(list(chain(*requests)), sampling, version=version) for requests, sampling in asked.calls]

    def finish() -> RolloutBatch:
        found = [
            (_group_like_requests(requests, call.result()), call.timing) for (requests, _), call in zip(asked.calls, begun, strict=True)
        ]
        return build_batch(components, *_record_sampling_round(components, asked, found))

    return finish


def build_batch(
    components: Components,
    groups: list[Group],
    dropped: DroppedGroups,
    timing: RolloutTiming,
    metrics: Mapping[str, float] = MappingProxyType({}),
) -> RolloutBatch:
    """Build the batch of a step: the reasons are written into the episodes of dropped groups, and the metrics of tasks and weights added."""
    for reason, left_out in dropped.items():
        for episode in chain(*left_out):
            episode.meta["dropped"] = reason
    every = components.task_sampler.pop_metrics() | dict(metrics) | components.sampler.get_weight_probe_metrics()
    return _add_mismatched_kl_samples(components, RolloutBatch(groups, dropped, every, timing))


def select_groups(components: Components, groups: list[Group]) -> tuple[list[Group], DroppedGroups]:
    """Return the groups that the algorithm trains on, and the others by reason. All groups of a run pass here as soon as they are verified:
    the rounds of dynamic sampling, too, so that other groups are sampled in place of those that are left out.
    """
    return components.algorithm.select_groups(groups)


def _merge_dropped(dropped: DroppedGroups, more: DroppedGroups) -> dict[str, list[Group]]:
    return {reason: [*dropped.get(reason, ()), *more.get(reason, ())] for reason in {**dropped, **more}}


def plan_sampling_round(components: Components, tasks: int | Sequence[int], step: int, *, first_group_number: int = 0) -> SamplePlan:
    """Take the next tasks, or those with the given indices, and build the requests for them; members of a group differ only in their
    seed. Canaries come last.

    Seeds and group ids are functions of the step and of the group's number in it: a second round of a step begins at another number.
    """
    if isinstance(tasks, int):
        taken = components.task_sampler.next_tasks(tasks)
    else:
        taken = [(index, components.environment.task("train", index)) for index in tasks]
    requests, seed = list[list[RolloutRequest]](), components.config.seed
    for place, (index, task) in enumerate(taken, first_group_number):
        meta = {"split": "train", "index": index, **build_reference_meta(task)}
        members = range(components.config.rollout.num_generations)
        requests.append([RolloutRequest(task, f"{step + 1}:{place}", derive_seed(seed, step, place, member), meta) for member in members])
    greedy = [_plan_greedy_requests(requests, components.sampling)] if components.algorithm.traits.needs_greedy_sample else []
    if (watch := components.task_sampler.reward_monitor) is not None:
        requests += watch.make_canary_requests(
            taken,
            step=step,
            first_group_number=first_group_number,
            num_regular_completions=len(taken) * components.config.rollout.num_generations,
        )
    return SamplePlan(taken, [(requests, components.sampling), *greedy])


def _plan_greedy_requests(
    requests: Sequence[Sequence[RolloutRequest]], sampling: SamplingParams
) -> tuple[list[list[RolloutRequest]], SamplingParams]:
    """Build one greedy request per group, for a greedy baseline."""
    return [[replace(request[0], meta={**request[0].meta, "greedy": True})] for request in requests], replace(sampling, temperature=0.0)


def _record_sampling_round(
    components: Components, plan: SamplePlan, results: Sequence[tuple[list[Group], RolloutTiming]]
) -> tuple[list[Group], DroppedGroups, RolloutTiming]:
    """Give the results of a sampling round to the task sampler; return the groups that the algorithm selects, the others and the canary
    groups as dropped ones, and the timing.
    """
    (groups, timing), *greedy = results
    groups, opened = groups[: len(plan.tasks)], groups[len(plan.tasks) :]
    for best, more in greedy:
        groups, timing = [[*group, *one] for group, one in zip(groups, best, strict=True)], timing + more
    components.task_sampler.on_verified(plan.tasks, groups, opened)
    groups, dropped = select_groups(components, groups)
    return groups, {**dropped, **({"canary": opened} if opened else {})}, timing


def build_reference_meta(task: Task) -> dict[str, object]:
    """Return the reference as episode metadata for the viewer; empty for long references, such as many tests.

    >>> build_reference_meta(Task(({"role": "user", "content": "2+2="},), "4", id="sums/0"))
    {'reference': '4'}
    """
    text = json.dumps(task.reference, ensure_ascii=False, default=str)
    return {"reference": json.loads(text)} if task.reference is not None and len(text) <= MAX_REFERENCE_CHARACTERS else {}


def _sample_requests(
    components: Components, requests: Sequence[Sequence[RolloutRequest]], sampling: SamplingParams, version: int
) -> tuple[list[Group], RolloutTiming]:
    """Sample episodes in the nesting of their requests; return them and this process's timing."""
    if components.rollout.main_process_samples or components.accelerator.num_processes == 1:
        return _group_like_requests(
            requests, components.rollout.collect(list(chain(*requests)), sampling, version=version)
        ), components.rollout.timing
    return _sample_sharded(components, requests, sampling, version)


def _sample_sharded(
    components: Components, requests: Sequence[Sequence[RolloutRequest]], sampling: SamplingParams, version: int
) -> tuple[list[Group], RolloutTiming]:
    """Sample episodes with each process sampling its shard of the groups."""

    def work(mine: Sequence[Sequence[RolloutRequest]]) -> list[Group]:
        return _group_like_requests(mine, components.rollout.collect(list(chain(*mine)), sampling, version=version))

    return map_sharded(components.accelerator, requests, work, on_main_only=False), components.rollout.timing


def _group_like_requests(requests: Sequence[Sequence[RolloutRequest]], episodes: Sequence[Episode]) -> list[Group]:
    """Return the episodes in the nesting of their requests."""
    fresh = iter(episodes)
    return [[next(fresh) for _ in group] for group in requests]


def _add_mismatched_kl_samples(components: Components, batch: RolloutBatch) -> RolloutBatch:
    """Add episodes that pair each group's prompt with answers to another prompt, if the algorithm estimates a KL from them (KTO)."""
    return replace(batch, groups=list(add_mismatched_answers(batch.groups))) if components.algorithm.traits.needs_kl_samples else batch


def count_policy_tokens(groups: Sequence[Sequence[Episode]]) -> int:
    """Return the total number of policy tokens."""
    return sum(episode.num_policy_tokens for group in groups for episode in group)


def batch_to_json(batch: RolloutBatch) -> dict[str, Any]:
    """Convert a batch to JSON, losslessly."""
    return {
        "groups": [_group_to_json(group) for group in batch.groups],
        "dropped": {reason: [_group_to_json(group) for group in groups] for reason, groups in batch.dropped.items()},
        "metrics": dict(batch.metrics),
        "timing": asdict(batch.timing),
    }


def batch_from_json(row: Mapping[str, Any]) -> RolloutBatch:
    """Build a batch from JSON."""
    dropped = {reason: [_group_from_json(rows) for rows in groups] for reason, groups in row["dropped"].items()}
    return RolloutBatch([_group_from_json(rows) for rows in row["groups"]], dropped, row["metrics"], RolloutTiming(**row["timing"]))


def _group_to_json(group: Group) -> list[dict[str, Any]]:
    rows = [{field.name: getattr(episode, field.name) for field in fields(Episode)} for episode in group]
    return [
        row
        | {"verdict": None if row["verdict"] is None else row["verdict"].to_dict(), "segments": segments_to_json(row["segments"])}
        | {"stop_reason": row["stop_reason"].value}
        for row in rows
    ]


def _group_from_json(rows: list[dict[str, Any]]) -> Group:
    return [
        Episode(
            **{
                **row,
                "stop_reason": StopReason(row["stop_reason"]),
                "verdict": row["verdict"] and Verdict(**row["verdict"]),
                "segments": segments_from_json(row.get("segments", ())),
            }
        )
        for row in rows
    ]
