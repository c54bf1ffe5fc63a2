"""RLOO: the baseline is the mean reward of the other answers; the whole answer is one action.

    A_i = R_i - mean_{j != i} R_j,  R less beta (l - l_ref) summed over the answer
    L = -(1/B) sum_i min(s A, clip(s, 1 - epsilon, 1 + epsilon_high) A),  s = exp(sum_t l - l_old)

paper                    2402.14740
differs from the paper   it adds PPO's clip of the answer's ratio, which does nothing with one optimizer step per batch
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.advantages import subtract_leave_one_out_mean
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.grpo import loss


@declare_traits("requires_group", "skips_zero_variance")
def advantage(answers: AnswerBatch) -> Advantages:
    """Compute the reward minus the mean of the other answers, which keeps the gradient unbiased."""
    return [subtract_leave_one_out_mean(group) for group in answers.rewards]


make = define_policy_gradient(
    __name__, __doc__, advantage, loss, importance_sampling_level="completion", beta=0.05, kl_estimator="k1", kl_in="reward"
)
