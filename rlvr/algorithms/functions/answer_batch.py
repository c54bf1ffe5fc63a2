"""The answers of one step: the input of the advantage functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rlvr.algorithms.functions.advantages import AllReduce, Rewards, compute_mean_std_count, single_process_all_reduce
from rlvr.contracts.algorithm import EMPTY_TOKEN_STATS, TokenStats
from rlvr.episode import Episode

Numbers = np.ndarray[Any, Any]
Groups = Sequence[Sequence[Episode]]
TokenMasks = Sequence[Sequence["Sequence[bool] | Numbers"]]
"""The mask of the tokens that get an advantage, per group and answer."""
Advantages = Sequence[Sequence["float | Numbers"]]
"""Per group and answer: one number, or an array with one per token."""


@dataclass
class AnswerBatch:
    """Groups of answers to the same prompt, with the rewards and statistics of their tokens.

    >>> from rlvr.episode import StopReason
    >>> e = Episode("t", "g", [5, 6], [False, True], [0.0, 0.0], [0.0, 1.0], StopReason.TERMINATED)
    >>> AnswerBatch([[e]], token_rewards=[[e.rewards]], is_counted=[[True]]).rewards
    [[1.0]]
    """

    groups: Groups
    token_rewards: Sequence[Sequence[Sequence[float] | Numbers]]
    """The reward of each token, minus penalties and the KL."""
    is_counted: Sequence[Sequence[bool]]
    """Whether an answer's reward is used: False if it has no score or is only a baseline."""
    token_stats: TokenStats = EMPTY_TOKEN_STATS
    all_reduce: AllReduce = single_process_all_reduce
    """Sums numbers over all processes."""
    running_mean_reward: float = 0.0
    """The mean reward of earlier steps."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers to log."""
    value_targets: list[list[Numbers]] | None = None
    """The critic's target at each token, if there is a critic."""

    @cached_property
    def rewards(self) -> list[Rewards]:
        """The total reward of each answer; None if it is not counted."""
        return [
            [math.fsum(np.asarray(row).tolist()) if counts else None for row, counts in zip(rows, own, strict=True)]
            for rows, own in zip(self.token_rewards, self.is_counted, strict=True)
        ]

    @cached_property
    def action_masks(self) -> list[list[Numbers]]:
        """The action mask of each answer, as an array."""
        return [[np.array(e.action_mask, dtype=bool) for e in group] for group in self.groups]


def expand_to_tokens(advantages: Advantages, token_masks: TokenMasks) -> list[list[Numbers]]:
    """Expand advantages to one per token; 0 at tokens outside of the mask."""
    return [
        [np.where(np.asarray(mask, dtype=bool), a, 0.0) for mask, a in zip(masks, row, strict=True)]
        for masks, row in zip(token_masks, advantages, strict=True)
    ]


def whiten_token_advantages(
    advantages: list[list[Numbers]], token_masks: TokenMasks, all_reduce: AllReduce = single_process_all_reduce
) -> list[list[Numbers]]:
    """Whiten token advantages: mean 0 and deviation 1 over the tokens in the mask, 0 at the others."""
    masks = [[np.asarray(row, dtype=bool) for row in own] for own in token_masks]
    pairs = [(row, m) for own, ms in zip(advantages, masks, strict=True) for row, m in zip(own, ms, strict=True)]
    mean, spread, _ = compute_mean_std_count(np.concatenate([np.zeros(0), *(row[m] for row, m in pairs)]), all_reduce)
    if spread <= 1e-8:
        return [[np.zeros(len(row)) for row in own] for own in advantages]
    return [
        [np.where(m, (row - mean) / spread, 0.0) for row, m in zip(own, ms, strict=True)] for own, ms in zip(advantages, masks, strict=True)
    ]
