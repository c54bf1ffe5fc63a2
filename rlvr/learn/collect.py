"""Collect the groups of one step: take tasks, sample answers, and report what was sampled but not kept.

Each process samples its share of the groups, or the main process all of them (`Rollout.shared`); then every process has all groups.
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
"""Characters of a reference that are stored with each answer; the answers of a group repeat it."""


@dataclass(frozen=True, slots=True)
class Harvest:
    """The result of one step's sampling.

    >>> Harvest(groups=[], dropped={"surplus": []}, figures={}, timing=Timing()).everything
    []
    """

    groups: list[Group]
    """The groups to train on."""
    dropped: Dropped
    """The groups not trained on, by reason."""
    figures: Mapping[str, float]
    timing: Timing
    """Of this process."""

    @property
    def everything(self) -> list[Group]:
        """All groups that were sampled: first those that are trained on, then the others."""
        return [*self.groups, *(group for groups in self.dropped.values() for group in groups)]


@dataclass(frozen=True, slots=True)
class Round:
    """What is asked in one round of sampling.

    >>> Round([], [([], Sampling())]).calls[0][1].temperature
    1.0
    """

    tasks: Asked
    calls: list[tuple[list[list[Draw]], Sampling]]
    """What is sampled together, and how: a group for each task, then the honeypots; for a greedy baseline, one more draw for each task."""


class Begun(Protocol):
    """Draws that are being sampled."""

    timing: Timing

    def result(self) -> list[Episode]:
        """Wait for the episodes, one a draw."""
        ...


@runtime_checkable
class Begins(Protocol):
    """A rollout that can be asked for more while it samples what was asked before."""

    def begin(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> Begun:
        """Ask for one episode a draw, without waiting for them."""
        ...


def looks_back(crew: Crew) -> bool:
    """Whether what a step asks depends on the answers of the step before, so that it can be asked only when these are judged."""
    return crew.questions.looks_back or bool(crew.config.rollout.max_tokens_per_version) or crew.algorithm.sampling_rounds > 1


def collect(crew: Crew, step: int, *, version: int) -> Harvest:
    """The groups of one step, by that version of the weights. Where one place samples for all, only the main process calls this."""
    if crew.config.data is not None or "carried" in crew.saved or crew.algorithm.sampling_rounds > 1:
        return collect_otherwise(crew, step, version)
    return harvested(crew, *sampled(crew, crew.config.rollout.prompts_per_step, step, version))


def collect_for_all(crew: Crew, step: int, *, version: int) -> Harvest:
    """The groups of one step in all processes, where one place samples for them."""
    return by_main(crew.accelerator, lambda: collect(crew, step, version=version))


def collect_otherwise(crew: Crew, step: int, version: int) -> Harvest:
    """The groups of a step that does not ask one round: stored ones, answers in parts, dynamic sampling."""
    if crew.config.data is not None:
        return with_yardsticks(crew, Harvest(taken(crew, step), {}, {}, Timing()))
    return in_parts(crew, step, version) if "carried" in crew.saved else with_yardsticks(crew, until_enough(crew, step, version))


def begin(crew: Crew, rollout: Begins, step: int, *, version: int) -> Callable[[], Harvest]:
    """Ask for the groups of one step without waiting; what comes back waits for them. Harvests are taken in the order of the steps."""
    asked = posed(crew, crew.config.rollout.prompts_per_step, step)
    begun = [rollout.begin(list(chain(*draws)), sampling, version=version) for draws, sampling in asked.calls]

    def harvest() -> Harvest:
        found = [(nested(draws, call.result()), call.timing) for (draws, _), call in zip(asked.calls, begun, strict=True)]
        return harvested(crew, *judged(crew, asked, found))

    return harvest


def harvested(crew: Crew, groups: list[Group], dropped: Dropped, timing: Timing) -> Harvest:
    """The harvest of a step that takes one round."""
    return with_yardsticks(crew, Harvest(groups, dropped, crew.questions.figures() | crew.sampler.figures(), timing))


def sampled(crew: Crew, count: int, step: int, version: int, *, first: int = 0) -> tuple[list[Group], Dropped, Timing]:
    """One group for each of the next tasks: all members have the same task, each has its own seed. Then the honeypots, if there are any."""
    asked = posed(crew, count, step, first=first)
    return judged(crew, asked, [answered(crew, draws, sampling, version) for draws, sampling in asked.calls])


def posed(crew: Crew, count: int, step: int, *, first: int = 0) -> Round:
    """Take the next tasks, and say what is sampled for them."""
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
    """For a greedy baseline: one more draw for each group, sampled greedily."""
    return [[replace(draw[0], meta={**draw[0].meta, "greedy": True})] for draw in draws], replace(sampling, temperature=0.0)


def judged(crew: Crew, asked: Round, found: Sequence[tuple[list[Group], Timing]]) -> tuple[list[Group], Dropped, Timing]:
    """Show the questions the answers of a round, by call; returns the groups, the honeypots apart from them."""
    (groups, timing), *greedy = found
    groups, opened = groups[: len(asked.tasks)], groups[len(asked.tasks) :]
    for best, more in greedy:
        groups, timing = [[*group, *one] for group, one in zip(groups, best, strict=True)], timing + more
    crew.questions.judged(asked.tasks, groups, opened)
    return groups, {"honeypot": opened} if opened else {}, timing


def shown_reference(task: Task) -> dict[str, object]:
    """The reference for the record of an answer, where the viewer shows it. A long one, such as many tests, is left to the task.

    >>> shown_reference(Task("sums/0", ({"role": "user", "content": "2+2="},), "4"))
    {'reference': '4'}
    """
    text = json.dumps(task.reference, ensure_ascii=False, default=str)
    return {"reference": json.loads(text)} if task.reference is not None and len(text) <= LONGEST_REFERENCE else {}


def answered(crew: Crew, draws: Sequence[Sequence[Draw]], sampling: Sampling, version: int) -> tuple[list[Group], Timing]:
    """The episodes of some draws, in the same nesting, and this process's timing; each process samples its share."""
    if crew.rollout.shared or crew.accelerator.num_processes == 1:
        return nested(draws, crew.rollout.collect(list(chain(*draws)), sampling, version=version)), crew.rollout.timing
    return shared_out(crew, draws, sampling, version)


