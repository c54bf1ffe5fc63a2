"""High-entropy tokens: DAPO's loss on the fifth of the tokens where the policy is least certain (80/20).

    A_it = A_i where H_it is among the highest entropy_share of the step, else 0;  A_i as in GRPO
    L = (1/N) sum -min(r A, clip(r, 0.8, 1.28) A),  N counts all tokens of the step

Within a group the advantages add up to 0 over whole answers, but not over the tokens that are kept: where wrong answers are the uncertain
ones, most of what is left is blame.

paper                    2506.01939
differs from the paper   H is that of the weights before the step, also in its later optimizer steps; the threshold is over the tokens
                         of the whole step, those of masked truncated answers included, and not of each minibatch; without DAPO's dynamic
                         sampling and its penalty for long answers, unless they are set
"""

from __future__ import annotations

import numpy as np

from rlvr.algorithms import grpo
from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.functions.covariance import find_top_fraction_threshold
from rlvr.algorithms.functions.entropy import get_token_entropies


@declare_traits("requires_group", "skips_zero_variance", "per_token", "entropy")
def advantage(
    answers: AnswerBatch, *, entropy_share: float = 0.2, scale_rewards: str = "group", advantage_epsilon: float = 1e-4
) -> Advantages:
    """GRPO's advantage at the tokens with the highest entropy."""
    whole = grpo.advantage(answers, scale_rewards=scale_rewards, advantage_epsilon=advantage_epsilon)
    entropies = get_token_entropies(answers)
    everyone = np.concatenate([np.zeros(0), *(row[~np.isnan(row)] for group in entropies for row in group)])
    bound = find_top_fraction_threshold(everyone, entropy_share, answers.all_reduce)
    return [[np.where(h >= bound, a, 0.0) for a, h in zip(row, hs, strict=True)] for row, hs in zip(whole, entropies, strict=True)]


make = define_policy_gradient(
    __name__, __doc__, advantage, grpo.loss, epsilon_high=0.28, loss_aggregation="token-mean", mask_truncated_completions=True
)
