"""REINFORCE: the plain policy gradient, without a baseline.

    L = -(1/B) sum_i sum_t R_i l_it

paper                    10.1007/BF00992696 (Williams 1992)
differs from the paper   off-policy (several optimizer steps per batch) each token is weighted by its ratio, at most ratio_max
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.advantages import subtract_baseline
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.functions.surrogate import SurrogateLoss, compute_capped_ratio_loss, compute_log_ratio
from rlvr.contracts.algorithm import LossInputs


def advantage(answers: AnswerBatch) -> Advantages:
    """Return the reward itself as the advantage: no baseline is subtracted."""
    return [subtract_baseline(group, 0.0) for group in answers.rewards]


@declare_traits("noop_on_policy")
def loss(x: LossInputs, *, ratio_max: float = 5.0) -> SurrogateLoss:
    """-A times the log-probability, weighted by the capped ratio."""
    return compute_capped_ratio_loss(
        compute_log_ratio(x.logprobs, x.old_logprobs, x.rows, x.num_rows, "token").exp(), x.advantages, x.logprobs, ratio_max
    )


make = define_policy_gradient(__name__, __doc__, advantage, loss, loss_aggregation="seq-mean-token-sum")
