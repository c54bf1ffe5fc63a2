"""Collect the rollout batch of one step: take tasks, sample completions, and track dropped groups.

Each process samples its shard of the groups, or the main process all of them; then every process has all groups.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol, runtime_checkable

from rlvr.algos.parts.preferences import mismatched
from rlvr.contracts import Sampling
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.learn.crew import Crew
from rlvr.learn.processes import by_main, spread
from rlvr.learn.questions.carried import Carried
from rlvr.learn.questions.dynamic import DynamicSampling, Group
from rlvr.learn.questions.questions import Asked
from rlvr.learn.questions.stored import gold_groups
from rlvr.rollout.rollout import Draw, Timing, seed_of
from rlvr.task import Task

Dropped = Mapping[str, list[Group]]
"""Groups that are not trained on, by reason."""
LONGEST_REFERENCE = 2_000
"""The maximum length of a reference that is stored with each episode."""


@dataclass(frozen=True, slots=True)
class Harvest:
    """The rollout batch of one step.

    >>> Harvest(groups=[], dropped={"surplus": []}, figures={}, timing=Timing()).everything
    []
    """

    groups: list[Group]
    """The groups to train on."""
    dropped: Dropped
    """The groups not trained on, by reason."""
    figures: Mapping[str, float]
    timing: Timing
    """The timing of this process."""

    @property
    def everything(self) -> list[Group]:
        """All sampled groups: first those that are trained on, then the dropped ones."""
        return [*self.groups, *(group for groups in self.dropped.values() for group in groups)]


@dataclass(frozen=True, slots=True)
class Round:
    """The requests of one sampling round.

    >>> Round([], [([], Sampling())]).calls[0][1].temperature
    1.0
    """

    tasks: Asked
    calls: list[tuple[list[list[Draw]], Sampling]]
    """The calls of the round, each with its sampling parameters: the groups and canaries, then a greedy request per task if needed."""


class Begun(Protocol):
    """Requests that are being sampled."""

    timing: Timing

    def result(self) -> list[Episode]:
        """Wait for the episodes, one per request."""
        ...


@runtime_checkable
class Begins(Protocol):
    """A rollout that accepts new requests while it samples earlier ones."""

    def begin(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> Begun:
        """Request one episode per request, without waiting."""
        ...


def looks_back(crew: Crew) -> bool:
    """Return whether the requests of a step depend on the verified results of the previous step."""
    return crew.questions.looks_back or bool(crew.config.rollout.max_tokens_per_version) or crew.algorithm.sampling_rounds > 1


def collect(crew: Crew, step: int, *, version: int) -> Harvest:
    """Collect the batch of one step. If the main process samples for all, only it calls this function."""
    if crew.config.data is not None or "carried" in crew.saved or crew.algorithm.sampling_rounds > 1:
        return collect_otherwise(crew, step, version)
    return harvested(crew, *sampled(crew, crew.config.rollout.prompts_per_step, step, version))


def collect_for_all(crew: Crew, step: int, *, version: int) -> Harvest:
    """Collect the batch of one step in the main process, and send it to all processes."""
    return by_main(crew.accelerator, lambda: collect(crew, step, version=version))


def collect_otherwise(crew: Crew, step: int, version: int) -> Harvest:
    """Collect a batch from offline data, partial rollouts or dynamic sampling."""
    if crew.config.data is not None:
        return with_yardsticks(crew, Harvest(taken(crew, step), {}, {}, Timing()))
    return in_parts(crew, step, version) if "carried" in crew.saved else with_yardsticks(crew, until_enough(crew, step, version))


def begin(crew: Crew, rollout: Begins, step: int, *, version: int) -> Callable[[], Harvest]:
    """Request the groups of one step; return a function that waits for the batch. Call these in the order of the steps."""
    asked = posed(crew, crew.config.rollout.prompts_per_step, step)
    begun = [rollout.begin(list(chain(*draws)), sampling, version=version) for draws, sampling in asked.calls]

    def harvest() -> Harvest:
        found = [(nested(draws, call.result()), call.timing) for (draws, _), call in zip(asked.calls, begun, strict=True)]
        return harvested(crew, *judged(crew, asked, found))

    return harvest


def harvested(crew: Crew, groups: list[Group], dropped: Dropped, timing: Timing) -> Harvest:
    """Build the batch of a step with one sampling round."""
    return with_yardsticks(crew, Harvest(groups, dropped, crew.questions.figures() | crew.sampler.figures(), timing))


def sampled(crew: Crew, count: int, step: int, version: int, *, first: int = 0) -> tuple[list[Group], Dropped, Timing]:
    """Sample one group for each of the next tasks, and the canaries; members of a group differ only in their seed."""
    asked = posed(crew, count, step, first=first)
    return judged(crew, asked, [answered(crew, draws, sampling, version) for draws, sampling in asked.calls])


def posed(crew: Crew, count: int, step: int, *, first: int = 0) -> Round:
    """Take the next tasks, and build the requests for them."""
    tasks, draws, seed = crew.questions.take(count), list[list[Draw]](), crew.config.seed
    for place, (index, task) in enumerate(tasks, first):
        meta = {"split": "train", "index": index, **shown_reference(task)}
        members = range(crew.config.rollout.num_generations)
        draws.append([Draw(task, f"{step + 1}:{place}", seed_of(seed, step, place, member), meta) for member in members])
    greedy = [greedily(draws, crew.sampling)] if crew.algorithm.needs_greedy else []
    if (watch := crew.questions.watch) is not None:
        draws += watch.draws(tasks, step=step, first=first, answers=count * crew.config.rollout.num_generations)
    return Round(tasks, [(draws, crew.sampling), *greedy])


def greedily(draws: Sequence[Sequence[Draw]], sampling: Sampling) -> tuple[list[list[Draw]], Sampling]:
    """Build one greedy request per group, for a greedy baseline."""
    return [[replace(draw[0], meta={**draw[0].meta, "greedy": True})] for draw in draws], replace(sampling, temperature=0.0)


def judged(crew: Crew, asked: Round, found: Sequence[tuple[list[Group], Timing]]) -> tuple[list[Group], Dropped, Timing]:
    """Pass the results of a round to the task sampler; return the groups, the canary groups separately, and the timing."""
    (groups, timing), *greedy = found
    groups, opened = groups[: len(asked.tasks)], groups[len(asked.tasks) :]
    for best, more in greedy:
        groups, timing = [[*group, *one] for group, one in zip(groups, best, strict=True)], timing + more
    crew.questions.judged(asked.tasks, groups, opened)
    return groups, {"honeypot": opened} if opened else {}, timing


def shown_reference(task: Task) -> dict[str, object]:
    """Return the reference as episode metadata for the viewer; empty for long references, such as many tests.

    >>> shown_reference(Task("sums/0", ({"role": "user", "content": "2+2="},), "4"))
    {'reference': '4'}
    """
    text = json.dumps(task.reference, ensure_ascii=False, default=str)
    return {"reference": json.loads(text)} if task.reference is not None and len(text) <= LONGEST_REFERENCE else {}


def answered(crew: Crew, draws: Sequence[Sequence[Draw]], sampling: Sampling, version: int) -> tuple[list[Group], Timing]:
    """Sample episodes in the nesting of their requests; return them and this process's timing."""
    if crew.rollout.shared or crew.accelerator.num_processes == 1:
        return nested(draws, crew.rollout.collect(list(chain(*draws)), sampling, version=version)), crew.rollout.timing
    return shared_out(crew, draws, sampling, version)


