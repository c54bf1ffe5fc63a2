"""Dynamic sampling: sample until enough groups have a spread of rewards, within a budget, and report what was discarded.

A group is filtered if it has fewer than two scores, or no spread of rewards within a tolerance. The reported reward is that of all
groups before the filter; after it, the reward of every run is near one half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlvr.algos.parts.credit import degenerate
from rlvr.episode import Episode
from rlvr.errors import ConfigError

Group = list[Episode]


class DynamicSampling:
    """Collects the groups of one step over several rounds of sampling. With one round nothing is filtered.

    >>> collector = DynamicSampling(wanted=2, max_rounds=3)
    >>> collector.missing, collector.done, collector.next_size
    (2, False, 2)
    """

    def __init__(self, wanted: int, *, max_rounds: int) -> None:
        if wanted < 1 or max_rounds < 1:
            raise ConfigError(f"wanted {wanted} and max_rounds {max_rounds} must be at least 1")
        self.wanted, self.max_rounds = wanted, max_rounds
        self.offered: list[Group] = []
        self.rounds = 0
        self._teaches: list[bool] = []

    @property
    def missing(self) -> int:
        """The number of groups that are still needed."""
        return max(0, self.wanted - sum(self._teaches))

    @property
    def done(self) -> bool:
        """Whether to stop sampling: enough groups, or no rounds left."""
        return not self.missing or self.rounds >= self.max_rounds

    @property
    def next_size(self) -> int:
        """The number of groups to sample next, extrapolated from the fraction of useful groups; at most a full step."""
        if not self.rounds:
            return self.wanted
        return min(self.wanted, math.ceil(self.missing * len(self._teaches) / max(1, sum(self._teaches))))

    def offer(self, groups: Sequence[Group]) -> None:
        """Add one round's groups."""
        self.rounds += 1
        self.offered += groups
        self._teaches += [not degenerate([e.reward if e.scored and not e.meta.get("greedy") else None for e in g]) for g in groups]

    def groups(self) -> list[Group]:
        """Return the groups to train on. If too few are useful, groups without spread fill the step, so that its size is constant."""
        return [self.offered[i] for i in sorted(self._chosen())]

    def dropped(self) -> dict[str, list[Group]]:
        """Return the groups that are not trained on, by reason: without spread, or beyond the number needed."""
        chosen = set(self._chosen())
        left = [i for i in range(len(self.offered)) if i not in chosen]
        return {
            "zero_std": [self.offered[i] for i in left if not self._teaches[i]],
            "surplus": [self.offered[i] for i in left if self._teaches[i]],
        }

    def _chosen(self) -> list[int]:
        kinds = ([i for i, teaches in enumerate(self._teaches) if teaches is wanted] for wanted in (True, False))
        return [i for kind in kinds for i in kind][: self.wanted]

    def figures(self) -> dict[str, float]:
        """Return metrics: how many groups were kept, and how many discarded."""
        kept = [e.reward for group in self.groups() for e in group if e.scored and not e.meta.get("greedy")]
        share = sum(self._teaches) / len(self.offered) if self.offered else 0.0
        reward = {"dynamic_sampling/reward_kept": math.fsum(kept) / len(kept)} if kept else {}
        return reward | {
            "frac_reward_zero_std": 1.0 - share if self.offered else 0.0,
            "dynamic_sampling/rounds": float(self.rounds),
            "dynamic_sampling/groups": float(len(self.offered)),
            "dynamic_sampling/kept_share": share,
            "dynamic_sampling/short_by": float(self.missing),
        }
