"""Returns from each token on: the reward to go, and generalised advantage estimation with a critic's values.

A token that the environment wrote is not an action: it is not a discount step, and it passes the next value and the
running advantage on unchanged, so inserting such tokens does not change the result. A reward on such a token belongs to
the action before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlvr.algorithms.functions.answer_batch import AnswerBatch, Numbers
from rlvr.errors import ConfigError

Rows = Sequence[Any]


def compute_gae(action_masks: Rows, rewards: Rows, values: Rows | None, gamma: float, lam: float) -> list[Numbers]:
    """Compute GAE for each policy token (0.0 elsewhere), for all answers at once; `values[i][t]` is the value before token t.

    >>> compute_gae([[False, True, True]], [[0.0, 0.0, 1.0]], [[0.0, 0.5, 0.5]], 1.0, 1.0)[0].tolist()
    [0.0, 0.5, 0.5]
    """
    where = [np.flatnonzero(row) for row in action_masks]
    steps = np.zeros((max(map(len, where), default=0), len(where)))  # a row for each time step, so that the loop reads memory in order
    for i, places in enumerate(where):
        if len(places):
            seen = np.zeros(len(places)) if values is None else np.asarray(values[i], dtype=np.float64)[places]
            pays = np.add.reduceat(np.asarray(rewards[i], dtype=np.float64), places)  # each action's, and of the tokens up to the next
            steps[: len(places), i] = pays + gamma * np.append(seen[1:], 0.0) - seen
    for t in range(len(steps) - 2, -1, -1):
        steps[t] += gamma * lam * steps[t + 1]
    found = []
    for row, places, advantages in zip(rewards, where, steps.T, strict=True):
        found.append(np.zeros(len(row)))
        found[-1][places] = advantages[: len(places)]
    return found


def compute_returns(answers: AnswerBatch, gamma: float = 1.0, *, lam: float = 1.0, use_critic: bool = False) -> list[list[Numbers]]:
    """Compute the reward to go at each token, or GAE with the critic's values; zeros for an answer that is not counted."""
    places = [(g, i) for g, row in enumerate(answers.is_counted) for i, counts in enumerate(row) if counts]
    known = answers.token_stats.values if use_critic else None
    if use_critic and known is None:
        raise ConfigError("an algorithm with a critic needs the critic's values of every token")
    values = None if known is None else [known[g][i] for g, i in places]
    found = compute_gae(
        [answers.action_masks[g][i] for g, i in places], [answers.token_rewards[g][i] for g, i in places], values, gamma, lam
    )
    rows = dict(zip(places, found, strict=True))
    return [
        [rows[g, i] if counts else np.zeros(len(answers.token_rewards[g][i])) for i, counts in enumerate(row)]
        for g, row in enumerate(answers.is_counted)
    ]


def compute_value_targets(answers: AnswerBatch, advantages: list[list[Numbers]]) -> list[list[Numbers]]:
    """Compute the critic's targets: advantage plus value at each token."""
    assert answers.token_stats.values is not None
    return [
        [a + np.asarray(v) for a, v in zip(row, seen, strict=True)]
        for row, seen in zip(advantages, answers.token_stats.values, strict=True)
    ]
