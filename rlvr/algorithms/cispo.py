"""CISPO: a capped, detached ratio weighs the log-probability, so no token loses its gradient.

    L = (1/N) sum -sg(min(r, ratio_max)) A l,  A as in GRPO, N the tokens of the whole step, sg stops the gradient

paper                    2506.13585
differs from the paper   the cap is the ratio itself, 5 by default; the paper tunes it and does not print it
"""

from __future__ import annotations

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.surrogate import SurrogateLoss, compute_capped_ratio_loss, compute_log_ratio
from rlvr.algorithms.grpo import advantage
from rlvr.contracts.algorithm import LossInputs


@declare_traits("noop_on_policy")
def loss(x: LossInputs, *, ratio_max: float = 5.0) -> SurrogateLoss:
    """Weight the log-probability by the capped ratio."""
    return compute_capped_ratio_loss(
        compute_log_ratio(x.logprobs, x.old_logprobs, x.rows, x.num_rows, "token").exp(), x.advantages, x.logprobs, ratio_max
    )


make = define_policy_gradient(__name__, __doc__, advantage, loss, loss_aggregation="token-mean")
