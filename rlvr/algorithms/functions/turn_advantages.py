"""Turn-level advantages: the return of each turn, and the groups of turns that are compared with each other.

A turn is a run of policy tokens. Its return is its own reward plus the discounted return of the next turn. Turns are compared within a
group, by one of

    index         turns with the same place in their conversation
    state         turns that begin after exactly the same ids (GiGPO)
    observation   turns that follow the same text of the environment, whatever came before: GiGPO's own choice, for environments
                  whose replies show the whole state

A turn without others to compare with gets advantage 0.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from rlvr.algorithms.functions.advantages import Rewards, divide_by_std, subtract_baseline, subtract_group_mean, subtract_leave_one_out_mean
from rlvr.algorithms.functions.answer_batch import AnswerBatch, Numbers
from rlvr.episode import Episode

TURN_COMPARISONS = ("index", "state", "observation")
BASELINES = ("none", "group", "leave_one_out")

TurnCohort = list[tuple[int, int]]
"""Turns that are compared, as (member of the group, index of the turn)."""


def compute_turn_returns(episode: Episode, rewards: Sequence[float] | Numbers, discount: float = 1.0) -> list[float]:
    """Compute the return of each turn: its reward plus `discount` times the return of the next turn.

    >>> from rlvr.episode import StopReason
    >>> e = Episode("t", "g", [1, 2, 3, 4], [False, True, False, True], [0.0] * 4, [0.0, 0.25, 0.0, 0.5], StopReason.TERMINATED)
    >>> compute_turn_returns(e, e.rewards), compute_turn_returns(e, e.rewards, 0.5)
    ([0.75, 0.5], [0.5, 0.5])
    """
    starts = [start for start, _ in episode.turn_spans]
    running, out = 0.0, [0.0] * len(starts)
    for turn in range(len(starts) - 1, -1, -1):
        end = starts[turn + 1] if turn + 1 < len(starts) else len(rewards)
        running = out[turn] = math.fsum(rewards[starts[turn] : end]) + discount * running
    return out


def group_comparable_turns(group: Sequence[Episode], comparison: str) -> list[TurnCohort]:
    """Partition the turns of a group into cohorts that are compared with each other.

    >>> from rlvr.episode import StopReason
    >>> long = Episode("t", "g", [1, 2, 3, 4], [False, True, False, True], [0.0] * 4, [0.0] * 4, StopReason.TERMINATED)
    >>> short = Episode("t", "g", [1, 5], [False, True], [0.0] * 2, [0.0] * 2, StopReason.TERMINATED)
    >>> group_comparable_turns([long, short], "index")
    [[(0, 0), (1, 0)], [(0, 1)]]
    """
    if comparison not in TURN_COMPARISONS:
        raise ValueError(f"compare_turns is {comparison!r}; allowed: {', '.join(TURN_COMPARISONS)}")
    found: dict[Hashable, TurnCohort] = {}
    states: dict[Hashable, int] = {}
    for member, episode in enumerate(group):
        state = seen = end = 0
        for turn, (start, stop) in enumerate(episode.turn_spans):
            if comparison == "index":
                key: Hashable = turn
            elif comparison == "observation":
                key = tuple(episode.tokens[end:start])
            else:  # the previous state plus the new tokens, so that every token is visited once
                key = state = states.setdefault((state, tuple(episode.tokens[seen:start])), len(states) + 1)
            seen, end = start, stop
            found.setdefault(key, []).append((member, turn))
    return list(found.values())


def subtract_turn_baseline(turn_returns: Sequence[Rewards], baseline: str) -> list[list[float]]:
    """Subtract a baseline from returns: the mean of the cohort, the mean of the others, or nothing."""
    how = {"group": subtract_group_mean, "leave_one_out": subtract_leave_one_out_mean, "none": lambda row: subtract_baseline(row, 0.0)}[
        baseline
    ]
    return [how(row) for row in turn_returns]


def compute_turn_advantages(
    answers: AnswerBatch, *, comparison: str, discount: float, baseline: str, scale: str, epsilon: float
) -> list[list[Numbers]]:
    """Compute the advantage of each token, constant within a turn. Uncounted answers are in no mean and get 0."""
    returns = [
        [compute_turn_returns(e, row, discount) if counts else None for e, row, counts in zip(group, rows, own, strict=True)]
        for group, rows, own in zip(answers.groups, answers.token_rewards, answers.is_counted, strict=True)
    ]
    placed = [(g, cohort) for g, group in enumerate(answers.groups) for cohort in group_comparable_turns(group, comparison)]
    rewards: list[list[float | None]] = []
    for g, cohort in placed:
        known = ((returns[g][member], turn) for member, turn in cohort)
        rewards.append([None if amounts is None else amounts[turn] for amounts, turn in known])
    spans = [[episode.turn_spans for episode in group] for group in answers.groups]
    out = [[np.zeros(len(episode.tokens)) for episode in group] for group in answers.groups]
    found = divide_by_std(rewards, subtract_turn_baseline(rewards, baseline), scale, epsilon, answers.all_reduce)
    for (g, cohort), advantages in zip(placed, found, strict=True):
        for (member, turn), advantage in zip(cohort, advantages, strict=True):
            start, stop = spans[g][member][turn]
            out[g][member][start:stop] = advantage
    sizes = [sum(reward is not None for reward in row) for row in rewards]
    everyone, met = answers.all_reduce([float(sum(sizes)), float(sum(size for size in sizes if size > 1))])
    answers.metrics["turns/compared_fraction"] = met / everyone if everyone else 0.0
    return out


# ---- turns with a malformed call ---------------------------------------------------------------------------


def mask_out_malformed_turns(episode: Episode) -> Sequence[bool]:
    """Return the action mask without turns that have a malformed call."""
    kept = list(episode.action_mask)
    for start, end in episode.malformed_turn_spans:
        kept[start:end] = [False] * (end - start)
    return kept
