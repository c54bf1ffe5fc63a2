"""The held-out scores of a run, task by task: how the newest ones differ from earlier ones, and by how much more than chance."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

EARLIER_LENGTHS, RECENT_LENGTHS = (1, 2, 4, 8), (1, 2)
"""How many evaluations in a row are compared with how many of the newest: with few tasks, only several together are evidence."""
MAX_EVALUATIONS = 32
"""How many evaluations are kept; of older ones, every second is."""
CERTAIN_SIGMAS, CERTAIN_UNPAIRED_SIGMAS = 4.5, 4.0
"""From how many standard errors on, with or without pairing, a fall is no accident of the tasks, of twenty evaluations all compared."""
UNPAIRED_PART = 2 / 3
"""So large a part of the standard errors must be there without pairing too: where the newest answers are all wrong, pairs show no noise."""


class HeldOutChange(NamedTuple):
    """How the newest held-out scores differ from earlier ones."""

    high: float
    now: float
    first: int
    last: int
    """The steps of the first and of the last of the earlier evaluations."""
    since: int
    """The step of the first of the newest ones."""
    sigmas: float
    """By how many standard errors the same tasks score less now."""
    unpaired_sigmas: float
    """By how many if the newest tasks were others."""
    error: float
    """The standard error of the fall."""
    score_error: float
    """The standard error of one mean score, for a comparison with other tasks."""
    is_from_first: bool
    """Whether the first evaluation is the earlier one, so that it was not chosen for its scores."""

    @property
    def is_certain(self) -> bool:
        """Whether the fall is no accident of the tasks."""
        return self.sigmas >= CERTAIN_SIGMAS or self.unpaired_sigmas >= CERTAIN_UNPAIRED_SIGMAS

    def is_below(self, bound: float) -> bool:
        """Return whether the fall is more than a fraction of the earlier score."""
        return self.high - self.now > bound * (self.high - min(0.0, self.now))

    def describe(self) -> str:
        """Describe both figures with their steps."""
        when = f"at step {self.first}" if self.first == self.last else f"in the evaluations of steps {self.first} to {self.last}"
        return f"the held-out figure is {self.now:.1%}; {when} it was {self.high:.1%}"


def compare_figures(high: float, now: float, num_tasks: int, first: int, since: int) -> HeldOutChange | None:
    """Compare two accuracies of which only these are known; None for mean scores, whose error they do not tell.

    >>> change = compare_figures(0.6, 0.0, 21, first=0, since=10)
    >>> change is not None and change.is_certain
    True
    """
    if not (0 <= now <= high <= 1):
        return None
    middle = (high + now) / 2
    score_error = math.sqrt(middle * (1 - middle) / max(1, num_tasks))
    sigmas = (high - now) / (math.sqrt(2) * score_error) if score_error else 0.0
    return HeldOutChange(high, now, first, first, since, sigmas, sigmas, math.sqrt(2) * score_error, score_error, is_from_first=first == 0)


class HeldOutHistory:
    """The scores of the evaluations so far. Tasks with the same prompt count as one, because their answers are the same.

    >>> history = HeldOutHistory()
    >>> for step, scores in ((0, [1.0] * 20), (5, [1.0, *[0.0] * 19])):
    ...     history.add(step, scores, range(20))
    >>> change = next(history.iter_accuracy_changes())
    >>> change.describe(), round(change.sigmas, 2)
    ('the held-out figure is 5.0%; at step 0 it was 100.0%', 4.36)
    """

    def __init__(self) -> None:
        self._evaluations: list[tuple[int, list[float | None]]] = []
        self._prompts: Sequence[Hashable] = ()

    def add(self, step: int, scores: Sequence[float | None], prompts: Sequence[Hashable]) -> None:
        """Add an evaluation, in place of another one of the same step."""
        kept = [one for one in self._evaluations if one[0] < step and len(one[1]) == len(scores)]
        if len(kept) >= MAX_EVALUATIONS:
            del kept[1 : MAX_EVALUATIONS // 2 : 2]
        self._evaluations, self._prompts = [*kept, (step, list(scores))], prompts

    def to_json(self) -> list[Any]:
        """Return the scores, without the prompts, which the next evaluation gives again."""
        return [[step, scores] for step, scores in self._evaluations]

    def restore(self, rows: Sequence[Any]) -> None:
        """Take the scores of earlier evaluations."""
        self._evaluations = [(int(step), list(scores)) for step, scores in rows]

    @property
    def newest_step(self) -> int:
        """The step of the newest evaluation; -1 without one."""
        return self._evaluations[-1][0] if self._evaluations else -1

    def count_independent(self) -> float:
        """Count the tasks, where those with the same prompt count as fewer than their number; 0 without an evaluation."""
        counts = np.unique([hash(prompt) for prompt in self._prompts], return_counts=True)[1].astype(float)
        return float(counts.sum() ** 2 / (counts**2).sum()) if len(counts) else 0.0

    def iter_accuracy_changes(self) -> Iterator[HeldOutChange]:
        """Yield how the newest evaluations differ from each stretch of earlier ones."""
        count = len(self._evaluations)
        if count < 2:
            return
        steps = [step for step, _ in self._evaluations]
        raw = np.array([scores for _, scores in self._evaluations], dtype=float)
        _, which, weights = np.unique([hash(prompt) for prompt in self._prompts], return_inverse=True, return_counts=True)
        scored = ~np.isnan(raw)
        # sums over the evaluations up to each, by prompt: of scores, of their squares, and of how many there are
        sums, squares, numbers = (
            np.vstack([np.zeros(len(weights)), np.cumsum([np.bincount(which, row, len(weights)) for row in values], axis=0)])
            for values in (np.where(scored, raw, 0.0), np.where(scored, raw, 0.0) ** 2, scored.astype(float))
        )
        independent = self.count_independent()
        for length in RECENT_LENGTHS:
            ends = np.array([end for end in range(1, count - length + 1) for one in EARLIER_LENGTHS if one <= end], dtype=int)
            starts = np.array([end - one for end in range(1, count - length + 1) for one in EARLIER_LENGTHS if one <= end], dtype=int)
            if not len(ends):
                continue
            before, after = numbers[ends] - numbers[starts], numbers[count] - numbers[count - length]
            weight = weights * (before > 0) * (after > 0)
            weight = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1)
            (old, new), (old_square, new_square) = (
                ((of[ends] - of[starts]) / np.maximum(before, 1), (of[count] - of[count - length]) / np.maximum(after, 1))
                for of in (sums, squares)
            )
            high, now = (weight * old).sum(axis=1), (weight * new).sum(axis=1)
            error = np.sqrt(((weight * (old - new)) ** 2).sum(axis=1))
            variance = (weight * (old_square + new_square)).sum(axis=1) / 2 - ((high + now) / 2) ** 2
            for place in np.flatnonzero((error > 0) & (variance > 0)):
                score_error, fall = math.sqrt(variance[place] / independent), float(high[place] - now[place])
                unpaired = fall / (math.sqrt(2) * score_error)
                yield HeldOutChange(
                    high=float(high[place]),
                    now=float(now[place]),
                    first=steps[starts[place]],
                    last=steps[ends[place] - 1],
                    since=steps[count - length],
                    sigmas=min(fall / float(error[place]), unpaired / UNPAIRED_PART),
                    unpaired_sigmas=unpaired,
                    error=float(error[place]),
                    score_error=score_error,
                    is_from_first=bool(ends[place] == 1),
                )
