"""The mean rewards of a run's steps: which steps were the best, and whether the newest ones are far below them, beyond noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

FALL_SIGMAS = 4.0
"""How many standard errors a fall must have, so that it is no accident of a few prompts."""
RECENT_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)
"""The numbers of newest steps that are compared with the best ones: where a step has few prompts, only many steps are evidence."""
LASTING_STEPS = 8
"""A fall of fewer steps is a doubt, and no proof."""
NEAR_BEST = 0.875
"""Steps with this fraction of the best reward are as good as the best."""
BEST_LENGTHS = (8, 16, 32, 64)
"""The numbers of steps in a row whose mean may be the best: one lucky step of many is no level to fall from."""
FIRST_LENGTHS = (1, 2, 4)
"""The numbers of the first steps whose mean may be the best, because a policy can be destroyed in them."""
BOUND_SIGMAS = 2.0
"""The best steps are those with the highest mean minus this many standard errors."""


class Steps(NamedTuple):
    """Steps in a row, as places [start, end), with the mean of their rewards and its standard error."""

    start: int
    end: int
    mean: float
    error: float


class Fall(NamedTuple):
    """A reward that has fallen.

    >>> history = RewardHistory()
    >>> for step in range(1, 21):
    ...     history.add(0.5 if step < 10 else 0.0, error=0.05)
    >>> fall = history.find_fall(0.5)
    >>> fall.best.mean, fall.recent.mean, fall.since, fall.last_good
    (0.5, 0.0, 9, 7)
    """

    best: Steps
    recent: Steps
    since: int
    """The place of the first step that is clearly below."""
    last_good: int
    """The place of the last step that is about as good as the best, and so is the next."""
    is_lasting: bool
    """Whether enough steps are below; else the fall is a doubt."""


class RewardHistory:
    """The mean reward of each step that has one, with its standard error, to find the best steps and a fall.

    >>> RewardHistory().find_best() is None
    True
    """

    def __init__(self) -> None:
        self._rewards: list[float] = []
        self._variances: list[float] = []
        self._first = 0
        """Where the comparison begins: steps before are of other tasks, or of another verifier."""
        self._best_until: Callable[[int], Steps] | None = None
        self._step_variance: float | None = None
        """What `_find_best_by_end` and `_estimate_step_variance` have found for the steps so far; None if they were not asked."""

    def __len__(self) -> int:
        return len(self._rewards)

    def add(self, reward: float, error: float) -> None:
        """Add the mean reward of a step, and its standard error as its answers show it."""
        self._rewards.append(reward)
        self._variances.append(error**2)
        self._best_until = self._step_variance = None

    def compare_only_from(self, place: int) -> None:
        """Compare only the steps from a place on."""
        self._first = place
        self._best_until = self._step_variance = None

    def find_best(self, end: int | None = None) -> Steps | None:
        """Find the consecutive steps before `end` whose reward is surely the best; None without steps.

        Of equal ones the latest are returned.
        """
        end = len(self) if end is None else end
        return self._find_best_by_end()(end) if end > self._first else None

    def find_fall(self, bound: float) -> Fall | None:
        """Find that the newest steps are below the best ones by more than a fraction of them, and beyond noise."""
        best_until = self._find_best_by_end() if len(self) > self._first + 1 else None
        for length in RECENT_LENGTHS:
            start = len(self) - length
            if start <= self._first or best_until is None:
                break
            best, recent = best_until(start), self.measure(start, len(self))
            if not self._is_below(best, recent, bound):
                continue
            # with the first step below the fall is known better; unless that was only one bad step long before
            middle = (best.mean + recent.mean) / 2
            since = next(place for place in range(best.end, len(self)) if self._rewards[place] < middle or place == start)
            if self._is_below(best, whole := self.measure(since, len(self)), bound):
                start, recent = since, whole
            level = best.mean - 0.25 * (best.mean - recent.mean)
            return Fall(best, recent, start, self._find_last_pair(level, best.start, start), is_lasting=recent.end - start >= LASTING_STEPS)
        return None

    def find_last_good(self, end: int) -> int | None:
        """Find the last place before `end` where two steps in a row have about the best reward; None without steps."""
        best = self._find_best_by_end()(end) if end > self._first else None
        return None if best is None else self._find_last_pair(best.mean - (1 - NEAR_BEST) * abs(best.mean), best.start, end)

    def _find_last_pair(self, level: float, first: int, end: int) -> int:
        """Find the last place from which two steps have a mean above a level; the place before the first if there is none."""
        pairs = (place for place in range(end - 2, first - 1, -1) if sum(self._rewards[place : place + 2]) / 2 >= level)
        return next(pairs, first - 1)

    def _is_below(self, best: Steps, recent: Steps, bound: float) -> bool:
        """Return whether a mean is below another one by more than a fraction, and beyond noise."""
        floor, fall = min(0.0, recent.mean), best.mean - recent.mean
        return fall > bound * (best.mean - floor) and fall > self._num_sigmas * math.hypot(best.error, recent.error)

    @property
    def _num_sigmas(self) -> float:
        """The number of standard errors that is no accident; more while few steps show how large those errors are."""
        return FALL_SIGMAS * (1 + 4 / (len(self) - self._first))

    def measure(self, start: int, end: int) -> Steps:
        """Measure the mean reward of the places [start, end), and its standard error."""
        rewards = self._rewards[start:end]
        variance = max(self._estimate_step_variance(), math.fsum(self._variances[start:end]) / (end - start))
        return Steps(start, end, math.fsum(rewards) / len(rewards), math.sqrt(variance / len(rewards)))

    def _find_best_by_end(self) -> Callable[[int], Steps]:
        """Return a function that gives the best steps before a place."""
        if self._best_until is not None:
            return self._best_until
        count, general = len(self) - self._first, self._estimate_step_variance()
        sums, variances = (np.cumsum([0.0, *values[self._first :]]) for values in (self._rewards, self._variances))
        bounds, lengths = np.full(count + 1, -np.inf), np.zeros(count + 1, dtype=int)
        for length in (length for length in (*FIRST_LENGTHS, *BEST_LENGTHS) if length <= count):  # of equal bounds that of more steps
            means = (sums[length:] - sums[:-length]) / length
            errors = np.sqrt(np.maximum((variances[length:] - variances[:-length]) / length, general) / length)
            found = np.round(means - BOUND_SIGMAS * errors, 12)
            if length in FIRST_LENGTHS:
                found[1:] = -np.inf
            is_better = found >= bounds[length:]
            bounds[length:] = np.where(is_better, found, bounds[length:])
            lengths[length:] = np.where(is_better, length, lengths[length:])
        ends = np.maximum.accumulate(np.where(bounds >= np.maximum.accumulate(bounds), np.arange(count + 1), 0))

        def best_until(place: int) -> Steps:
            end = int(ends[place - self._first])
            return self.measure(self._first + end - int(lengths[end]), self._first + end)

        self._best_until = best_until
        return best_until

    def _estimate_step_variance(self) -> float:
        """Estimate the variance of a step's mean reward from all steps: one step whose answers all score the same is no certainty. Steps
        also differ because their tasks do, which the changes from a step to the next show; the largest one may be a collapse.
        """
        if self._step_variance is not None:
            return self._step_variance
        rewards, variances = self._rewards[self._first :], self._variances[self._first :]
        changes = np.sort(np.diff(rewards) ** 2)[:-1]
        between = float(changes.mean()) / 2 if len(changes) > 1 else 0.0
        self._step_variance = max(between, math.fsum(variances) / len(variances))
        return self._step_variance
