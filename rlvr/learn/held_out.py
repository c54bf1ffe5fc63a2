"""Held-out tasks: measure the policy's accuracy on them, and check that none was trained on."""

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
    """The mean score on the held-out tasks; None if none could be judged."""
    return average(held_out_episodes(crew))


def held_out_episodes(crew: Crew) -> list[Episode]:
    """An answer to each held-out task, of all processes together."""
    settings = crew.config.eval
    if not settings.tasks:
        return []
    return answered(crew, settings.split, settings.tasks, settings.temperature)


def interval(crew: Crew, episodes: Sequence[Episode]) -> list[float] | None:
    """The 95 % interval of the mean score; None if no answer has a score. Tasks with the same question count as one."""
    questions = [crew.environment.task(crew.config.eval.split, index).question for index in range(len(episodes))]
    found = estimate([episode.reward if episode.scored else None for episode in episodes], questions)
    return [found.low, found.high] if found else None


def by_member(crew: Crew, episodes: Sequence[Episode]) -> dict[str, float | None]:
    """The mean score on each environment of a mixture; empty for any other environment."""
    return {name: average([e for e in episodes if member_of(e.task_id) == name]) for name in crew.environment.members}


def mean_score(crew: Crew, split: str, tasks: int, temperature: float = 0.0) -> float | None:
    """The mean score on the first tasks of a split."""
    return average(answered(crew, split, tasks, temperature))


def member_rewards(names: Sequence[str], episodes: Sequence[Episode]) -> dict[str, float | None]:
    """The mean reward on each environment of a mixture, for the metrics of a step."""
    return {f"reward/{name}": average([e for e in episodes if member_of(e.task_id) == name]) for name in names}


def member_of(task_id: str) -> str:
    """The environment of a mixture that a task is from.

    >>> member_of("mixture/sums/arithmetic/train/7")
    'sums'
    """
    return task_id.split("/")[1]


def answered(crew: Crew, split: str, tasks: int, temperature: float) -> list[Episode]:
    """An answer to each of the first tasks of a split, of all processes together."""
    sampling = Sampling(temperature, stop_ids=crew.tokenizer.stop_ids)
    asked = draws(crew.environment, split, tasks, 1, crew.config.seed)
    return spread(crew.accelerator, asked, lambda mine: crew.rollout.collect(mine, sampling), by_one=crew.rollout.shared)


def held_out_seen(crew: Crew) -> tuple[int, int]:
    """How many different tasks are held out, and how many of them were trained on."""
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
    """The identity of a task: its question, and its reference, since many tasks can share one question.

    >>> asked(Task("t", user("Guess my number from 1 to 10."), "7"))        # doctest: +SKIP
    ('Guess my number from 1 to 10.', "'7'")
    """
    return task.question, repr(task.reference)
