"""The tasks that are never trained on: how well the policy does on them, and the proof that it never saw them."""

from __future__ import annotations

from rlvr.contracts import Sampling
from rlvr.evaluate import average, draws
from rlvr.learn.crew import Crew
from rlvr.learn.processes import share, together
from rlvr.learn.schedule import Schedule


def accuracy(crew: Crew) -> float | None:
    """Mean score on the held-out tasks; None when not one could be judged."""
    settings = crew.config.eval
    return mean_score(crew, settings.split, settings.tasks, settings.temperature)


def mean_score(crew: Crew, split: str, tasks: int, temperature: float = 0.0) -> float | None:
    """Mean score on the first tasks of a split; each process asks its share of them."""
    sampling = Sampling(temperature, stop_ids=crew.tokenizer.stop_ids)
    asked = share(crew.accelerator, draws(crew.environment, split, tasks, 1, crew.config.seed))
    episodes = together(crew.accelerator, lambda: crew.rollout.collect(asked, sampling))
    return average(episodes)


def held_out_seen(crew: Crew) -> tuple[int, int]:
    """How many different questions are held out, and how many of them training ever came past."""
    config, environment = crew.config, crew.environment
    size = environment.size(config.eval.split)
    count = config.eval.tasks if size is None else min(config.eval.tasks, size)
    held_out = {environment.task(config.eval.split, index).question for index in range(count)}
    passed = [(crew.questions.schedule, crew.questions.position)]
    if config.warmstart:
        passed.append(
            (Schedule(environment, "train", seed=config.seed, purpose="warmstart"), config.warmstart.steps * config.warmstart.batch_size)
        )
    trained = {task.question for schedule, asked in passed for _, task in schedule.tasks(0, asked)}
    if crew.stored is not None:
        trained |= crew.stored.questions(crew.mdp)
    return len(held_out), len(held_out & trained)
