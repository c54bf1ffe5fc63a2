"""Two policies on the same tasks: is the difference real, and how small a one could have been seen?

The unit is the task: each contributes one difference, so what its samples share cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from rlvr.statistics import mean, resampled, standard_error

POWER = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
"""Standard errors that a difference must measure to be found in 4 of 5 comparisons, at 5 % false alarms."""


@dataclass(frozen=True, slots=True)
class Paired:
    """How much better the first is than the second, with its 95 % interval and its p-value.

    >>> paired([0.1] * 30 + [-0.1] * 10, seed=0).wins
    30
    """

    difference: float
    low: float
    high: float
    p: float
    test: str
    """How `p` was found: `bootstrap` over tasks, or McNemar's exact test where every task has one yes or no on each side."""
    detectable: float
    """The smallest true difference that so many tasks would show in 4 of 5 comparisons."""
    wins: int
    losses: int
    ties: int

    def record(self) -> dict[str, Any]:
        """The comparison as plain JSON."""
        return asdict(self)


def paired(differences: Sequence[float], *, greedy: bool = False, seed: int = 0, draws: int = 10_000) -> Paired:
    """Judge one difference a task, first policy minus second; `greedy` says that each is 1, 0 or -1 by rule, not by luck."""
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    centre = mean(differences)
    if wins + losses == 0:
        low = high = 0.0
        p = 1.0
    else:
        means = resampled(differences, seed=seed, draws=draws)
        low, high = map(float, np.quantile(means, [0.025, 0.975]))
        p = float((1 + np.sum(np.abs(means - centre) >= abs(centre) - 1e-12)) / (1 + len(means)))
    exact = greedy and all(d in (-1.0, 0.0, 1.0) for d in differences)
    return Paired(
        difference=centre,
        low=max(low, -1.0),
        high=min(high, 1.0),
        p=mcnemar(wins, losses) if exact else p,
        test="mcnemar" if exact else "bootstrap",
        detectable=POWER * standard_error(differences),
        wins=wins,
        losses=losses,
        ties=len(differences) - wins - losses,
    )


def mcnemar(wins: int, losses: int) -> float:
    """The two-sided exact p-value: how often would fair coins split the tasks that differ as unevenly as this?

    >>> mcnemar(9, 1)
    0.021484375
    """
    total = wins + losses
    tail: float = sum(math.comb(total, i) for i in range(min(wins, losses) + 1)) / 2**total
    return min(1.0, 2 * tail)


def holm(values: Sequence[float]) -> list[float]:
    """P-values that stay honest when several are looked at together (Holm, 1979), in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    adjusted, highest = [0.0] * len(values), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - place) * values[i]))
        adjusted[i] = highest
    return adjusted
