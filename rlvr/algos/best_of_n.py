"""Best-of-N: supervised learning on the best answer of each group, if its score is above at_least.

    L = -(1/N) sum l over the kept answers' tokens, l at temperature 1

paper                    2304.06767 (RAFT)
differs from the paper   it trains for one optimizer step per batch, not to convergence
"""

from __future__ import annotations

from rlvr.algos.base.preference import imitation
from rlvr.algos.parts.answers import Groups
from rlvr.algos.parts.credit import Rewards
from rlvr.algos.parts.preferences import best, best_ones
from rlvr.episode import Episode


def choose(rewards: Rewards, *, at_least: float = 0.0) -> int | None:
    """Select the first answer with the highest score, if that is above `at_least`."""
    return best(rewards, at_least=at_least)


def learnable(groups: Groups, *, at_least: float = 0.0) -> list[list[Episode]]:
    """Select the best answer of each group."""
    return best_ones(groups, at_least)


make = imitation(__name__, __doc__, choose, learnable)
