"""Collect the rollout batch of one step: take tasks, sample completions, and track dropped groups.

Each process samples its shard of the groups, or the main process all of them; then every process has all groups.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol, runtime_checkable

from rlvr.algorithms.functions.preferences import add_mismatched_answers
from rlvr.contracts import Sampling
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.rollout.rollout import RolloutRequest, RolloutTiming, derive_seed
from rlvr.task import Task
from rlvr.training.processes import map_sharded, run_on_main
from rlvr.training.task_sampling.dynamic_sampling import DynamicSampling, Group
from rlvr.training.task_sampling.offline_dataset import build_gold_groups
from rlvr.training.task_sampling.partial_buffer import PartialBuffer
from rlvr.training.task_sampling.task_sampler import IndexedTasks
from rlvr.training.trainer import Trainer

DroppedGroups = Mapping[str, list[Group]]
"""Groups that are not trained on, by reason."""
MAX_REFERENCE_CHARACTERS = 2_000
"""The maximum length of a reference that is stored with each episode."""


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The rollout batch of one step.

    >>> RolloutBatch(groups=[], dropped={"surplus": []}, figures={}, timing=RolloutTiming()).everything
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


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """The requests of one sampling round.

    >>> SamplePlan([], [([], Sampling())]).calls[0][1].temperature
    1.0
    """

    tasks: IndexedTasks
    calls: list[tuple[list[list[RolloutRequest]], Sampling]]
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

    def start_rollout(self, draws: Sequence[RolloutRequest], sampling: Sampling, *, version: int = 0) -> PendingRollout:
        """Request one episode per request, without waiting."""
        ...


def needs_previous_batch(crew: Trainer) -> bool:
    """Return whether the requests of a step depend on the verified results of the previous step."""
    return crew.task_sampler.needs_previous_batch or bool(crew.config.rollout.partial_rollout_tokens) or crew.algorithm.traits.sampling_rounds > 1


def collect_batch(crew: Trainer, step: int, *, version: int) -> RolloutBatch:
    """Collect the batch of one step. If the main process samples for all, only it calls this function."""
    if crew.config.data is not None or "carried" in crew.extra_state or crew.algorithm.traits.sampling_rounds > 1:
        return collect_special_batch(crew, step, version)
    return build_batch(crew, *sample_groups(crew, crew.config.rollout.prompts_per_step, step, version))


def collect_batch_on_main(crew: Trainer, step: int, *, version: int) -> RolloutBatch:
    """Collect the batch of one step in the main process, and send it to all processes."""
    return run_on_main(crew.accelerator, lambda: collect_batch(crew, step, version=version))


def collect_special_batch(crew: Trainer, step: int, version: int) -> RolloutBatch:
    """Collect a batch from offline data, partial rollouts or dynamic sampling."""
    if crew.config.data is not None:
        return add_kl_samples(crew, RolloutBatch(load_offline_groups(crew, step), {}, {}, RolloutTiming()))
    return (
        collect_partial_batch(crew, step, version)
        if "carried" in crew.extra_state
        else add_kl_samples(crew, sample_dynamic(crew, step, version))
    )


def start_batch(crew: Trainer, rollout: AsyncRollout, step: int, *, version: int) -> Callable[[], RolloutBatch]:
    """Request the groups of one step; return a function that waits for the batch. Call these in the order of the steps."""
    asked = plan_requests(crew, crew.config.rollout.prompts_per_step, step)
    begun = [rollout.start_rollout(list(chain(*draws)), sampling, version=version) for draws, sampling in asked.calls]

    def harvest() -> RolloutBatch:
        found = [(unflatten(draws, call.result()), call.timing) for (draws, _), call in zip(asked.calls, begun, strict=True)]
        return build_batch(crew, *finish_round(crew, asked, found))

    return harvest


def build_batch(crew: Trainer, groups: list[Group], dropped: DroppedGroups, timing: RolloutTiming) -> RolloutBatch:
    """Build the batch of a step with one sampling round."""
    return add_kl_samples(crew, RolloutBatch(groups, dropped, crew.task_sampler.metrics() | crew.sampler.metrics(), timing))


def sample_groups(
    crew: Trainer, count: int, step: int, version: int, *, first: int = 0
) -> tuple[list[Group], DroppedGroups, RolloutTiming]:
    """Sample one group for each of the next tasks, and the canaries; members of a group differ only in their seed."""
    asked = plan_requests(crew, count, step, first=first)
    return finish_round(crew, asked, [sample_requests(crew, draws, sampling, version) for draws, sampling in asked.calls])


def plan_requests(crew: Trainer, count: int, step: int, *, first: int = 0) -> SamplePlan:
    """Take the next tasks, and build the requests for them."""
    tasks, draws, seed = crew.task_sampler.next_tasks(count), list[list[RolloutRequest]](), crew.config.seed
    for place, (index, task) in enumerate(tasks, first):
        meta = {"split": "train", "index": index, **build_reference_meta(task)}
        members = range(crew.config.rollout.num_generations)
        draws.append([RolloutRequest(task, f"{step + 1}:{place}", derive_seed(seed, step, place, member), meta) for member in members])
    greedy = [plan_greedy_requests(draws, crew.sampling)] if crew.algorithm.traits.needs_greedy_sample else []
    if (watch := crew.task_sampler.reward_monitor) is not None:
        draws += watch.make_canary_requests(tasks, step=step, first=first, num_completions=count * crew.config.rollout.num_generations)
    return SamplePlan(tasks, [(draws, crew.sampling), *greedy])


def plan_greedy_requests(requests: Sequence[Sequence[RolloutRequest]], sampling: Sampling) -> tuple[list[list[RolloutRequest]], Sampling]:
    """Build one greedy request per group, for a greedy baseline."""
    return [[replace(draw[0], meta={**draw[0].meta, "greedy": True})] for draw in requests], replace(sampling, temperature=0.0)


def finish_round(
    crew: Trainer, plan: SamplePlan, results: Sequence[tuple[list[Group], RolloutTiming]]
) -> tuple[list[Group], DroppedGroups, RolloutTiming]:
    """Pass the results of a round to the task sampler; return the groups, the canary groups separately, and the timing."""
    (groups, timing), *greedy = results
    groups, opened = groups[: len(plan.tasks)], groups[len(plan.tasks) :]
    for best, more in greedy:
        groups, timing = [[*group, *one] for group, one in zip(groups, best, strict=True)], timing + more
    crew.task_sampler.on_verified(plan.tasks, groups, opened)
    return groups, {"canary": opened} if opened else {}, timing


def build_reference_meta(task: Task) -> dict[str, object]:
    """Return the reference as episode metadata for the viewer; empty for long references, such as many tests.

    >>> build_reference_meta(Task(({"role": "user", "content": "2+2="},), "4", id="sums/0"))
    {'reference': '4'}
    """
    text = json.dumps(task.reference, ensure_ascii=False, default=str)
    return {"reference": json.loads(text)} if task.reference is not None and len(text) <= MAX_REFERENCE_CHARACTERS else {}


def sample_requests(
    crew: Trainer, requests: Sequence[Sequence[RolloutRequest]], sampling: Sampling, version: int
) -> tuple[list[Group], RolloutTiming]:
    """Sample episodes in the nesting of their requests; return them and this process's timing."""
    if crew.rollout.main_process_samples or crew.accelerator.num_processes == 1:
        return unflatten(requests, crew.rollout.collect(list(chain(*requests)), sampling, version=version)), crew.rollout.timing
    return sample_sharded(crew, requests, sampling, version)


