"""Paired statistics for two policies on the same tasks: difference, interval, p-value, minimum detectable effect.

The unit is the task: each contributes one difference, so the correlation of its samples cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from rlvr.evaluation.statistics import Z95, bootstrap_interval, mean, standard_error

POWER_Z = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
"""The difference, in standard errors, that is detected with 80 % power at a 5 % false positive rate."""


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The mean difference between the first and the second policy, with its 95 % interval and its p-value.

    >>> run_paired_test([0.1] * 30 + [-0.1] * 10, seed=0).wins
    30
    """

    difference: float
    low: float
    high: float
    p: float
    test: str
    """The test of `p`: `sign flips`, or `mcnemar` (exact) if every task has one yes or no on each side."""
    detectable: float
    """The minimum detectable effect: the smallest true difference that this many tasks show in 4 of 5 comparisons."""
    wins: int
    losses: int
    ties: int

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to plain JSON."""
        return asdict(self)


def run_paired_test(differences: Sequence[float], *, is_greedy: bool = False, seed: int = 0) -> PairedTest:
    """Test one difference per task, first policy minus second; `is_greedy`: one greedy answer per task, so each difference is 1, 0 or
    -1.
    """
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    low, high = _confidence_interval(differences, seed)
    exact = is_greedy and all(d in (-1.0, 0.0, 1.0) for d in differences)
    return PairedTest(
        difference=mean(differences),
        low=low,
        high=high,
        p=compute_mcnemar_p(wins, losses) if exact else compute_sign_flip_p(differences, seed=seed),
        test="mcnemar" if exact else "sign flips",
        detectable=POWER_Z * ((high - low) / 2 / Z95 if _is_constant(differences) else standard_error(differences)),
        wins=wins,
        losses=losses,
        ties=len(differences) - wins - losses,
    )


def _confidence_interval(differences: Sequence[float], seed: int) -> tuple[float, float]:
    """Compute the interval by resampling tasks; if all differences are equal, from the number of tasks alone, as scores are 0 to 1."""
    is_bounded = max(map(abs, differences)) <= 1
    if _is_constant(differences):
        same, unmet = differences[0], 1 - 0.05 ** (1 / len(differences)) if is_bounded else 0.0
        return same - unmet * (same + 1), same + unmet * (1 - same)
    low, high = bootstrap_interval(differences, seed=seed)
    return (max(low, -1.0), min(high, 1.0)) if is_bounded else (low, high)


def _is_constant(differences: Sequence[float]) -> bool:
    """Whether all values are equal, up to rounding."""
    return max(differences) - min(differences) < 1e-9


def compute_sign_flip_p(differences: Sequence[float], *, seed: int = 0, num_resamples: int = 10_000) -> float:
    """Compute the two-sided p-value of a sign-flip test: how often is the mean as far from 0 if the sign of each task is random?

    For few tasks all sign patterns are counted, otherwise `num_resamples` random ones.

    >>> compute_sign_flip_p([1.0] * 5)
    0.0625
    """
    sizes = np.abs([d for d in differences if d])
    if not len(sizes):
        return 1.0
    reached = abs(float(np.sum(differences))) - 1e-9
    if 2 ** len(sizes) <= num_resamples:
        signs = 1 - 2 * (np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes)) & 1)
        return float(np.mean(np.abs(signs @ sizes) >= reached))
    dice = np.random.default_rng(seed)
    rounds = [1 - 2 * dice.integers(0, 2, size=(500, len(sizes)), dtype=np.int8) for _ in range(num_resamples // 500)]
    hits = sum(int(np.sum(np.abs(signs @ sizes) >= reached)) for signs in rounds)
    return (1 + hits) / (1 + num_resamples)


def compute_mcnemar_p(wins: int, losses: int) -> float:
    """Compute the two-sided exact p-value of McNemar's test: how often would fair coins split the differing tasks as unevenly?

    >>> compute_mcnemar_p(9, 1)
    0.021484375
    """
    total = wins + losses
    tail: float = sum(math.comb(total, i) for i in range(min(wins, losses) + 1)) / 2**total
    return min(1.0, 2 * tail)


def apply_holm_correction(values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons (Holm, 1979); the order is kept.

    >>> apply_holm_correction([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    adjusted, highest = [0.0] * len(values), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - place) * values[i]))
        adjusted[i] = highest
    return adjusted
