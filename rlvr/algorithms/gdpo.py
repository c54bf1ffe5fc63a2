"""GDPO: each named reward normalised within its group, then summed and whitened over the batch's answers.

    A = whiten(sum_k w_k (R^k - mean_g) / (std_g + advantage_epsilon)),  k over the components of the verdict that reward_weights names
    L as in GRPO

paper                    2601.05242
differs from the paper   without reward_weights there is one reward, the score: then it is GRPO whitened over answers, and not GDPO
"""

from __future__ import annotations

from collections.abc import Mapping

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.advantages import sum_normalized_rewards
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.functions.rewards import get_component_rewards
from rlvr.algorithms.grpo import loss


@declare_traits("requires_group")
def advantage(answers: AnswerBatch, *, reward_weights: Mapping[str, float] = {}, advantage_epsilon: float = 1e-4) -> Advantages:
    """Compute the weighted sum of the verdict's components, each normalised within its group."""
    parts = get_component_rewards(answers, reward_weights) if reward_weights else {"score": answers.rewards}
    return sum_normalized_rewards(parts, reward_weights or {"score": 1.0}, advantage_epsilon)


make = define_policy_gradient(__name__, __doc__, advantage, loss, whiten="samples")
