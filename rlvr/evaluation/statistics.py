"""Compute metrics with confidence intervals from the scores of samples.

A task is a cluster: its samples share a question, so they are not independent, and every metric here is a mean over tasks, with one
value per task. The values are exact expectations over the available samples of a task; a metric at `k` leaves out tasks with fewer than
`k` samples, and reports how many tasks it uses.

    avg@n     the mean score
    pass@k    the chance that one of k samples is right
    pass^k    the chance that all k are
    maj@k     the expected score of the answer that most of k samples give
    best@k    the expected score of the sample that a selector chooses from k
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Z95 = NormalDist().inv_cdf(0.975)
PRIOR_TASKS = 1.0
"""Weight of a prior on the spread, in pseudo-tasks with even odds, because few real tasks may underestimate the spread. The prior counts
more near 0 and 1, where rare tasks may be missing. In simulations of pass@8 with 100 tasks of 16 samples
(benchmarks/evaluation/statistics_coverage.py) the interval covers the true value in at least 92 of 100 cases for all kinds of tasks; with a
constant weight the coverage can fall to 84."""


def pass_at_k(num_correct: int, num_samples: int, k: int) -> float | None:
    """Compute pass@k: the chance that at least one of `k` samples, drawn without replacement, is right; None with fewer samples.

    >>> pass_at_k(1, 4, 2)
    0.5
    """
    return None if k > num_samples else 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def pass_all_k(num_correct: int, num_samples: int, k: int) -> float | None:
    """Compute pass^k: the chance that all of `k` samples, drawn without replacement, are right; None with fewer samples.

    >>> pass_all_k(3, 4, 2)
    0.5
    """
    return None if k > num_samples else math.comb(num_correct, k) / math.comb(num_samples, k)


def majority_at_k(votes: Sequence[Hashable | None], scores: Sequence[float], k: int) -> float | None:
    """Compute maj@k: the expected score of the majority answer of `k` samples; None with fewer samples.

    `votes` has the class of equal answers of each sample. Ties are broken at random. None is a sample without an answer: it is drawn like
    any other but has no vote; if no sample votes, the score is 0.

    >>> majority_at_k(["4", "4", "5", None], [1.0, 1.0, 0.0, 0.0], 3)
    0.75
    """
    if k > len(votes):
        return None
    sizes = Counter(vote for vote in votes if vote is not None)
    worth = {vote: math.fsum(s for v, s in zip(votes, scores, strict=True) if v == vote) / size for vote, size in sizes.items()}
    silent = sum(vote is None for vote in votes)
    return math.fsum(
        score * _compute_vote_win_probability(sizes[vote], tuple(sorted((sizes - Counter({vote: sizes[vote]})).values())), silent, k)
        for vote, score in worth.items()
        if score
    )


@lru_cache(maxsize=65536)
def _compute_vote_win_probability(class_size: int, other_class_sizes: tuple[int, ...], num_abstentions: int, k: int) -> float:
    """Compute the chance that a class of `class_size` equal answers wins the vote of `k` samples, against classes of these sizes and
    some abstentions.

    For each number `x` of own votes, count the ways in which the others get at most `x`, by how many of them tie.
    """
    chance = 0.0
    for x in range(1, min(class_size, k) + 1):
        ways: dict[tuple[int, int], int] = {(y, 0): math.comb(num_abstentions, y) for y in range(min(num_abstentions, k - x) + 1)}
        for size in other_class_sizes:
            grown: dict[tuple[int, int], int] = {}
            for (used, ties), count in ways.items():
                for y in range(min(size, x, k - x - used) + 1):
                    at = (used + y, ties + (y == x))
                    grown[at] = grown.get(at, 0) + count * math.comb(size, y)
            ways = grown
        for (used, ties), count in ways.items():
            if used == k - x:
                chance += (
                    math.comb(class_size, x) * count / (ties + 1) / math.comb(class_size + sum(other_class_sizes) + num_abstentions, k)
                )
    return chance


def selected_at_k(ranked_scores: Sequence[float], k: int) -> float | None:
    """Compute best@k: the expected score of the most preferred of `k` samples; `ranked_scores` has the scores of all samples, the most
    preferred first.

    >>> selected_at_k([1.0, 0.0, 0.0], 2) == 2 / 3
    True
    """
    m = len(ranked_scores)
    if k > m:
        return None
    return math.fsum(score * math.comb(m - place - 1, k - 1) for place, score in enumerate(ranked_scores)) / math.comb(m, k)


def list_k_values(n: int) -> list[int]:
    """List the values of k for the metrics: powers of two up to `n`, and `n` itself.

    >>> list_k_values(12)
    [1, 2, 4, 8, 12]
    """
    return sorted({2**power for power in range(n.bit_length()) if 2**power <= n} | {n})


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its standard error and its 95 % interval.

    >>> estimate_mean([1.0, 0.0, 1.0, 1.0]).value
    0.75
    """

    value: float
    stderr: float
    low: float
    high: float
    tasks: int
    """The number of tasks in the mean."""
    is_fraction: bool = True
    """Whether all values lie between 0 and 1, so that the mean is a share."""

    def __str__(self) -> str:
        return format_mean(self.value, is_fraction=self.is_fraction)

    def format_interval(self, separator: str = " to ") -> str:
        """Format the 95 % interval, of shares in per cent without the sign; "" if it has no ends."""
        if self.is_fraction:
            return f"{100 * self.low:.1f}{separator}{100 * self.high:.1f}"
        return f"{self.low:.4g}{separator}{self.high:.4g}" if math.isfinite(self.low) else ""

    def to_dict(self) -> dict[str, Any]:
        """Convert the estimate to plain JSON; `low` and `high` are null if the interval has no ends (of a single value that is no share)."""
        ends = {name: value if math.isfinite(value) else None for name, value in (("low", self.low), ("high", self.high))}
        return {**asdict(self), **ends}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Estimate:
        """Build the estimate that `to_dict` converted."""
        ends = {name: end if data[name] is None else data[name] for name, end in (("low", -math.inf), ("high", math.inf))}
        return cls(**{**data, **ends})


