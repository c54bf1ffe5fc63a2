"""Collect the groups of one step: take tasks, sample answers, and report what was sampled but not kept.

Each process samples its share of the groups, and then every process has all groups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlvr.algos.parts.preferences import mismatched
from rlvr.contracts import Sampling
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.learn.crew import Crew
from rlvr.learn.processes import share, together
from rlvr.learn.questions.carried import Carried, answer_from, begun
from rlvr.learn.questions.dynamic import DynamicSampling, Group
from rlvr.learn.questions.questions import Asked
from rlvr.learn.questions.stored import gold_groups
from rlvr.rollout.parts import Part, Parts
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


def collect(crew: Crew, step: int, *, version: int) -> Harvest:
    """The groups of one step: stored ones, or new answers; `version` is that of the sampler's weights."""
    if crew.config.data is not None:
        harvest = Harvest(taken(crew, step), {}, {}, Timing())
    elif "carried" in crew.saved:
        harvest = in_parts(crew, step, version)
    elif crew.algorithm.sampling_rounds > 1:
        harvest = until_enough(crew, step, version)
    else:
        groups, dropped, timing = sampled(crew, crew.config.rollout.prompts_per_step, step, version)
        harvest = Harvest(groups, dropped, crew.questions.figures() | crew.sampler.figures(), timing)
    return with_yardsticks(harvest) if crew.algorithm.needs_mismatched else harvest


def sampled(crew: Crew, count: int, step: int, version: int, *, first: int = 0) -> tuple[list[Group], Dropped, Timing]:
    """One group for each of the next tasks: all members have the same task, each has its own seed. Then the honeypots, if there are any."""
    asked = crew.questions.take(count)
    draws = posed(crew, asked, step, first)
    if (watch := crew.questions.watch) is not None:
        draws += watch.draws(asked, step=step, first=first, answers=count * crew.config.rollout.num_generations)
    groups, timing = answered(crew, draws, crew.sampling, version)
    groups, opened = groups[:count], groups[count:]
    if crew.algorithm.needs_greedy:
        groups, timing = with_greedy(crew, draws[:count], groups, timing, version)
    crew.questions.judged(asked, groups, opened)
    return groups, {"honeypot": opened} if opened else {}, timing


def posed(crew: Crew, asked: Asked, step: int, first: int = 0) -> list[list[Draw]]:
    """A group of draws for each task."""
    draws, seed = list[list[Draw]](), crew.config.seed
    for place, (index, task) in enumerate(asked, first):
        meta = {"split": "train", "index": index, **shown_reference(task)}
        members = range(crew.config.rollout.num_generations)
        draws.append([Draw(task, f"{step + 1}:{place}", seed_of(seed, step, place, member), meta) for member in members])
    return draws


def shown_reference(task: Task) -> dict[str, object]:
    """The reference for the record of an answer, where the viewer shows it. A long one, such as many tests, is left to the task.

    >>> shown_reference(Task("sums/0", ({"role": "user", "content": "2+2="},), "4"))
    {'reference': '4'}
    """
    text = json.dumps(task.reference, ensure_ascii=False, default=str)
    return {"reference": json.loads(text)} if task.reference is not None and len(text) <= LONGEST_REFERENCE else {}


def with_greedy(
    crew: Crew, draws: Sequence[Sequence[Draw]], groups: list[Group], timing: Timing, version: int
) -> tuple[list[Group], Timing]:
    """For a greedy baseline: the same groups, each with one more answer, sampled greedily."""
    greedy = [[replace(draw[0], meta={**draw[0].meta, "greedy": True})] for draw in draws]
    best, more = answered(crew, greedy, replace(crew.sampling, temperature=0.0), version)
    return [[*group, *one] for group, one in zip(groups, best, strict=True)], timing + more


def answered(crew: Crew, draws: Sequence[Sequence[Draw]], sampling: Sampling, version: int) -> tuple[list[Group], Timing]:
    """The episodes of some draws, in the same nesting, and this process's timing; each process samples its share."""
    mine = share(crew.accelerator, draws)

    def work() -> list[Group]:
        fresh = iter(crew.rollout.collect([draw for group in mine for draw in group], sampling, version=version))
        return [[next(fresh) for _ in group] for group in mine]

    return together(crew.accelerator, work), crew.rollout.timing


def carry(crew: Crew) -> None:
    """Sample in parts if the configuration asks for it (`rollout.max_tokens_per_version`); what is cut goes into the checkpoints."""
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
    parts = Parts(crew.rollout.sampler, most)
    crew.rollout.sampler, crew.saved["carried"] = parts, Carried(crew.environment, parts)


def in_parts(crew: Crew, step: int, version: int) -> Harvest:
    """The groups that end in this step, while those that do not are carried to the next."""
    carried, timing = crew.saved["carried"], Timing()
    assert isinstance(carried, Carried)
    continued, asked = carried.continued, crew.questions.take(crew.config.rollout.prompts_per_step)
    carried.begin(asked, posed(crew, asked, step))
    while not (done := carried.ended()):
        mine = share(crew.accelerator, carried.open)

        def work(mine: list[list[tuple[Draw, Part | None]]] = mine) -> list[list[Episode | Part | None]]:
            everything = [one for group in mine for one in group]
            with carried.parts.cutting(begun(everything), version) as known:
                fresh = iter(crew.rollout.collect([draw for draw, _ in everything], crew.sampling, version=version))
                return [[answer_from(next(fresh), draw, known) for draw, _ in group] for group in mine]

        carried.came(together(crew.accelerator, work))
        timing = timing + crew.rollout.timing
    groups = [[answer for answer in group.answers if isinstance(answer, Episode)] for group in done]
    crew.questions.judged([group.asked for group in done], groups)
    figures = {"parts/continued": float(continued), "parts/cut": float(carried.continued), "parts/groups": float(len(groups))}
    return Harvest(groups, {}, crew.questions.figures() | crew.sampler.figures() | figures, timing)


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


def with_yardsticks(harvest: Harvest) -> Harvest:
    """For KTO: the same groups, each with answers to other prompts added."""
    return replace(harvest, groups=list(mismatched(harvest.groups)))


def tokens_of(groups: Sequence[Sequence[Episode]]) -> int:
    """The total number of tokens that the policy chose."""
    return sum(episode.length for group in groups for episode in group)
