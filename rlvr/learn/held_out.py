"""Held-out tasks: measure the policy's accuracy on them, and check that none was trained on."""

from __future__ import annotations

from rlvr.contracts import Sampling
from rlvr.evaluation.evaluate import average, count_of, draws
from rlvr.learn.crew import Crew
from rlvr.learn.processes import share, together
from rlvr.learn.questions.schedule import Schedule
from rlvr.task import Task


def accuracy(crew: Crew) -> float | None:
    """The mean score on the held-out tasks; None if none could be judged."""
    settings = crew.config.eval
    return mean_score(crew, settings.split, settings.tasks, settings.temperature)


def mean_score(crew: Crew, split: str, tasks: int, temperature: float = 0.0) -> float | None:
    """The mean score on the first tasks of a split; each process samples its share of them."""
    sampling = Sampling(temperature, stop_ids=crew.tokenizer.stop_ids)
    asked = share(crew.accelerator, draws(crew.environment, split, tasks, 1, crew.config.seed))
    episodes = together(crew.accelerator, lambda: crew.rollout.collect(asked, sampling))
    return average(episodes)


def held_out_seen(crew: Crew) -> tuple[int, int]:
    """How many different tasks are held out, and how many of them were trained on."""
    config, environment = crew.config, crew.environment
    count = count_of(environment, config.eval.split, config.eval.tasks)
    held_out = {asked(environment.task(config.eval.split, index)) for index in range(count)}
    questions = {question for question, _ in held_out}
    passed = [(crew.questions.schedule, crew.questions.position)]
    if config.warmstart:
        passed.append(
            (Schedule(environment, "train", seed=config.seed, purpose="warmstart"), config.warmstart.steps * config.warmstart.batch_size)
        )
    trained = {asked(task) for schedule, end in passed for _, task in schedule.tasks(0, end) if task.question in questions}
    if crew.stored is not None:
        trained |= {asked(task) for task in crew.stored.tasks(crew.mdp)}
    return len(held_out), len(held_out & trained)


def asked(task: Task) -> tuple[str, str]:
    """The identity of a task: its question, and its reference, since many tasks can share one question.

    >>> asked(Task("t", user("Guess my number from 1 to 10."), "7"))        # doctest: +SKIP
    ('Guess my number from 1 to 10.', "'7'")
    """
    return task.question, repr(task.reference)
