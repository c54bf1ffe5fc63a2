"""Curriculum: prefer tasks of medium difficulty, by a running solve rate per task.

A task solved with probability p is most useful near p = 1/2: a group of it has a reward variance of p (1 - p). A task without
a solve rate counts as p = 1/2, and every task keeps a minimum weight, so that forgotten skills are detected.

If tasks are generated and never repeat, single tasks have no rate; `meta_key` then names a property that they share, such as their level.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.episode import Episode
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Task


class Curriculum:
    """Solve rates, and random draws weighted by them. The state is plain JSON.

    >>> c = Curriculum(ema_decay=0.5)
    >>> c.update_solve_rate("easy", 1.0); c.update_solve_rate("open", 0.5)
    >>> c.compute_weight("open") > c.compute_weight("easy")
    True
    """

    def __init__(
        self, *, ema_decay: float = 0.7, min_weight: float = 0.05, candidates_per_task: int = 4, meta_key: str | None = None
    ) -> None:
        if not 0 <= ema_decay < 1 or not 0 < min_weight <= 1 or candidates_per_task < 1:
            raise ConfigError(
                f"ema_decay {ema_decay} must be at least 0 and below 1, min_weight {min_weight} above 0 and at most 1, and "
                f"candidates_per_task {candidates_per_task} at least 1"
            )
        self.ema_decay, self.min_weight, self.candidates_per_task, self.meta_key = ema_decay, min_weight, candidates_per_task, meta_key
        self.solve_rates: dict[str, float] = {}

    def get_rate_key(self, task: Task) -> str:
        """Return the key under which a task's solve rate is stored."""
        if self.meta_key is None:
            return task.id
        if self.meta_key not in task.meta:
            raise ConfigError(
                f"curriculum.meta_key is {self.meta_key!r}, which is not in the meta of {task.id}; {format_suggestion(self.meta_key, task.meta)}"
            )
        return str(task.meta[self.meta_key])

    def update_solve_rate(self, rate_key: str, solved_fraction: float) -> None:
        """Update a solve rate with the fraction of right answers in a group; recent groups count more."""
        before = self.solve_rates.get(rate_key)
        self.solve_rates[rate_key] = solved_fraction if before is None else self.ema_decay * before + (1 - self.ema_decay) * solved_fraction

    def update_from_group(self, task: Task, group: Sequence[Episode]) -> None:
        """Update the solve rate with a group; a group without any score is ignored."""
        scores = [
            e.verdict.score
            for e in group
            if e.is_scored and not e.meta.get("greedy") and e.verdict is not None and e.verdict.score is not None
        ]
        if scores:
            self.update_solve_rate(self.get_rate_key(task), sum(scores) / len(scores))

    def compute_weight(self, rate_key: str) -> float:
        """Return the sampling weight of a task, from the minimum weight to 1."""
        p = self.solve_rates.get(rate_key, 0.5)
        return max(self.min_weight, 4 * p * (1 - p))

    def draw_positions(self, rate_keys: Sequence[str], count: int, *, seed: int) -> list[int]:
        """Draw `count` positions, weighted by the tasks at them; the same state and seed give the same draw."""
        if count > len(rate_keys):
            raise ConfigError(f"{count} tasks are requested, but there are {len(rate_keys)}; lower the count or add tasks")
        rng = random.Random(seed)
        keys = [rng.random() ** (1 / self.compute_weight(task)) for task in rate_keys]
        return sorted(sorted(range(len(rate_keys)), key=lambda i: -keys[i])[:count])

    def metrics(self) -> dict[str, float]:
        """Return metrics: the number of known solve rates, and their mean."""
        rates = self.solve_rates.values()
        return {"curriculum/num_solve_rates": float(len(rates)), "curriculum/mean_solve_rate": sum(rates) / len(rates)} if rates else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"rates": dict(self.solve_rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.solve_rates = {str(task): float(rate) for task, rate in state["rates"].items()}
