"""Token entropies for advantages, and answers aligned by the index of their tokens."""

from __future__ import annotations

import numpy as np

from rlvr.algorithms.functions.answer_batch import AnswerBatch, Numbers
from rlvr.errors import ConfigError


def get_token_entropies(answers: AnswerBatch) -> list[list[Numbers]]:
    """Return the entropy at each policy token of a counted answer; NaN elsewhere."""
    if answers.token_stats.entropy is None:
        raise ConfigError("this advantage needs the entropy of every token; decorate its function with @declare_traits('entropy')")
    return [
        [np.where(np.asarray(e.action_mask, dtype=bool) & counts, h, np.nan) for e, counts, h in zip(group, own, hs, strict=True)]
        for group, own, hs in zip(answers.groups, answers.is_counted, answers.token_stats.entropy, strict=True)
    ]


def move_nan_to_row_ends(rows: list[Numbers]) -> Numbers:
    """Align rows in one table [answers, max tokens]: the numbers that are not NaN, in order, then NaN.

    >>> move_nan_to_row_ends([np.array([np.nan, 1.0, np.nan, 2.0]), np.array([3.0])]).tolist()
    [[1.0, 2.0], [3.0, nan]]
    """
    kept = [row[~np.isnan(row)] for row in rows]
    table = np.full((len(rows), max(map(len, kept), default=0)), np.nan)
    for i, row in enumerate(kept):
        table[i, : len(row)] = row
    return table


def restore_nan_positions(table: Numbers, rows: list[Numbers]) -> list[Numbers]:
    """Invert `move_nan_to_row_ends`: put each row's numbers back where it was not NaN, 0 elsewhere."""
    out = []
    for row, numbers in zip(rows, table, strict=True):
        own = ~np.isnan(row)
        whole = np.zeros(len(row))
        whole[own] = numbers[: own.sum()]
        out.append(whole)
    return out
