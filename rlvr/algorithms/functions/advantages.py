"""Advantages of whole answers: the reward minus a baseline, divided by a deviation. One number per answer, in lists.

A reward of None (no verdict, a failed episode) is left out of every mean and gets advantage 0; it is never read as 0.
Rewards that differ from token to token are in `returns`, and turns in `turn_advantages`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

REWARD_TOLERANCE = 1e-6
"""Rewards that differ by less are equal, so that rounding errors of equal rewards do not become advantages."""

Rewards = Sequence[float | None]
AllReduce = Callable[[Sequence[float]], list[float]]
"""Sums numbers over all processes."""


def single_process_all_reduce(numbers: Sequence[float]) -> list[float]:
    """Return the numbers unchanged: the all-reduce of a single process."""
    return list(numbers)


def drop_missing(rewards: Rewards) -> list[float]:
    """Return the rewards that are not None."""
    return [reward for reward in rewards if reward is not None]


def has_no_signal(rewards: Rewards) -> bool:
    """Return whether a group gives no learning signal: fewer than two scores, or all equal.

    >>> has_no_signal([1.0, None]), has_no_signal([0.95, 0.95 + 1e-9]), has_no_signal([0.0, 1.0])
    (True, True, False)
    """
    scored = drop_missing(rewards)
    return len(scored) < 2 or max(scored) - min(scored) <= REWARD_TOLERANCE * max(1.0, max(map(abs, scored)))


def compute_sample_std(values: Sequence[float]) -> float:
    """Compute the standard deviation with Bessel's correction; 0 for fewer than two values."""
    mean = math.fsum(values) / max(1, len(values))
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))


def subtract_group_mean(rewards: Rewards) -> list[float]:
    """Subtract the group mean from each reward.

    >>> subtract_group_mean([1.0, 0.0, None])
    [0.5, -0.5, 0.0]
    """
    scored, flat = drop_missing(rewards), has_no_signal(rewards)
    mean = math.fsum(scored) / max(1, len(scored))
    return [0.0 if flat or reward is None else reward - mean for reward in rewards]


def subtract_leave_one_out_mean(rewards: Rewards) -> list[float]:
    """Subtract the mean of the *other* members from each reward, which keeps the gradient unbiased (RLOO).

    >>> subtract_leave_one_out_mean([1.0, 0.0, 0.0])
    [1.0, -0.5, -0.5]
    """
    count = len(drop_missing(rewards))
    return [a * count / (count - 1) if count > 1 else 0.0 for a in subtract_group_mean(rewards)]


def subtract_baseline(rewards: Rewards, baseline: float) -> list[float]:
    """Subtract a constant baseline from each reward; 0 for a missing reward."""
    return [0.0 if reward is None else reward - baseline for reward in rewards]


def divide_by_std(
    rewards: Sequence[Rewards],
    advantages: list[list[float]],
    scale_rewards: str,
    epsilon: float,
    all_reduce: AllReduce = single_process_all_reduce,
) -> list[list[float]]:
    """Divide the advantages by the standard deviation of the rewards, of each group or of the whole batch."""
    if scale_rewards not in ("group", "batch"):
        return advantages
    spreads = (
        [compute_sample_std(drop_missing(g)) for g in rewards]
        if scale_rewards == "group"
        else [_compute_batch_std(rewards, all_reduce)] * len(rewards)
    )
    divisors = [spread + epsilon for spread in spreads]  # 0 where epsilon is 0 and all rewards are equal
    return [[a / by if by > 1e-12 else 0.0 for a in row] for row, by in zip(advantages, divisors, strict=True)]


def _compute_batch_std(groups: Sequence[Rewards], all_reduce: AllReduce) -> float:
    """Compute the standard deviation of all rewards of all processes, with Bessel's correction."""
    _, spread, count = compute_mean_std_count([r for g in groups for r in drop_missing(g)], all_reduce)
    return spread * (math.sqrt(count / (count - 1)) if count > 1 else 0.0)


def compute_mean_std_count(values: Any, all_reduce: AllReduce = single_process_all_reduce) -> tuple[float, float, float]:
    """Compute mean, population standard deviation and count over all processes, of a list or an array.

    >>> compute_mean_std_count([1.0, 3.0])
    (2.0, 1.0, 2.0)
    """
    numbers = np.asarray(values, dtype=np.float64)
    count, added = all_reduce([float(len(numbers)), float(numbers.sum())])
    if not count:
        return 0.0, 0.0, 0.0
    mean = added / count
    [squares] = all_reduce([float(np.square(numbers - mean).sum())])
    return mean, math.sqrt(squares / count), count


def whiten(values: Sequence[float], all_reduce: AllReduce = single_process_all_reduce) -> list[float]:
    """Shift and scale to mean 0 and deviation 1 over all processes; all zeros if all values are equal."""
    mean, spread, _ = compute_mean_std_count(values, all_reduce)
    if spread <= 1e-8:
        return [0.0] * len(values)
    return [(v - mean) / spread for v in values]


def whiten_answer_advantages(
    rewards: Sequence[Rewards], advantages: Sequence[Sequence[float]], all_reduce: AllReduce = single_process_all_reduce
) -> list[list[float]]:
    """Whiten the advantages of all answers that have a reward."""
    flat = [a for group, row in zip(rewards, advantages, strict=True) for r, a in zip(group, row, strict=True) if r is not None]
    fresh = iter(whiten(flat, all_reduce))
    return [[0.0 if r is None else next(fresh) for r in group] for group in rewards]


def sum_normalized_rewards(components: Mapping[str, Sequence[Rewards]], weights: Mapping[str, float], epsilon: float) -> list[list[float]]:
    """GDPO: normalise each named reward within its group, then take the weighted sum.

    >>> sum_normalized_rewards({"math": [[1.0, 0.0]]}, {"math": 2.0}, 0.0)
    [[1.414213562373095, -1.414213562373095]]
    """
    rows = [divide_by_std(groups, [subtract_group_mean(g) for g in groups], "group", epsilon) for groups in components.values()]
    factors = [weights[name] for name in components]
    return [
        [math.fsum(f * a for f, a in zip(factors, member, strict=True)) for member in zip(*group, strict=True)]
        for group in zip(*rows, strict=True)
    ]


def compute_overlong_penalty(length: int, max_length: int, buffer: int) -> float:
    """Compute DAPO's soft penalty for an answer close to the length limit: 0 before the buffer, -1 from the limit on.

    >>> [compute_overlong_penalty(n, 10, 4) for n in (6, 8, 10, 12)]
    [0.0, -0.5, -1.0, -1.0]
    """
    return max(-1.0, min(0.0, (max_length - buffer - length) / buffer))
