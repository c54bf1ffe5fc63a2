"""REINFORCE with the running mean of past rewards as baseline.

    L = -(1/B) sum_i sum_t (R_i - b) l_it,  b = mean of earlier steps, each counting 0.9 times as much as the next

paper                    10.1007/BF00992696 (Williams 1992)
differs from the paper   no; ratio_max as in reinforce
"""

from __future__ import annotations

from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.advantages import subtract_baseline
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.reinforce import loss


def advantage(answers: AnswerBatch) -> Advantages:
    """Compute the reward minus the mean reward of earlier steps."""
    return [subtract_baseline(group, answers.running_mean_reward) for group in answers.rewards]


make = define_policy_gradient(__name__, __doc__, advantage, loss, loss_aggregation="seq-mean-token-sum")