def shared_out(crew: Crew, draws: Sequence[Sequence[Draw]], sampling: Sampling, version: int) -> tuple[list[Group], Timing]:
    """The same, where each of several processes samples its share."""

    def work(mine: Sequence[Sequence[Draw]]) -> list[Group]:
        return nested(mine, crew.rollout.collect(list(chain(*mine)), sampling, version=version))

    return spread(crew.accelerator, draws, work, by_one=False), crew.rollout.timing


def nested(draws: Sequence[Sequence[Draw]], episodes: Sequence[Episode]) -> list[Group]:
    """The episodes in the nesting of their draws."""
    fresh = iter(episodes)
    return [[next(fresh) for _ in group] for group in draws]


def carry(crew: Crew) -> None:
    """Keep the answers that are cut (`rollout.max_tokens_per_version`) in the checkpoints."""
    check_parts(crew)
    if crew.config.rollout.max_tokens_per_version:
        crew.saved["carried"] = Carried(crew.environment)


def check_parts(crew: Crew) -> None:
    """ConfigError for what cannot be sampled in parts."""
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
    """The groups that end in this step, while those that do not are carried to the next."""
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
    """Dynamic sampling: repeat until enough groups have a spread of rewards."""
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
    """The groups of one step where nothing is sampled: stored ones, or gold solutions."""
    count = crew.config.rollout.prompts_per_step
    if crew.stored is not None:
        return list(crew.stored.take(step * count, count))
    return list(gold_groups(crew.questions.take(count), crew.mdp))


def with_yardsticks(crew: Crew, harvest: Harvest) -> Harvest:
    """For KTO: the same groups, each with answers to other prompts added."""
    return replace(harvest, groups=list(mismatched(harvest.groups))) if crew.algorithm.needs_mismatched else harvest


def tokens_of(groups: Sequence[Sequence[Episode]]) -> int:
    """The total number of tokens that the policy chose."""
    return sum(episode.length for group in groups for episode in group)
