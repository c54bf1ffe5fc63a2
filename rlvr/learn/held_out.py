"""The tasks that are never trained on: how well the policy does on them, and the proof that it never saw them."""

from __future__ import annotations

from rlvr.contracts import Sampling
from rlvr.evaluate import measure, summarise
from rlvr.learn.crew import Crew
from rlvr.learn.schedule import Schedule


def accuracy(crew: Crew) -> float | None:
    """Mean score on the held-out tasks; None when not one could be judged."""
    settings = crew.config.eval
    sampling = Sampling(settings.temperature, stop_ids=crew.tokenizer.stop_ids)
    episodes = measure(crew.rollout, split=settings.split, tasks=settings.tasks, n=1, sampling=sampling, seed=crew.config.seed)
    return summarise(episodes, env=crew.config.env["name"], policy="trained", split=settings.split).accuracy


def held_out_seen(crew: Crew) -> tuple[int, int]:
    """How many different questions are held out, and how many of them were ever trained on."""
    config, environment = crew.config, crew.environment
    size = environment.size(config.eval.split)
    count = config.eval.tasks if size is None else min(config.eval.tasks, size)
    held_out = {environment.task(config.eval.split, index).question for index in range(count)}
    warm = config.warmstart
    rounds = [(crew.schedule, config.train.steps, config.rollout.prompts_per_step)]
    if warm:
        rounds.append((Schedule(environment, "train", seed=config.seed, purpose="warmstart"), warm.steps, warm.batch_size))
    trained = {task.question for schedule, steps, each in rounds for step in range(steps) for _, task in schedule.tasks(step, each)}
    return len(held_out), len(held_out & trained)