def format_mean(value: float, *, is_fraction: bool = True) -> str:
    """Format a mean: of shares in per cent.

    >>> format_mean(0.25), format_mean(-12.34567, is_fraction=False)
    ('25.0%', '-12.35')
    """
    return f"{value:.1%}" if is_fraction else f"{value:.4g}"


def estimate_mean(values: Sequence[float | None], questions: Sequence[Hashable] | None = None) -> Estimate | None:
    """Estimate the mean of one value per task. Tasks whose value is None are left out; None if no task has a value.

    Tasks with the same entry in `questions` form one cluster, because a repeated question adds little information.
    """
    labels: Sequence[Hashable] = range(len(values)) if questions is None else questions
    clusters: dict[Hashable, list[float]] = {}
    for value, label in zip(values, labels, strict=True):
        if value is not None:
            clusters.setdefault(label, []).append(value)
    if not clusters:
        return None
    known = [value for cluster in clusters.values() for value in cluster]
    means, sizes = [mean(cluster) for cluster in clusters.values()], [len(cluster) for cluster in clusters.values()]
    center, stderr = mean(known), standard_error(means, sizes)
    if min(known) < 0 or max(known) > 1:
        num_clusters = _count_effective_clusters(sizes)
        half = compute_t_quantile(0.975, num_clusters - 1) * stderr if num_clusters > 1 else math.inf
        return Estimate(center, stderr, center - half, center + half, len(known), is_fraction=False)
    low, high = wilson_interval(means, sizes)
    return Estimate(center, stderr, low, high, len(known))


def average_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """Compute the unweighted mean of independent estimates, such as those of a suite's environments.

    The interval is combined from theirs (MOVER), so it stays inside 0 and 1 and is as skewed as they are.

    >>> average_estimates([estimate_mean([1.0, 0.0]), estimate_mean([1.0, 1.0, 1.0])]).value
    0.75
    """
    value = math.fsum(part.value for part in estimates) / len(estimates)
    below, above = (math.sqrt(math.fsum(gap**2 for gap in gaps)) / len(estimates) for gaps in (
        [part.value - part.low for part in estimates], [part.high - part.value for part in estimates],
    ))  # fmt: skip
    stderr = math.sqrt(math.fsum(part.stderr**2 for part in estimates)) / len(estimates)
    is_fraction = all(part.is_fraction for part in estimates)
    return Estimate(value, stderr, value - below, value + above, sum(part.tasks for part in estimates), is_fraction)


def mean(values: Sequence[float], weights: Sequence[int] | None = None) -> float:
    """Compute the mean, weighted if `weights` are given, with a single rounding."""
    if weights is None:
        return math.fsum(values) / len(values)
    return math.fsum(value * size for value, size in zip(values, weights, strict=True)) / sum(weights)


def standard_error(values: Sequence[float], sizes: Sequence[int] | None = None) -> float:
    """Compute the standard error of the mean of one value per cluster, weighted by the cluster sizes if given.

    Nothing is assumed about the samples inside a cluster.

    >>> standard_error([0.0, 1.0, 1.0, 0.0]) == (1 / 12) ** 0.5
    True
    """
    sizes = [1] * len(values) if sizes is None else sizes
    clusters, centre = _count_effective_clusters(sizes), mean(values, sizes)
    if clusters <= 1:
        return 0.0
    squares = math.fsum((size * (value - centre)) ** 2 for value, size in zip(values, sizes, strict=True))
    return math.sqrt(squares * clusters / (clusters - 1)) / sum(sizes)


