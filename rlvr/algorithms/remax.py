"""ReMax: the baseline is the reward of the greedy answer.

    A_it = sum_{k>=t} gamma^(k-t) r_ik - R_greedy,  the reward to go: R_i if the whole reward is at the end
    L = -(1/B) sum_i sum_t A_it l_it

paper                    2310.10505
differs from the paper   no KL in the reward unless beta is set
"""

from __future__ import annotations

import numpy as np

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.functions.returns import compute_returns
from rlvr.algorithms.functions.rewards import get_greedy_rewards
from rlvr.algorithms.reinforce import loss


@declare_traits("needs_greedy_sample", "per_token")
def advantage(answers: AnswerBatch, *, gamma: float = 1.0) -> Advantages:
    """Compute the reward to go minus the reward of the group's greedy answer; 0 if that has no score."""
    return [
        [np.zeros(len(row)) if base is None or reward is None else row - base for row, reward in zip(rows, rewards, strict=True)]
        for rows, rewards, base in zip(compute_returns(answers, gamma), answers.rewards, get_greedy_rewards(answers), strict=True)
    ]


make = define_policy_gradient(__name__, __doc__, advantage, loss, loss_aggregation="seq-mean-token-sum")
