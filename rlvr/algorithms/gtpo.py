"""GTPO: a right answer's reward goes to its uncertain tokens, a wrong answer's blame to its certain ones.

    right:  r_it = a R + b R n_t H_it / sum_k H_kt,               k over the n_t right answers that have a token t
    wrong:  r_jt = -a - b m_t (1/H_jt) / sum_k (1/H_kt),          k over the m_t wrong answers that have a token t
    A = (r+ - mean r+) / std r+  +  (r- - mean r-) / std r-,  over all tokens of the group; r+ is r at the tokens of right answers and 0
        elsewhere, r- the same for wrong ones
    L = (1/N) sum -min(r A, clip(r, 0.8, 1.28) A),  a = 1 - b, b is entropy_weight

paper                    2508.04349
differs from the paper   an answer is right from success_threshold on, and R is its score; entropies are at least 1e-3, so that 1/H is
finite,
                         and a + b is 1. No code of the authors was found. Mean and std are read as those of all tokens of the group;
                         a reimplementation takes those of each side alone (then the advantages of all right answers add up to 0),
                         with a = 1 and b = 0.1, and clips the entropies to 0.2 and 0.28, read here as the bounds of the ratio
"""

from __future__ import annotations

import numpy as np

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.advantages import Rewards, has_no_signal
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch, Numbers
from rlvr.algorithms.functions.entropy import get_token_entropies, move_nan_to_row_ends, restore_nan_positions
from rlvr.algorithms.grpo import loss


@declare_traits("requires_group", "skips_zero_variance", "per_token", "entropy")
def advantage(answers: AnswerBatch, *, entropy_weight: float = 0.1, success_threshold: float = 0.5) -> Advantages:
    """Compute each token's reward, shaped by its entropy and normalised within the group."""
    rows = zip(answers.rewards, get_token_entropies(answers), strict=True)
    return [
        [np.zeros(len(h)) for h in hs] if has_no_signal(r) else _compute_group_advantages(r, hs, entropy_weight, success_threshold)
        for r, hs in rows
    ]


def _compute_group_advantages(rewards: Rewards, entropies: list[Numbers], weight: float, success_threshold: float) -> list[Numbers]:
    table = move_nan_to_row_ends(entropies).clip(
        min=1e-3
    )  # [answers, tokens of the policy], NaN after an answer's end and where it does not count
    there, scores = ~np.isnan(table), np.array(rewards, dtype=np.float64)[:, None]
    right, found = scores >= success_threshold, np.zeros_like(table)
    for chosen, share, sign in ((right, table, scores), (~right, 1 / table, -1.0)):
        own = chosen & there
        mean = np.where(own, share, 0.0).sum(0) / np.maximum(own.sum(0), 1)  # over the answers that have the token
        shaped = np.where(own, sign * (1 - weight + weight * share / np.where(mean > 0, mean, 1.0)), 0.0)
        found += (shaped - shaped[there].mean()) / (shaped[there].std() + 1e-6)
    return restore_nan_positions(found, entropies)


make = define_policy_gradient(__name__, __doc__, advantage, loss, epsilon_high=0.28, loss_aggregation="token-mean")
