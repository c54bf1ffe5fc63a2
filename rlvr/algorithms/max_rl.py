"""MaxRL: the reward minus the group's mean, divided by that mean, so that tasks that are rarely solved count more.

    A_i = (R_i - mean_g) / mean_g,  0 where no answer of the group is right
    L as in GRPO, the mean over all tokens

For rewards of 0 and 1 and groups of N, the mean of A grad l is the gradient of -sum_k (1 - P)^k / k, k from 1 to N - 1: the first terms
of log P, with P the chance of a right answer.

paper                    2602.02710
differs from the paper   no (the authors' code adds 1e-6 to the divisor); it is meant for rewards of 0 and 1, as there, and other scores
                         are taken as they are
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.advantages import drop_missing, subtract_group_mean
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.grpo import loss


@declare_traits("requires_group", "skips_zero_variance")
def advantage(answers: AnswerBatch) -> Advantages:
    """Compute the reward relative to the mean of the group."""
    found = []
    for group in answers.rewards:
        scored = drop_missing(group)
        mean = sum(scored) / max(1, len(scored))
        found.append([a / mean if mean > 1e-6 else 0.0 for a in subtract_group_mean(group)])
    return found


make = define_policy_gradient(__name__, __doc__, advantage, loss, loss_aggregation="token-mean")
