"""Dynamic sampling: sample until enough groups have a spread of rewards, within a budget, and report what was discarded.

A group is filtered if it has fewer than two scores, or no spread of rewards within a tolerance. The reported reward is that of all
groups before the filter; after it, the reward of every run is near one half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlvr.algorithms.functions.advantages import has_no_signal
from rlvr.episode import Episode
from rlvr.errors import ConfigError

Group = list[Episode]


class DynamicSampling:
    """Keeps the groups of one step over several rounds of sampling, and selects those with a spread of rewards. With one round nothing
    is filtered.

    >>> sampling = DynamicSampling(2, max_rounds=3)
    >>> sampling.num_missing, sampling.is_done, sampling.next_num_groups
    (2, False, 2)
    """

    def __init__(self, num_groups: int, *, max_rounds: int) -> None:
        if num_groups < 1 or max_rounds < 1:
            raise ConfigError(f"num_groups {num_groups} and max_rounds {max_rounds} must be at least 1")
        self.num_groups, self.max_rounds = num_groups, max_rounds
        self.sampled_groups: list[Group] = []
        self.num_rounds = self.num_sampled = 0
        self._has_signal: list[bool] = []

    @property
    def num_missing(self) -> int:
        """The number of groups that are still needed."""
        return max(0, self.num_groups - sum(self._has_signal))

    @property
    def is_done(self) -> bool:
        """Whether to stop sampling: enough groups, or no rounds left."""
        return not self.num_missing or self.num_rounds >= self.max_rounds

    @property
    def next_num_groups(self) -> int:
        """The number of groups to sample next, extrapolated from the fraction of useful groups; at most a full step."""
        if not self.num_rounds:
            return self.num_groups
        return min(self.num_groups, math.ceil(self.num_missing * self.num_sampled / max(1, sum(self._has_signal))))

    def add_groups(self, groups: Sequence[Group], *, num_sampled: int | None = None) -> None:
        """Add one round's groups: those that the algorithm selected, of `num_sampled` (None: all)."""
        self.num_rounds += 1
        self.num_sampled += len(groups) if num_sampled is None else num_sampled
        self.sampled_groups += groups
        self._has_signal += [not has_no_signal([e.reward if e.is_scored and not e.meta.get("greedy") else None for e in g]) for g in groups]

    def select_groups(self) -> list[Group]:
        """Return the groups to train on: those with a spread of rewards, and others if too few have one.

        The size of a step is constant in this way.
        """
        return [self.sampled_groups[i] for i in sorted(self._selected_indices())]

    def list_dropped(self) -> dict[str, list[Group]]:
        """Return the groups that are not trained on, by reason: without spread, or beyond the number needed."""
        chosen = set(self._selected_indices())
        left = [i for i in range(len(self.sampled_groups)) if i not in chosen]
        return {
            "zero_std": [self.sampled_groups[i] for i in left if not self._has_signal[i]],
            "surplus": [self.sampled_groups[i] for i in left if self._has_signal[i]],
        }

    def _selected_indices(self) -> list[int]:
        kinds = ([i for i, teaches in enumerate(self._has_signal) if teaches is wanted] for wanted in (True, False))
        return [i for kind in kinds for i in kind][: self.num_groups]

    def metrics(self) -> dict[str, float]:
        """Return metrics: rounds, sampled groups, the fraction with a spread of rewards, the missing groups, and the mean reward of the
        kept ones.
        """
        kept = [e.reward for group in self.select_groups() for e in group if e.is_scored and not e.meta.get("greedy")]
        flat = 1.0 - sum(self._has_signal) / len(self.sampled_groups) if self.sampled_groups else 0.0
        reward = {"dynamic_sampling/kept_reward_mean": math.fsum(kept) / len(kept)} if kept else {}
        return reward | {
            "frac_reward_zero_std": flat,
            "dynamic_sampling/rounds": float(self.num_rounds),
            "dynamic_sampling/sampled_groups": float(self.num_sampled),
            "dynamic_sampling/useful_fraction": sum(self._has_signal) / self.num_sampled if self.num_sampled else 0.0,
            "dynamic_sampling/missing_groups": float(self.num_missing),
        }