def sample_sharded(
    crew: Trainer, requests: Sequence[Sequence[RolloutRequest]], sampling: Sampling, version: int
) -> tuple[list[Group], RolloutTiming]:
    """Sample episodes with each process sampling its shard of the groups."""

    def work(mine: Sequence[Sequence[RolloutRequest]]) -> list[Group]:
        return unflatten(mine, crew.rollout.collect(list(chain(*mine)), sampling, version=version))

    return map_sharded(crew.accelerator, requests, work, main_only=False), crew.rollout.timing


def unflatten(requests: Sequence[Sequence[RolloutRequest]], episodes: Sequence[Episode]) -> list[Group]:
    """Return the episodes in the nesting of their requests."""
    fresh = iter(episodes)
    return [[next(fresh) for _ in group] for group in requests]


def enable_partial_rollouts(crew: Trainer) -> None:
    """Enable partial rollouts if configured; the partial completions are saved in checkpoints."""
    check_partial_rollouts(crew)
    if crew.config.rollout.partial_rollout_tokens:
        crew.extra_state["carried"] = PartialBuffer(crew.environment)


def check_partial_rollouts(crew: Trainer) -> None:
    """Raise ConfigError if the configuration does not support partial rollouts."""
    if not (most := crew.config.rollout.partial_rollout_tokens):
        return
    name = f"rollout.partial_rollout_tokens is {most}, which continues answers of one turn in later steps"
    if crew.mdp.is_interactive or crew.environment.max_turns > 1:
        raise ConfigError(f"{name}; in {crew.config.env['name']} conversations have several turns, so leave it unset")
    if crew.sampler.text_only:
        raise ConfigError(
            f"{name}; the sampler {crew.config.rollout.sampler['name']!r} gives texts, which it cannot continue; leave it unset"
        )
    if crew.algorithm.traits.needs_greedy_sample or crew.algorithm.traits.sampling_rounds > 1:
        raise ConfigError(f"{name}; {crew.config.algorithm['name']} needs all answers of a step at its end, so leave it unset")


