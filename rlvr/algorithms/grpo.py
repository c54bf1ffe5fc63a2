"""GRPO: rewards normalised within their group, PPO clip, mean over answers of the mean over tokens.

    A_i = (R_i - mean_g) / (std_g + advantage_epsilon)
    r_it = exp(l_it - l_old_it),  l the log-probability of token t of answer i
    L = (1/B) sum_i (1/T_i) sum_t -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + beta KL

paper                    2402.03300
differs from the paper   beta is 0 (there 0.04), so there is no reference model unless it is set; B counts the scored answers of the optimizer step,
                         so an answer weighs the same in a group that lost members
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.advantages import divide_by_std, subtract_group_mean
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.functions.surrogate import SurrogateLoss, compute_clipped_loss, compute_log_ratio
from rlvr.contracts.algorithm import LossInputs


@declare_traits("requires_group", "skips_zero_variance")
def advantage(answers: AnswerBatch, *, scale_rewards: str = "group", advantage_epsilon: float = 1e-4) -> Advantages:
    """Compute the reward minus the mean of the group, divided by a standard deviation."""
    rewards = answers.rewards
    return divide_by_std(rewards, [subtract_group_mean(group) for group in rewards], scale_rewards, advantage_epsilon, answers.all_reduce)


@declare_traits("noop_on_policy")
def loss(
    x: LossInputs, *, epsilon: float = 0.2, epsilon_high: float | None = None, delta: float | None = None,
    importance_sampling_level: str = "token",
) -> SurrogateLoss:  # fmt: skip
    """PPO's clip of the ratio, at each token or of the whole answer."""
    ratio = compute_log_ratio(x.logprobs, x.old_logprobs, x.rows, x.num_rows, importance_sampling_level).exp()
    return compute_clipped_loss(ratio, x.advantages, epsilon, epsilon if epsilon_high is None else epsilon_high, delta)


make = define_policy_gradient(__name__, __doc__, advantage, loss)