def shared_out(crew: Crew, draws: Sequence[Sequence[Draw]], sampling: Sampling, version: int) -> tuple[list[Group], Timing]:
    """Sample episodes with each process sampling its shard of the groups."""

    def work(mine: Sequence[Sequence[Draw]]) -> list[Group]:
        return nested(mine, crew.rollout.collect(list(chain(*mine)), sampling, version=version))

    return spread(crew.accelerator, draws, work, by_one=False), crew.rollout.timing


def nested(draws: Sequence[Sequence[Draw]], episodes: Sequence[Episode]) -> list[Group]:
    """Return the episodes in the nesting of their requests."""
    fresh = iter(episodes)
    return [[next(fresh) for _ in group] for group in draws]


def carry(crew: Crew) -> None:
    """Enable partial rollouts if configured; the partial completions are saved in checkpoints."""
    check_parts(crew)
    if crew.config.rollout.max_tokens_per_version:
        crew.saved["carried"] = Carried(crew.environment)


def check_parts(crew: Crew) -> None:
    """Raise ConfigError if the configuration does not support partial rollouts."""
    if not (most := crew.config.rollout.max_tokens_per_version):
        return
    name = f"rollout.max_tokens_per_version is {most}, which continues answers of one turn in later steps"
    if crew.mdp.takes_part or crew.environment.max_turns > 1:
        raise ConfigError(f"{name}; in {crew.config.env['name']} conversations have several turns, so leave it unset")
    if crew.sampler.gives_text:
        raise ConfigError(
            f"{name}; the sampler {crew.config.rollout.sampler['name']!r} gives texts, which it cannot continue; leave it unset"
        )
    if crew.algorithm.needs_greedy or crew.algorithm.sampling_rounds > 1:
        raise ConfigError(f"{name}; {crew.config.algorithm['name']} needs all answers of a step at its end, so leave it unset")


