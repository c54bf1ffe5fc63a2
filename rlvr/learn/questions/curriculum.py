"""Curriculum: prefer tasks of medium difficulty, by a running solve rate per task.

A task solved with probability p is most useful near p = 1/2: a group of it has a reward variance of p (1 - p). A task without
a solve rate counts as p = 1/2, and every task keeps a minimum weight, so that forgotten skills are detected.

If tasks are generated and never repeat, single tasks have no rate; `by` then names a property that they share, such as their level.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.episode import Episode
from rlvr.errors import ConfigError, suggest
from rlvr.task import Task


class Curriculum:
    """Solve rates, and random draws weighted by them. The state is plain JSON.

    >>> c = Curriculum(decay=0.5)
    >>> c.observe("easy", 1.0); c.observe("open", 0.5)
    >>> c.weight("open") > c.weight("easy")
    True
    """

    def __init__(self, *, decay: float = 0.7, floor: float = 0.05, candidates: int = 4, by: str | None = None) -> None:
        if not 0 <= decay < 1 or not 0 < floor <= 1 or candidates < 1:
            raise ConfigError(
                f"decay {decay} must be at least 0 and below 1, floor {floor} above 0 and at most 1, and candidates {candidates} at least 1"
            )
        self.decay, self.floor, self.candidates, self.by = decay, floor, candidates, by
        self.rates: dict[str, float] = {}

    def key(self, task: Task) -> str:
        """Return the key under which a task's solve rate is stored."""
        if self.by is None:
            return task.id
        if self.by not in task.meta:
            raise ConfigError(f"curriculum.by is {self.by!r}, which is not in the meta of {task.id}; {suggest(self.by, task.meta)}")
        return str(task.meta[self.by])

    def observe(self, task: str, solved: float) -> None:
        """Update a solve rate with the fraction of right answers in a group; recent groups count more."""
        before = self.rates.get(task)
        self.rates[task] = solved if before is None else self.decay * before + (1 - self.decay) * solved

    def judged(self, task: Task, group: Sequence[Episode]) -> None:
        """Update the solve rate with a group; a group without any score is ignored."""
        scores = [e.verdict.score for e in group if e.scored and not e.meta.get("greedy") and e.verdict and e.verdict.score is not None]
        if scores:
            self.observe(self.key(task), sum(scores) / len(scores))

    def weight(self, task: str) -> float:
        """Return the sampling weight of a task, from the minimum weight to 1."""
        p = self.rates.get(task, 0.5)
        return max(self.floor, 4 * p * (1 - p))

    def choose(self, tasks: Sequence[str], count: int, *, seed: int) -> list[int]:
        """Draw `count` positions, weighted by the tasks at them; the same state and seed give the same draw."""
        if count > len(tasks):
            raise ConfigError(f"{count} tasks are requested, but there are {len(tasks)}; lower the count or add tasks")
        dice = random.Random(seed)
        keys = [dice.random() ** (1 / self.weight(task)) for task in tasks]
        return sorted(sorted(range(len(tasks)), key=lambda i: -keys[i])[:count])

    def figures(self) -> dict[str, float]:
        """Return metrics: the number of known solve rates, and their mean."""
        rates = self.rates.values()
        return {"curriculum/known": float(len(rates)), "curriculum/solve_rate": sum(rates) / len(rates)} if rates else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"rates": dict(self.rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.rates = {str(task): float(rate) for task, rate in state["rates"].items()}