def wilson_interval(values: Sequence[float], sizes: Sequence[int] | None = None) -> tuple[float, float]:
    """Compute the 95 % score interval of a mean of values from 0 to 1, one per cluster.

    This is Wilson's interval for the effective number of yes-or-no tasks: values that spread less than yes and no (several samples per
    task) count for more. The interval stays between 0 and 1, and is not empty if all values are equal.

    >>> [round(end, 3) for end in wilson_interval([1.0] * 20)]
    [0.839, 1.0]
    """
    sizes = [1] * len(values) if sizes is None else sizes
    clusters, centre = _count_effective_clusters(sizes), min(max(mean(values, sizes), 0.0), 1.0)
    widest = centre * (1 - centre) / (clusters - 1) if clusters > 1 else 0.0
    spread = min(standard_error(values, sizes) ** 2 / widest, 1.0) if widest > 0 else 1.0
    telling = 4 * clusters * centre * (1 - centre)
    """Number of tasks at even odds that would give as much information about the spread."""
    worth = clusters * (telling + PRIOR_TASKS) / (telling * spread + PRIOR_TASKS)
    z2 = Z95**2 / worth
    middle = (centre + z2 / 2) / (1 + z2)
    half = Z95 / (1 + z2) * math.sqrt(centre * (1 - centre) / worth + z2 / (4 * worth))
    return (max(middle - half, 0.0) if centre else 0.0), (min(middle + half, 1.0) if centre < 1 else 1.0)


def _count_effective_clusters(sizes: Sequence[int]) -> float:
    """Compute the effective number of clusters of equal size."""
    return sum(sizes) ** 2 / sum(size**2 for size in sizes)


def _bootstrap_means(values: Sequence[float], *, seed: int = 0, num_resamples: int = 10_000) -> NDArray[np.float64]:
    """Compute the sorted means of `num_resamples` resamples of the tasks (cluster bootstrap). The same seed gives the same means.

    The means are widened around their center to correct for a small number of tasks, so their quantiles form an interval.
    """
    sample = np.asarray(values, dtype=np.float64)
    tasks = len(sample)
    dice = np.random.default_rng(seed)
    means = np.concatenate(
        [dice.multinomial(tasks, np.full(tasks, 1 / tasks), size=500) @ sample / tasks for _ in range(-(-num_resamples // 500))]
    )
    stretch = math.sqrt(tasks / (tasks - 1)) * compute_t_quantile(0.975, tasks - 1) / Z95 if tasks > 1 else 1.0
    return np.sort(sample.mean() + (means[:num_resamples] - sample.mean()) * stretch)


def bootstrap_interval(values: Sequence[float], *, seed: int = 0, num_resamples: int = 10_000) -> tuple[float, float]:
    """Compute the 95 % interval of a mean by resampling tasks, for unbounded values such as differences.

    >>> bootstrap_interval([0.5, -0.5] * 50, seed=1) == bootstrap_interval([0.5, -0.5] * 50, seed=1)
    True
    """
    low, high = np.quantile(_bootstrap_means(values, seed=seed, num_resamples=num_resamples), [0.025, 0.975])
    return float(low), float(high)


def compute_t_upper_tail(t: float, degrees_of_freedom: float) -> float:
    """Compute the chance that Student's t exceeds `t`; the degrees of freedom need not be whole.

    >>> round(2 * compute_t_upper_tail(2.776445, 4), 4)
    0.05
    """
    x = degrees_of_freedom / (degrees_of_freedom + t * t)
    tail = 0.5 * _compute_incomplete_beta(degrees_of_freedom / 2, 0.5, x)
    return tail if t >= 0 else 1.0 - tail


def compute_t_quantile(p: float, degrees_of_freedom: float) -> float:
    """Compute the quantile of Student's t by bisection, to the last digits.

    >>> round(compute_t_quantile(0.975, 19), 6), round(compute_t_quantile(0.975, 1), 4)
    (2.093024, 12.7062)
    """
    if p < 0.5:
        return -compute_t_quantile(1 - p, degrees_of_freedom)
    low, high = 0.0, 1.0
    while compute_t_upper_tail(high, degrees_of_freedom) > 1 - p:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if compute_t_upper_tail(middle, degrees_of_freedom) > 1 - p else (low, middle)
    return (low + high) / 2


def _compute_incomplete_beta(a: float, b: float, x: float) -> float:
    """Compute the regularized incomplete beta function by its continued fraction (Lentz's method; DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below
        return 1.0 - _compute_incomplete_beta(b, a, 1 - x)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / a
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    value = d
    for m in range(1, 10_000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + step * d or tiny)
            c = 1 + step / c or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return front * value
