"""Held-out tasks: evaluate the policy, and check that none was trained on."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.contracts import Sampling
from rlvr.episode import Episode
from rlvr.evaluation.evaluate import average, count_of, draws
from rlvr.evaluation.statistics import estimate
from rlvr.learn.crew import Crew
from rlvr.learn.processes import spread
from rlvr.learn.questions.schedule import Schedule
from rlvr.task import Task


def accuracy(crew: Crew) -> float | None:
    """Return the mean score on the held-out tasks; None if no verdict has a score."""
    return average(held_out_episodes(crew))


def held_out_episodes(crew: Crew) -> list[Episode]:
    """Sample a completion of each held-out task, over all processes."""
    settings = crew.config.eval
    if not settings.tasks:
        return []
    return answered(crew, settings.split, settings.tasks, settings.temperature)


def interval(crew: Crew, episodes: Sequence[Episode]) -> list[float] | None:
    """Estimate the 95 % interval of the mean score; None without scores. Tasks with the same question count as one."""
    questions = [crew.environment.task(crew.config.eval.split, index).question for index in range(len(episodes))]
    found = estimate([episode.reward if episode.scored else None for episode in episodes], questions)
    return [found.low, found.high] if found else None


def by_member(crew: Crew, episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Return the mean score on each environment of a mixture; empty for other environments."""
    return {name: average([e for e in episodes if member_of(e.task_id) == name]) for name in crew.environment.members}


def mean_score(crew: Crew, split: str, tasks: int, temperature: float = 0.0) -> float | None:
    """Return the mean score on the first tasks of a split."""
    return average(answered(crew, split, tasks, temperature))


def member_rewards(names: Sequence[str], episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Return the mean reward on each environment of a mixture, as metrics of a step."""
    return {f"reward/{name}": average([e for e in episodes if member_of(e.task_id) == name]) for name in names}


def member_of(task_id: str) -> str:
    """Return the environment of a mixture that a task is from.

    >>> member_of("mixture/sums/arithmetic/train/7")
    'sums'
    """
    return task_id.split("/")[1]


def answered(crew: Crew, split: str, tasks: int, temperature: float) -> list[Episode]:
    """Sample a completion of each of the first tasks of a split, over all processes."""
    sampling = Sampling(temperature, stop_ids=crew.tokenizer.stop_ids)
    asked = draws(crew.environment, split, tasks, 1, crew.config.seed)
    return spread(crew.accelerator, asked, lambda mine: crew.rollout.collect(mine, sampling), by_one=crew.rollout.shared)


def held_out_seen(crew: Crew) -> tuple[int, int]:
    """Count the different held-out tasks, and those of them that were trained on."""
    config, environment = crew.config, crew.environment
    if not config.eval.tasks:
        return 0, 0
    count = count_of(environment, config.eval.split, config.eval.tasks)
    held_out = {asked(environment.task(config.eval.split, index)) for index in range(count)}
    questions = {question for question, _ in held_out}
    passed = [(crew.questions.schedule, crew.questions.position)]
    if config.warmstart:
        passed.append(
            (Schedule(environment, "train", seed=config.seed, purpose="warmstart"), config.warmstart.steps * config.warmstart.batch_size)
        )
    indices = {schedule.index(position) for schedule, end in passed for position in range(end)}  # each task is made once
    given = (environment.task("train", index) for index in sorted(indices))
    trained = {asked(task) for task in given if task.question in questions}
    if crew.stored is not None:
        trained |= {asked(task) for task in crew.stored.tasks(crew.mdp)}
    return len(held_out), len(held_out & trained)


def asked(task: Task) -> tuple[str, str]:
    """Return the identity of a task: its question and its reference, because many tasks can share one question."""
    return task.question, repr(task.reference)
