"""Dynamic sampling: keep asking until enough groups teach something, within a budget, and own up to what was thrown away.

The test is on the group (fewer than two scored, or no spread within a tolerance), never on single rewards. The reward that
is reported is the one before the filter: after it, every run looks half right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlvr.algos.credit import degenerate
from rlvr.episode import Episode
from rlvr.errors import ConfigError

Group = Sequence[Episode]


class DynamicSampling:
    """Collects the groups of one step over several rounds of sampling.

    >>> collector = DynamicSampling(wanted=2, max_rounds=3)
    >>> collector.missing, collector.done
    (2, False)
    """

    def __init__(self, wanted: int, *, max_rounds: int) -> None:
        if wanted < 1 or max_rounds < 1:
            raise ConfigError(f"wanted {wanted} and max_rounds {max_rounds} must be at least 1")
        self.wanted, self.max_rounds = wanted, max_rounds
        self.kept: list[Group] = []
        self.spare: list[Group] = []
        """Flat groups, for the day that the budget ends first."""
        self.rounds = 0
        self._surplus: list[Group] = []
        self._rewards: list[float] = []

    @property
    def missing(self) -> int:
        """How many groups are still wanted."""
        return max(0, self.wanted - len(self.kept))

    @property
    def done(self) -> bool:
        """Whether to stop sampling: enough groups, or no round left."""
        return not self.missing or self.rounds >= self.max_rounds

    def offer(self, groups: Sequence[Group]) -> None:
        """One round's groups. Those beyond what is wanted are counted as surplus, not lost without a word."""
        self.rounds += 1
        for group in groups:
            rewards = [e.reward if e.scored and not e.meta.get("greedy") else None for e in group]
            self._rewards += [r for r in rewards if r is not None]
            if degenerate(rewards):
                self.spare.append(group)
            elif self.missing:
                self.kept.append(group)
            else:
                self._surplus.append(group)

    def groups(self) -> list[Group]:
        """What to train on. If the budget ended first, flat groups fill the step up, so that its size stays what it was."""
        return [*self.kept, *self.spare[: self.missing]]

    def figures(self) -> dict[str, float]:
        """The reward before the filter, and the waste."""
        used = {id(group) for group in self.groups()}
        wasted = [group for group in [*self.spare, *self._surplus] if id(group) not in used]
        everything = len(self.kept) + len(self.spare) + len(self._surplus)
        return {
            "reward/before_filter": math.fsum(self._rewards) / len(self._rewards) if self._rewards else 0.0,
            "dynamic_sampling/rounds": float(self.rounds),
            "dynamic_sampling/kept_share": len(self.kept) / everything if everything else 0.0,
            "dynamic_sampling/short_by": float(self.missing),
            "dynamic_sampling/wasted_tokens": float(sum(e.length for group in wasted for e in group)),
        }
