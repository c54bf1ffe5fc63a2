"""Returns from each token on: the reward to go, and generalised advantage estimation with a critic's values.

A token that the environment wrote is not an action: it is not a discount step, and it passes the next value and the
running advantage on unchanged, so inserting such tokens does not change the result. A reward on such a token belongs to
the action before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlvr.algos.parts.answers import Answers, Numbers
from rlvr.errors import ConfigError

Rows = Sequence[Any]


def gae(acted: Rows, rewards: Rows, values: Rows | None, gamma: float, lam: float) -> list[Numbers]:
    """The advantage of each acted token (0.0 elsewhere), all answers at once; `values[i][t]` is the critic's value before token t.

    >>> gae([[False, True, True]], [[0.0, 0.0, 1.0]], [[0.0, 0.5, 0.5]], 1.0, 1.0)[0].tolist()
    [0.0, 0.5, 0.5]
    """
    most = max(map(len, rewards), default=0)
    on, pays = _table(acted, most, bool), _table(rewards, most, float)
    seen = np.zeros_like(pays) if values is None else _table(values, most, float)
    out = np.zeros_like(pays)
    following = running = pending = np.zeros(len(rewards))
    for t in range(most - 1, -1, -1):
        pending = pending + pays[t]
        surprise = pending + gamma * following - seen[t]
        running = np.where(on[t], surprise + gamma * lam * running, running)
        out[t] = np.where(on[t], running, 0.0)
        following, pending = np.where(on[t], seen[t], following), np.where(on[t], 0.0, pending)
    found = np.ascontiguousarray(out.T)
    return [found[i, : len(row)] for i, row in enumerate(rewards)]


def _table(rows: Rows, most: int, kind: type) -> Numbers:
    """The rows as columns of one array, so that one time step of all rows lies together in memory."""
    table: Numbers = np.zeros((len(rows), most), dtype=kind)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return np.ascontiguousarray(table.T)


def discounted(answers: Answers, gamma: float = 1.0, *, lam: float = 1.0, critic: bool = False) -> list[list[Numbers]]:
    """The reward to go at each token, or GAE with the critic's values; zeros for an answer that does not count."""
    places = [(g, i) for g, row in enumerate(answers.counted) for i, counts in enumerate(row) if counts]
    known = answers.scores.values if critic else None
    if critic and known is None:
        raise ConfigError("an algorithm with a critic needs the critic's values of every token")
    values = None if known is None else [known[g][i] for g, i in places]
    found = gae([answers.acted[g][i] for g, i in places], [answers.earned[g][i] for g, i in places], values, gamma, lam)
    rows = dict(zip(places, found, strict=True))
    return [
        [rows[g, i] if counts else np.zeros(len(answers.earned[g][i])) for i, counts in enumerate(row)]
        for g, row in enumerate(answers.counted)
    ]


def targets(answers: Answers, advantages: list[list[Numbers]]) -> list[list[Numbers]]:
    """The critic's targets: advantage plus value at each token."""
    assert answers.scores.values is not None
    return [
        [a + np.asarray(v) for a, v in zip(row, seen, strict=True)] for row, seen in zip(advantages, answers.scores.values, strict=True)
    ]
