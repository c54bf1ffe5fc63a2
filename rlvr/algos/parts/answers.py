"""The answers of one step: the input of the advantage functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rlvr.algos.parts.credit import Rewards, Total, alone, moments
from rlvr.contracts.algorithm import NO_SCORES, Scores
from rlvr.episode import Episode

Numbers = np.ndarray[Any, Any]
Groups = Sequence[Sequence[Episode]]
Kept = Sequence[Sequence["Sequence[bool] | Numbers"]]
"""The mask of the tokens that get an advantage, per group and answer."""
Advantages = Sequence[Sequence["float | Numbers"]]
"""Per group and answer: one number, or an array with one per token."""


@dataclass
class Answers:
    """Groups of answers to the same prompt, with the rewards and statistics of their tokens.

    >>> from rlvr.episode import End
    >>> e = Episode("t", "g", [5, 6], [False, True], [0.0, 0.0], [0.0, 1.0], End.TERMINATED)
    >>> Answers([[e]], earned=[[e.rewards]], counted=[[True]]).rewards
    [[1.0]]
    """

    groups: Groups
    earned: Sequence[Sequence[Sequence[float] | Numbers]]
    """The reward of each token, minus penalties and the KL."""
    counted: Sequence[Sequence[bool]]
    """Whether an answer's reward is used: False if it has no score or is only a baseline."""
    scores: Scores = NO_SCORES
    total: Total = alone
    """Sums numbers over all processes."""
    running: float = 0.0
    """The mean reward of earlier steps."""
    figures: dict[str, float] = field(default_factory=dict)
    """Numbers to log."""
    targets: list[list[Numbers]] | None = None
    """The critic's target at each token, if there is a critic."""

    @cached_property
    def rewards(self) -> list[Rewards]:
        """The total reward of each answer; None if it is not counted."""
        return [
            [math.fsum(np.asarray(row).tolist()) if counts else None for row, counts in zip(rows, own, strict=True)]
            for rows, own in zip(self.earned, self.counted, strict=True)
        ]

    @cached_property
    def acted(self) -> list[list[Numbers]]:
        """The action mask of each answer, as an array."""
        return [[np.array(e.acted, dtype=bool) for e in group] for group in self.groups]


def per_token(found: Advantages, kept: Kept) -> list[list[Numbers]]:
    """Expand advantages to one per token; 0 at tokens outside of the mask."""
    return [
        [np.where(np.asarray(mask, dtype=bool), a, 0.0) for mask, a in zip(masks, row, strict=True)]
        for masks, row in zip(kept, found, strict=True)
    ]


def white_tokens(rows: list[list[Numbers]], kept: Kept, total: Total = alone) -> list[list[Numbers]]:
    """Whiten token advantages: mean 0 and deviation 1 over the tokens in the mask, 0 at the others."""
    masks = [[np.asarray(row, dtype=bool) for row in own] for own in kept]
    pairs = [(row, m) for own, ms in zip(rows, masks, strict=True) for row, m in zip(own, ms, strict=True)]
    mean, spread, _ = moments(np.concatenate([np.zeros(0), *(row[m] for row, m in pairs)]), total)
    if spread <= 1e-8:
        return [[np.zeros(len(row)) for row in own] for own in rows]
    return [[np.where(m, (row - mean) / spread, 0.0) for row, m in zip(own, ms, strict=True)] for own, ms in zip(rows, masks, strict=True)]
