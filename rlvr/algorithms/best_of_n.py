"""Best-of-N: supervised learning on the best answer of each group, if its score is above score_threshold.

    L = -(1/N) sum l over the kept answers' tokens, l at temperature 1

paper                    2304.06767 (RAFT)
differs from the paper   it trains for one optimizer step per batch, not to convergence
"""

from __future__ import annotations

from rlvr.algorithms.base.preference import define_imitation
from rlvr.algorithms.functions.advantages import Rewards
from rlvr.algorithms.functions.answer_batch import Groups
from rlvr.algorithms.functions.preferences import select_best, select_best_answers
from rlvr.episode import Episode


def choose(rewards: Rewards, *, score_threshold: float = 0.0) -> int | None:
    """Select the first answer with the highest score, if that is above `score_threshold`."""
    return select_best(rewards, score_threshold=score_threshold)


def select_offline(groups: Groups, *, score_threshold: float = 0.0) -> list[list[Episode]]:
    """Select the best answer of each group."""
    return select_best_answers(groups, score_threshold)


make = define_imitation(__name__, __doc__, choose, select_offline)
