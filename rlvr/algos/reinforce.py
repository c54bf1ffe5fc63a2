"""REINFORCE: the plain policy gradient, without a baseline.

    L = -(1/B) sum_i sum_t R_i l_it

paper                    10.1007/BF00992696 (Williams 1992)
differs from the paper   off-policy (several optimizer steps per batch) each token is weighted by its ratio, at most ratio_max
"""

from __future__ import annotations

from rlvr.algos.base.policy_gradient import policy_gradient
from rlvr.algos.base.recipe import part
from rlvr.algos.parts.answers import Advantages, Answers
from rlvr.algos.parts.credit import less
from rlvr.algos.parts.surrogate import Surrogate, log_ratio, weighted
from rlvr.contracts.algorithm import LossInputs


def advantage(answers: Answers) -> Advantages:
    """Return the reward itself."""
    return [less(group, 0.0) for group in answers.rewards]


@part("ratio")
def loss(x: LossInputs, *, ratio_max: float = 5.0) -> Surrogate:
    """-A times the log-probability, weighted by the capped ratio."""
    return weighted(log_ratio(x.new, x.old, x.rows, x.count, "token").exp(), x.advantages, x.new, ratio_max)


make = policy_gradient(__name__, __doc__, advantage, loss, loss_aggregation="seq-mean-token-sum")