def in_parts(crew: Crew, step: int, version: int) -> Harvest:
    """Collect the groups that end in this step; the others continue in the next step."""
    carried, timing = crew.saved["carried"], Timing()
    assert isinstance(carried, Carried)
    continued, asked = carried.continued, posed(crew, crew.config.rollout.prompts_per_step, step)
    carried.begin(asked.tasks, asked.calls[0][0])
    while not (done := carried.ended()):
        found, spent = answered(crew, carried.open, crew.sampling, version)
        carried.came(found)
        timing = timing + spent
    groups = [[answer for answer in group.answers if isinstance(answer, Episode)] for group in done]
    crew.questions.judged([group.asked for group in done], groups)
    figures = {"parts/continued": float(continued), "parts/cut": float(carried.continued), "parts/groups": float(len(groups))}
    return with_yardsticks(crew, Harvest(groups, {}, crew.questions.figures() | crew.sampler.figures() | figures, timing))


def until_enough(crew: Crew, step: int, version: int) -> Harvest:
    """Sample rounds until enough groups have a spread of rewards (dynamic sampling)."""
    collector = DynamicSampling(crew.config.rollout.prompts_per_step, max_rounds=crew.algorithm.sampling_rounds)
    timing, pots = Timing(), list[Group]()
    while not collector.done:
        groups, aside, spent = sampled(crew, collector.next_size, step, version, first=len(collector.offered))
        collector.offer(groups)
        pots += aside.get("honeypot", [])
        timing = timing + spent
    dropped = collector.dropped()
    for reason, groups in dropped.items():
        for episode in (e for group in groups for e in group):
            episode.meta["dropped"] = reason
    dropped |= {"honeypot": pots} if pots else {}
    figures = crew.questions.figures() | collector.figures() | crew.sampler.figures()
    return Harvest(collector.groups(), dropped, figures, timing)


def taken(crew: Crew, step: int) -> list[Group]:
    """Load the groups of one step from offline data or gold solutions."""
    count = crew.config.rollout.prompts_per_step
    if crew.stored is not None:
        return list(crew.stored.take(step * count, count))
    return list(gold_groups(crew.questions.take(count), crew.mdp))


def with_yardsticks(crew: Crew, harvest: Harvest) -> Harvest:
    """Add answers to other prompts to each group, if the algorithm needs them (KTO)."""
    return replace(harvest, groups=list(mismatched(harvest.groups))) if crew.algorithm.needs_mismatched else harvest


def tokens_of(groups: Sequence[Sequence[Episode]]) -> int:
    """Return the total number of policy tokens."""
    return sum(episode.length for group in groups for episode in group)
