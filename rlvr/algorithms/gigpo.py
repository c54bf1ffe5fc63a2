"""GiGPO: GRPO's advantage of the answer plus that of each turn among the group's turns from the same state.

    A_it = (R_i - mean_g) / (std_g + advantage_epsilon) + turn_weight (R_it - mean_s) / (std_s + advantage_epsilon)
    R_it = sum_{k>=t} turn_discount^(k-t) r_ik over turns,  L as in GRPO

paper                    2505.10978
differs from the paper   turns are compared after exactly the same ids; compare_turns=observation is the paper's own grouping, for
                         environments whose replies show the whole state
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.advantages import divide_by_std
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.functions.turn_advantages import compute_turn_advantages, subtract_turn_baseline
from rlvr.algorithms.grpo import loss


@declare_traits("requires_group", "per_token", "requires_multi_turn")
def advantage(
    answers: AnswerBatch,
    *,
    turn_weight: float = 1.0,
    compare_turns: str = "state",
    turn_discount: float = 0.95,
    baseline: str = "group",
    scale_rewards: str = "group",
    advantage_epsilon: float = 1e-4,
) -> Advantages:
    """Compute the advantage of the whole answer plus that of each of its turns."""
    rewards = answers.rewards
    whole = divide_by_std(rewards, subtract_turn_baseline(rewards, baseline), scale_rewards, advantage_epsilon, answers.all_reduce)
    turns = compute_turn_advantages(
        answers, comparison=compare_turns, discount=turn_discount, baseline=baseline, scale=scale_rewards, epsilon=advantage_epsilon
    )
    return [[a + turn_weight * own for a, own in zip(row, owns, strict=True)] for row, owns in zip(whole, turns, strict=True)]


make = define_policy_gradient(__name__, __doc__, advantage, loss)