def collect_partial_batch(crew: Trainer, step: int, version: int) -> RolloutBatch:
    """Collect the groups that end in this step; the others continue in the next step."""
    carried, timing = crew.extra_state["carried"], RolloutTiming()
    assert isinstance(carried, PartialBuffer)
    continued, asked = carried.num_partial, plan_requests(crew, crew.config.rollout.prompts_per_step, step)
    carried.add_groups(asked.tasks, asked.calls[0][0])
    while not (done := carried.pop_finished()):
        found, spent = sample_requests(crew, carried.open_requests, crew.sampling, version)
        carried.store_results(found)
        timing = timing + spent
    groups = [[answer for answer in group.completions if isinstance(answer, Episode)] for group in done]
    crew.task_sampler.on_verified([group.indexed_task for group in done], groups)
    figures = {
        "partial/resumed": float(continued),
        "partial/open": float(carried.num_partial),
        "partial/finished_groups": float(len(groups)),
    }
    return add_kl_samples(crew, RolloutBatch(groups, {}, crew.task_sampler.metrics() | crew.sampler.metrics() | figures, timing))


def sample_dynamic(crew: Trainer, step: int, version: int) -> RolloutBatch:
    """Sample rounds until enough groups have a spread of rewards (dynamic sampling)."""
    collector = DynamicSampling(crew.config.rollout.prompts_per_step, max_rounds=crew.algorithm.traits.sampling_rounds)
    timing, pots = RolloutTiming(), list[Group]()
    while not collector.is_done:
        groups, aside, spent = sample_groups(crew, collector.next_num_groups, step, version, first=len(collector.sampled_groups))
        collector.add_groups(groups)
        pots += aside.get("canary", [])
        timing = timing + spent
    dropped = collector.list_dropped()
    for reason, groups in dropped.items():
        for episode in (e for group in groups for e in group):
            episode.meta["dropped"] = reason
    dropped |= {"canary": pots} if pots else {}
    figures = crew.task_sampler.metrics() | collector.metrics() | crew.sampler.metrics()
    return RolloutBatch(collector.select_groups(), dropped, figures, timing)


def load_offline_groups(crew: Trainer, step: int) -> list[Group]:
    """Load the groups of one step from offline data or gold solutions."""
    count = crew.config.rollout.prompts_per_step
    if crew.offline_dataset is not None:
        return list(crew.offline_dataset.get_groups(step * count, count))
    return list(build_gold_groups(crew.task_sampler.next_tasks(count), crew.mdp))


def add_kl_samples(crew: Trainer, batch: RolloutBatch) -> RolloutBatch:
    """Add answers to other prompts to each group, if the algorithm needs them (KTO)."""
    return replace(batch, groups=list(add_mismatched_answers(batch.groups))) if crew.algorithm.traits.needs_kl_samples else batch


def count_tokens(groups: Sequence[Sequence[Episode]]) -> int:
    """Return the total number of policy tokens."""
    return sum(episode.num_policy_tokens for group in groups for episode in group)
