"""One step of the loop: tasks to episodes, episodes to new weights, and the lines that are logged of it.

It depends on the weights, the learner's state, the run's seed and the step's number, and on nothing else.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from rlvr.episode import End, Episode
from rlvr.learn.crew import Crew
from rlvr.learn.held_out import accuracy
from rlvr.rollout import Draw, seed_of
from rlvr.runlog import RunLog


def one_step(crew: Crew, run: RunLog, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One step of the loop: its numbers, and its times."""
    assert crew.learner is not None
    clock = time.perf_counter()
    groups = collect(crew, step)
    sampled = time.perf_counter()
    metrics = crew.learner.update(groups)
    updated = time.perf_counter()
    crew.sampler.load(crew.accelerator.unwrap_model(crew.model), step + 1)
    row: dict[str, Any] = {"step": step + 1, **sampled_metrics(groups), **metrics}
    every = crew.config.eval.every
    if every and (step + 1) % every == 0:
        row["eval/accuracy"] = accuracy(crew)
    timing, ended = crew.rollout.timing, time.perf_counter()
    tokens = sum(episode.length for group in groups for episode in group)
    times = {
        "step": step + 1,
        "step_time": ended - clock,
        "time/sample": timing.sampling,
        "time/verify_waited": timing.waiting,
        "time/verify": timing.verifying,
        "time/update": updated - sampled,
        "tokens_per_second": tokens / (ended - clock),
    }
    run.metrics(row, times)
    if crew.config.log.episodes:
        run.episodes(step + 1, groups, crew.learner.advantages)
    return row, times


def collect(crew: Crew, step: int) -> list[list[Episode]]:
    """The groups of one step: the same task in each, another seed for each member."""
    settings = crew.config.rollout
    tasks = crew.schedule.tasks(step, settings.prompts_per_step)
    groups: list[list[Episode]] = [[] for _ in tasks]
    draws = [
        Draw(task, f"{step + 1}:{place}", seed_of(crew.config.seed, step, place, member), {"split": "train", "index": index})
        for place, (index, task) in enumerate(tasks)
        for member in range(settings.num_generations)
    ]
    for i, episode in enumerate(crew.rollout.collect(draws, crew.sampling, version=step)):
        groups[i // settings.num_generations].append(episode)
    if crew.algorithm.needs_greedy:
        timing = crew.rollout.timing
        greedy = [replace(draw, meta={**draw.meta, "greedy": True}) for draw in draws[:: settings.num_generations]]
        for group, episode in zip(groups, crew.rollout.collect(greedy, replace(crew.sampling, temperature=0.0), version=step), strict=True):
            group.append(episode)
        crew.rollout.timing = timing + crew.rollout.timing
    return groups


def sampled_metrics(groups: list[list[Episode]]) -> dict[str, float | None]:
    """What the episodes themselves say; a group's reward counts only members that have a verdict."""
    everyone = [episode for group in groups for episode in group if not episode.meta.get("greedy")]
    rewards = [episode.reward for episode in everyone if episode.scored]
    lengths = [episode.length for episode in everyone]
    mean = sum(rewards) / len(rewards) if rewards else None
    spread = (sum((r - mean) ** 2 for r in rewards) / max(len(rewards) - 1, 1)) ** 0.5 if mean is not None else None
    return {
        "reward": mean,
        "reward_std": spread,
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": sum(episode.end is End.TRUNCATED for episode in everyone) / len(everyone),
        "unscored": len(everyone) - len(rewards),
        "num_tokens": sum(lengths),
    }
