"""Preferences: pairs of answers out of a group's scores, and the pull that DPO puts on each side.

The gradient of a preference loss is a number per answer times the gradient of the answer's log-probability. So it is
credit like any other: the better answer of a pair gets a positive advantage, the worse one the same with a minus, and
REINFORCE does the rest. With d = beta * ((l+ - l+_ref) - (l- - l-_ref)), log-probabilities summed over the answer:

    dpo    -(1 - e) log sigmoid(d) - e log sigmoid(-d)      e is the label smoothing (cDPO)
    ipo    (d / beta - 1 / (2 beta))^2

It holds at the weights that scored the pair, so each batch of pairs is good for one optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlvr.algos.credit import TOLERANCE, Rewards
from rlvr.episode import Episode

LOSSES = ("dpo", "ipo")


def pair(rewards: Rewards) -> tuple[int, int] | None:
    """The best and the worst of a group, or None where they tie.

    >>> pair([0.0, 1.0, None, 0.5]), pair([1.0, 1.0])
    ((1, 0), None)
    """
    scored = [(reward, i) for i, reward in enumerate(rewards) if reward is not None]
    if len(scored) < 2:
        return None
    best, worst = max(scored, key=lambda x: (x[0], -x[1])), min(scored)
    return None if best[0] - worst[0] <= TOLERANCE else (best[1], worst[1])


def loss(d: float, beta: float, how: str, smoothing: float) -> float:
    """The loss of one pair.

    >>> loss(0.0, 0.1, "dpo", 0.0) == math.log(2)
    True
    """
    if how == "ipo":
        return (d / beta - 1 / (2 * beta)) ** 2
    return (1 - smoothing) * _softplus(-d) + smoothing * _softplus(d)


def pull(d: float, beta: float, how: str, smoothing: float) -> float:
    """How hard the loss pulls the better answer's log-probability up: minus its derivative."""
    if how == "ipo":
        return 2 * (1 / (2 * beta) - d / beta)
    return beta * ((1 - smoothing) * _sigmoid(-d) - smoothing * _sigmoid(d))


def best(groups: Sequence[Sequence[Episode]], *, at_least: float = 0.0) -> list[Episode]:
    """Best-of-N: the first of the highest scored answers of each group, if it reaches a score. Food for `Learner.supervise`."""
    tops = [max((e for e in group if e.scored), key=lambda e: e.reward, default=None) for group in groups]
    return [e for e in tops if e is not None and e.reward > at_least]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
