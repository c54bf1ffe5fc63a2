"""GRPO by turn: the return of each turn, normalised over the group's turns with the same index.

    A_it = (R_it - mean_t) / (std_t + advantage_epsilon),  R_it = sum_{k>=t} turn_discount^(k-t) r_ik over turns
    L as in GRPO

paper                    2402.03300 (process supervision), with turns as the steps
differs from the paper   turns are compared with turns of the same index (or state, or observation), not with all steps of the group;
                         the return of a turn is the sum of what follows, as there
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.functions.turn_advantages import compute_turn_advantages
from rlvr.algorithms.grpo import loss


@declare_traits("requires_group", "per_token")
def advantage(
    answers: AnswerBatch,
    *,
    compare_turns: str = "index",
    turn_discount: float = 1.0,
    baseline: str = "group",
    scale_rewards: str = "group",
    advantage_epsilon: float = 1e-4,
) -> Advantages:
    """Compute the return of each turn, compared with the group's turns of the same index, state or observation."""
    return compute_turn_advantages(
        answers, comparison=compare_turns, discount=turn_discount, baseline=baseline, scale=scale_rewards, epsilon=advantage_epsilon
    )


make = define_policy_gradient(__name__, __doc__, advantage, loss)
